"""A training without a library: it counts, saves when it is told to, and goes on from where it was told to."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

told: list[int] = []


def main() -> None:
    """Count the steps that are left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--every", type=int, default=0, help="steps between saves; 0: at the warning alone")
    parser.add_argument("--listen", default="file", help="file, hook, none, or the name of a signal")
    parser.add_argument("--quit", action="store_true", help="end at the warning without saving")
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--from", dest="start", type=Path)
    parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    if args.listen not in ("file", "hook", "none"):
        signal.signal(getattr(signal, f"SIG{args.listen}"), lambda number, _: told.append(number))
    first = json.loads((args.start / "state.json").read_text())["step"] if args.start else 0
    for step in range(first + 1, args.steps + 1):
        if rank == 0:
            print(f"step {step}/{args.steps}", flush=True)
        time.sleep(args.pause)
        stop = asked(args.listen)
        if rank == 0 and ((stop and not args.quit) or (args.every and step % args.every == 0)):
            save(args.folder / f"step-{step}", step)
        if stop:
            print(f"rank {rank} stops at step {step}", flush=True)
            sys.exit(0)


def asked(listen: str) -> bool:
    """Whether it is time to save and end."""
    if listen == "file":
        return os.path.exists(os.environ["HPC_LAUNCH_STOP_FILE"])
    if listen == "hook":
        import hpc_launch_hooks  # type: ignore[import-not-found]

        return bool(hpc_launch_hooks.should_stop())
    return bool(told)


def save(folder: Path, step: int) -> None:
    """Put a checkpoint in place whole."""
    temporary = folder.with_name(f".{folder.name}")
    temporary.mkdir(parents=True, exist_ok=True)
    (temporary / "state.json").write_text(json.dumps({"step": step}))
    shutil.rmtree(folder, ignore_errors=True)  # a torn one, of an attempt before
    temporary.rename(folder)


main()
