"""Train a small GPT on the Python standard library's source code, on any number of nodes and processes.

    torchrun --nproc-per-node 2 train.py --steps 200          two processes on this machine
    hpc-launch submit job.yaml                                two nodes, as job.yaml says

It knows nothing of hpc-launch or Slurm. It reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
which every launcher sets, and one more variable that is optional: HPC_LAUNCH_STOP_FILE names a file whose
appearing asks for a checkpoint and a clean end, shortly before a time limit or a preemption.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import checkpoints
import torch
import torch.distributed as dist
from data import VOCABULARY, Batches, read_corpus
from engines import Ddp, DeepSpeed, Engine
from model import TinyGPT
from torch.distributed.elastic.multiprocessing.errors import record

HERE = Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    """Read the command line; `--help` shows it in groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=200, help="optimizer steps in all (default 200)")
    training.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default 3e-3)")
    training.add_argument("--batch-size", type=int, default=8, help="sequences a step and rank (default 8)")
    training.add_argument("--seed", type=int, default=1, help="decides weights and data order (default 1)")
    training.add_argument("--log-every", type=int, default=10, help="steps between progress lines (default 10)")
    model = parser.add_argument_group("model")
    model.add_argument("--context", type=int, default=128, help="bytes the model sees at once (default 128)")
    model.add_argument("--width", type=int, default=128, help="size of each vector in it (default 128)")
    model.add_argument("--layers", type=int, default=4, help="attention blocks (default 4)")
    model.add_argument("--heads", type=int, default=4, help="attention heads a block (default 4)")
    saving = parser.add_argument_group("checkpoints")
    saving.add_argument("--checkpoint-dir", type=Path, help="where to save; without it nothing is saved")
    saving.add_argument("--checkpoint-every", type=int, default=50, help="steps between saves (default 50)")
    saving.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="never",
        help="auto: go on from the newest checkpoint in --checkpoint-dir, if there is one (default never)",
    )
    training.add_argument(
        "--collective-timeout",
        type=float,
        default=600,
        help="seconds until a rank that waits for a lost one gives up (default 600)",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument("--engine", choices=("ddp", "deepspeed"), default="ddp", help="default ddp")
    engine.add_argument("--deepspeed", dest="engine", action="store_const", const="deepspeed", help="the same")
    engine.add_argument(
        "--deepspeed_config", "--deepspeed-config", type=Path, default=HERE / "ds_zero1.json", help="JSON file"
    )
    # The deepspeed launcher adds this one; it sets LOCAL_RANK to the same number, and that is what we read.
    engine.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    trying = parser.add_argument_group("for trying out what a launcher does")
    trying.add_argument("--sleep-per-step", type=float, default=0.0, help="seconds to wait after each step")
    trying.add_argument("--fail-at-step", type=int, help="raise instead of this step, unless the run resumed")
    trying.add_argument("--fail-rank", type=int, default=0, help="the rank that raises (default 0)")
    return parser.parse_args()


def connect(patience: timedelta) -> torch.device:
    """Join the other processes, and say on which device this one computes."""
    # A process started by hand, without a launcher, is a world of its own.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    local_rank = int(os.environ["LOCAL_RANK"])
    # Processes of one node that all took every core would only get in each other's way.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=patience)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=patience)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    write_line(f"rank {rank} of {world_size} on host {socket.gethostname()} local rank {local_rank}")
    return device


def build_engine(args: argparse.Namespace, device: torch.device) -> Engine:
    """Make the model, the same on every rank, and wrap it in the engine that was asked for."""
    torch.manual_seed(args.seed)
    model = TinyGPT(
        vocabulary=VOCABULARY, context=args.context, width=args.width, layers=args.layers, heads=args.heads
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    if args.engine == "deepspeed":
        return DeepSpeed(model, optimizer, args.batch_size, args.deepspeed_config)
    return Ddp(model, optimizer, device)


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Rise over the first tenth of the steps, then fall along a cosine to a tenth of the highest rate."""
    warmup = max(1, args.steps // 10)
    if step <= warmup:
        return float(args.lr * step / warmup)
    progress = (step - warmup) / max(1, args.steps - warmup)
    return float(args.lr * (0.55 + 0.45 * math.cos(math.pi * progress)))


def settings(args: argparse.Namespace) -> dict[str, int | float]:
    """What has to be the same for a resumed run to be the run that was stopped."""
    names = ("steps", "lr", "batch_size", "seed", "context", "width", "layers", "heads")
    return {name: getattr(args, name) for name in names} | {"world_size": dist.get_world_size()}


def resume(args: argparse.Namespace, engine: Engine, device: torch.device) -> tuple[int, float]:
    """Load the newest whole checkpoint; return its step and loss, or step 0 when there is none."""
    found = checkpoints.newest_whole(args.checkpoint_dir, device)
    if found is None:
        say(f"no checkpoint in {args.checkpoint_dir}: starting from the beginning")
        return 0, math.nan
    saved = engine.load(found)
    for name, now in settings(args).items():
        before = saved["settings"][name]
        if before != now:
            say(f"note: {name} was {before} and is {now}: this run will not repeat an undisturbed one exactly")
    say(f"resumed from {found.name}")
    return saved["step"], saved["loss"]


def train(args: argparse.Namespace, engine: Engine, device: torch.device) -> None:
    """Run the steps that are left, saving on the way, and say how it ended."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = Batches(read_corpus(), batch_size=args.batch_size, context=args.context, seed=args.seed)
    first, loss = 0, math.nan
    if args.checkpoint_dir and args.resume == "auto":
        first, loss = resume(args, engine, device)

    logged, logged_at = first, time.monotonic()
    for step in range(first + 1, args.steps + 1):
        if step == args.fail_at_step and rank == args.fail_rank and first == 0:
            raise RuntimeError(f"rank {rank} fails at step {step}, as --fail-at-step asks")
        inputs, targets = batches.at(step, rank, world_size)
        lr = learning_rate(args, step)
        own_loss = engine.train_step(inputs.to(device), targets.to(device), lr)
        time.sleep(args.sleep_per_step)

        stop = stop_requested(device)
        save = args.checkpoint_dir and (stop or step == args.steps or step % args.checkpoint_every == 0)
        log = step in {1, args.steps} or step % args.log_every == 0
        if log or save:
            loss = mean_over_ranks(own_loss)
        if log:
            now = time.monotonic()
            tokens = (step - logged) * args.batch_size * args.context * world_size
            say(f"step {step}/{args.steps} loss {loss:.4f} lr {lr:.1e} tokens/s {tokens / (now - logged_at):.0f}")
            logged, logged_at = step, now
        if save:
            # No random state is saved: weights aside, all that is random here follows from seed and step.
            extra = {"step": step, "loss": loss, "settings": settings(args)}
            checkpoints.save(args.checkpoint_dir, step, partial(engine.save, extra=extra))
        if stop:
            saved = "checkpoint saved" if args.checkpoint_dir else "no --checkpoint-dir, so nothing saved"
            say(f"stopping early at step {step}: {saved}")
            return
    say(f"training finished at step {args.steps} loss {loss:.6f}")


def stop_requested(device: torch.device) -> bool:
    """Whether the stop file is there: rank 0 looks, all ranks hear it, so that they stop at the same step."""
    name = os.environ.get("HPC_LAUNCH_STOP_FILE", "")
    found = dist.get_rank() == 0 and name != "" and Path(name).exists()
    flag = torch.tensor(int(found), device=device)
    dist.broadcast(flag, 0)
    return bool(flag)


def mean_over_ranks(value: torch.Tensor) -> float:
    """The average of a number that each rank has its own of."""
    total = value.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def say(line: str) -> None:
    """Print once, not once a rank."""
    if dist.get_rank() == 0:
        write_line(line)


def write_line(line: str) -> None:
    """Print at once, so that whoever follows the log sees it, and whole: `print` may write the line and its
    end apart, and the ranks of a node, which share one output, would then get into each other's lines.
    """
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@record  # an exception on any rank then reaches torchrun's report with its traceback
def main() -> None:
    """Connect, build, train, part."""
    args = parse_arguments()
    device = connect(timedelta(seconds=args.collective_timeout))
    engine = build_engine(args, device)
    train(args, engine, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
