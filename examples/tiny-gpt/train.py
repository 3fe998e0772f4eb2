"""Train a small GPT on the Python standard library's source code, on any number of nodes and processes.

    torchrun --nproc-per-node 2 train.py --steps 200          two processes on this machine
    hpc-launch submit job.yaml                                two nodes, as set in job.yaml

It depends neither on hpc-launch nor on Slurm. It reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, which every launcher sets, and one optional variable, HPC_LAUNCH_STOP_FILE: when the file that it
names appears, shortly before a time limit or a preemption, the training saves a checkpoint and exits.
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
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=200, help="total number of optimizer steps (default 200)")
    training.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default 3e-3)")
    training.add_argument("--batch-size", type=int, default=8, help="sequences per step and rank (default 8)")
    training.add_argument("--seed", type=int, default=1, help="determines the weights and the data order (default 1)")
    training.add_argument("--log-every", type=int, default=10, help="steps between progress lines (default 10)")
    model = parser.add_argument_group("model")
    model.add_argument("--context", type=int, default=128, help="context length in bytes (default 128)")
    model.add_argument("--width", type=int, default=128, help="size of each vector (default 128)")
    model.add_argument("--layers", type=int, default=4, help="attention blocks (default 4)")
    model.add_argument("--heads", type=int, default=4, help="attention heads per block (default 4)")
    saving = parser.add_argument_group("checkpoints")
    saving.add_argument("--checkpoint-dir", type=Path, help="where to save; without it nothing is saved")
    saving.add_argument("--checkpoint-every", type=int, default=50, help="steps between saves (default 50)")
    saving.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="never",
        help="auto: resume from the newest checkpoint in --checkpoint-dir, if there is one (default never)",
    )
    training.add_argument(
        "--collective-timeout",
        type=float,
        default=600,
        help="timeout of collectives in seconds (default 600)",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument("--engine", choices=("ddp", "deepspeed"), default="ddp", help="default ddp")
    engine.add_argument("--deepspeed", dest="engine", action="store_const", const="deepspeed", help="the same")
    engine.add_argument(
        "--deepspeed_config", "--deepspeed-config", type=Path, default=HERE / "ds_zero1.json", help="JSON file"
    )
    # The deepspeed launcher adds this option. It is ignored: LOCAL_RANK has the same value.
    engine.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    trying = parser.add_argument_group("for testing a launcher")
    trying.add_argument("--sleep-per-step", type=float, default=0.0, help="seconds to wait after each step")
    trying.add_argument("--fail-at-step", type=int, help="raise an exception at this step, unless the run resumed")
    trying.add_argument("--fail-rank", type=int, default=0, help="the rank that raises (default 0)")
    return parser.parse_args()


def connect(patience: timedelta) -> torch.device:
    """Join the process group and return the device of this process."""
    # A process that was started by hand, without a launcher, forms a group of one.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    local_rank = int(os.environ["LOCAL_RANK"])
    # If each process of a node used every core, they would slow each other down.
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
    """Create the model, the same on every rank, and wrap it in the chosen engine."""
    torch.manual_seed(args.seed)
    model = TinyGPT(
        vocabulary=VOCABULARY, context=args.context, width=args.width, layers=args.layers, heads=args.heads
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    if args.engine == "deepspeed":
        return DeepSpeed(model, optimizer, args.batch_size, args.deepspeed_config)
    return Ddp(model, optimizer, device)


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Linear warm-up over the first tenth of the steps, then cosine decay to a tenth of the highest rate."""
    warmup = max(1, args.steps // 10)
    if step <= warmup:
        return float(args.lr * step / warmup)
    progress = (step - warmup) / max(1, args.steps - warmup)
    return float(args.lr * (0.55 + 0.45 * math.cos(math.pi * progress)))


def settings(args: argparse.Namespace) -> dict[str, int | float]:
    """Settings that must be equal for a resumed run to reproduce the interrupted one."""
    names = ("steps", "lr", "batch_size", "seed", "context", "width", "layers", "heads")
    return {name: getattr(args, name) for name in names} | {"world_size": dist.get_world_size()}


def resume(args: argparse.Namespace, engine: Engine, device: torch.device) -> tuple[int, float]:
    """Load the newest complete checkpoint and return its step and loss, or step 0 if there is none."""
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
    """Run the remaining steps, save checkpoints, and print how the training ended."""
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
            # No random state is saved: apart from the weights, everything random follows from seed and step.
            extra = {"step": step, "loss": loss, "settings": settings(args)}
            checkpoints.save(args.checkpoint_dir, step, partial(engine.save, extra=extra))
        if stop:
            saved = "checkpoint saved" if args.checkpoint_dir else "no --checkpoint-dir, so nothing saved"
            say(f"stopping early at step {step}: {saved}")
            return
    say(f"training finished at step {args.steps} loss {loss:.6f}")


def stop_requested(device: torch.device) -> bool:
    """Whether the stop file exists. Rank 0 checks and broadcasts, so that all ranks stop at the same step."""
    name = os.environ.get("HPC_LAUNCH_STOP_FILE", "")
    found = dist.get_rank() == 0 and name != "" and Path(name).exists()
    flag = torch.tensor(int(found), device=device)
    dist.broadcast(flag, 0)
    return bool(flag)


def mean_over_ranks(value: torch.Tensor) -> float:
    """Return the mean of a value over all ranks."""
    total = value.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def say(line: str) -> None:
    """Print on rank 0 only."""
    if dist.get_rank() == 0:
        write_line(line)


def write_line(line: str) -> None:
    """Print a line in one write and flush it. `print` may write the line and its end separately, and then the
    output of the ranks of a node, which share one stream, would be interleaved.
    """
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@record  # adds the traceback of a failing rank to torchrun's report
def main() -> None:
    """Connect, build the engine, train, and leave the process group."""
    args = parse_arguments()
    device = connect(timedelta(seconds=args.collective_timeout))
    engine = build_engine(args, device)
    train(args, engine, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
