"""A small training that can be told to fail: least squares by gradient descent, exact to the last bit when repeated.

The ranks share each global batch and add up their gradients, by PyTorch's gloo or, with `--meet sockets`, by a few
lines of the standard library, so that most faults cost no import of PyTorch. Rank 0 saves a checkpoint each `--every`
steps and writes a line a step into `--record`, which lies apart from the run: what really ran, whatever anybody says.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import faults  # type: ignore[import-not-found]
from meeting import Meeting, join  # type: ignore[import-not-found]

WEIGHTS = 4


def parse_arguments() -> argparse.Namespace:
    """The command line; all of it has defaults but the two places."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--every", type=int, default=2, help="steps between checkpoints; 0 is never")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds a step")
    parser.add_argument("--folder", type=Path, required=True, help="checkpoints")
    parser.add_argument("--record", type=Path, required=True, help="what really ran")
    parser.add_argument("--from", dest="start", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--micro_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--meet", choices=("sockets", "torch"), default="sockets")
    parser.add_argument("--patience", type=float, default=60, help="seconds until a rank gives the others up")
    parser.add_argument("--listen", action="store_true", help="save and end when asked to")
    parser.add_argument("--stop-file", type=Path, help="what asks for that, if not hpc-launch")
    parser.add_argument("--by-itself", action="store_true", help="find the newest checkpoint and notice silent ranks")
    parser.add_argument("--local_rank", help="DeepSpeed's launcher gives it")
    parser.add_argument("--fault", help="what goes wrong (faults.py)")
    parser.add_argument("--fault-step", type=int, default=6)
    parser.add_argument("--fault-rank", type=int, default=0, help="-1 is every rank")
    parser.add_argument("--fault-attempts", type=int, default=1, help="so many attempts fail")
    parser.add_argument("--fault-node", help="the fault sits in this node")
    return parser.parse_args()


def note(args: argparse.Namespace, *words: object) -> None:
    """Add a line to the record."""
    with args.record.open("a") as file:
        file.write(" ".join(map(str, [f"{time.time():.3f}", os.environ.get("HPC_LAUNCH_ATTEMPT", "1"), *words])) + "\n")


def gradient(weights: list[float], step: int, args: argparse.Namespace, rank: int) -> list[float]:
    """Sum gradient and loss over this rank's share of a step's global batch."""
    sums = [0.0] * (WEIGHTS + 1)
    for part in range(args.gradient_accumulation_steps):
        for item in range(args.micro_batch_size):
            number = (rank * args.gradient_accumulation_steps + part) * args.micro_batch_size + item
            source = random.Random(step * 100_003 + number)
            x = [source.uniform(-1, 1) for _ in range(WEIGHTS)]
            error = sum(w * v for w, v in zip(weights, x, strict=False)) - sum(x) + source.gauss(0, 0.1)
            for place, value in enumerate(x):
                sums[place] += 2 * error * value
            sums[-1] += error * error
    return sums


def save(args: argparse.Namespace, step: int, weights: list[float]) -> None:
    """Put a checkpoint in place whole."""
    folder = args.folder / f"step-{step}"
    temporary = folder.with_name(f".{folder.name}")
    temporary.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "weights": weights}
    if faults.due(args, step, 0) and args.fault in ("full", "quota"):
        faults.spoil_save(args.fault, temporary)
    (temporary / "state.json").write_text(json.dumps(state))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    shutil.rmtree(args.folder / f"step-{step - 3 * args.every}", ignore_errors=True)


def train(args: argparse.Namespace, meeting: Meeting) -> None:
    """The steps that are left."""
    beat, weights, first = heartbeat(), [0.0] * WEIGHTS, 0
    if args.by_itself:
        go_on(args, meeting)
    if args.start:
        state = json.loads((args.start / "state.json").read_text())
        weights, first = state["weights"], state["step"]
    samples = meeting.world * args.micro_batch_size * args.gradient_accumulation_steps
    for step in range(first + 1, args.steps + 1):
        if faults.due(args, step, meeting.rank):
            if args.fault not in faults.QUIET:
                note(args, "fault", step, meeting.rank)
            if faults.happen(args, step, meeting.rank):
                return
        sums = meeting.add(gradient(weights, step, args, meeting.rank))
        weights = [w - 0.1 * g / samples for w, g in zip(weights, sums, strict=False)]
        loss = sums[-1] / samples
        if args.fault == "nan" and faults.due(args, step, 0):
            loss = math.nan
        if meeting.rank == 0:
            end = "" if args.fault == "no-newline" and step == args.steps else "\n"
            print(f"step {step}/{args.steps} loss {loss:.6f}", end=end, flush=True)
            note(args, "step", step, repr(loss))
        if math.isnan(loss):
            raise FloatingPointError(f"loss is nan at step {step}, giving up")
        beat()
        stop = bool(args.listen and meeting.add([float(asked(args, meeting))])[0])
        if meeting.rank == 0 and args.every and (step % args.every == 0 or stop):
            save(args, step, weights)
        if stop:
            print(f"rank {meeting.rank} saved at step {step} and ends", flush=True)
            return
        time.sleep(args.pause)


def asked(args: argparse.Namespace, meeting: Meeting) -> bool:
    """Whether rank 0 finds the file that asks for an end."""
    return meeting.rank == 0 and Path(args.stop_file or os.environ.get("HPC_LAUNCH_STOP_FILE", "")).is_file()


def heartbeat() -> Callable[[], object]:
    """What tells ft_launcher, if it has started this rank, that it lives."""
    if "FT_RANK_MONITOR_IPC_SOCKET" not in os.environ:
        return lambda: None
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient  # type: ignore[import-not-found]

    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client.send_heartbeat  # type: ignore[no-any-return]


def go_on(args: argparse.Namespace, meeting: Meeting) -> None:
    """Agree on rank 0's newest checkpoint; a rank that says nothing for long is given up, as by NCCL."""
    for other in getattr(meeting, "others", []):
        other.settimeout(args.patience)
    saved = [int(path.name[5:]) for path in args.folder.glob("step-*")] if meeting.rank == 0 else []
    if step := int(meeting.add([float(max(saved, default=0))])[0]):
        args.start = args.folder / f"step-{step}"


def main() -> None:
    """Meet, train, part."""
    args = parse_arguments()
    rank = int(os.environ["RANK"])
    # A hang that others ask for.
    signal.signal(signal.SIGUSR2, lambda *_: time.sleep(100_000))
    note(args, "start", rank, os.uname().nodename, os.getpid())
    if faults.due(args, 0, rank):
        note(args, "fault", 0, rank)
        faults.happen(args, 0, rank)
    train(args, join(args.meet, args.patience))


if __name__ == "__main__":
    try:
        main()
    except Exception:
        if "--fault" in sys.argv and "swallowed" in sys.argv:
            import traceback

            traceback.print_exc()
            sys.exit(0)
        raise
