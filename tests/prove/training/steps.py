"""A training that makes steps by sleeping, until it is told that it is enough; it counts them itself.

It resumes from its newest checkpoint, whoever starts it, and uses the client of ft_launcher under that. SIGUSR2 makes a
rank hang. A rank gives the others up after `--patience`, as NCCL does.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from meeting import Sockets  # type: ignore[import-not-found]


def monitor() -> Any:
    """The client of ft_launcher; None under another launcher."""
    if "FT_RANK_MONITOR_IPC_SOCKET" not in os.environ:
        return None
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient  # type: ignore[import-not-found]

    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client


def save(folder: Path, step: int) -> None:
    """Put a checkpoint in place whole."""
    draft = folder / f".step-{step}"
    draft.mkdir(exist_ok=True)
    (draft / "state").write_text(f"{step}\n")
    shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
    draft.rename(folder / f"step-{step}")


def main() -> None:
    """Resume, meet and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="checkpoints, and `enough` at the end")
    parser.add_argument("--record", type=Path, required=True, help="what really ran")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds a step")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--patience", type=float, default=30)
    args = parser.parse_args()
    faulthandler.enable()
    rank = int(os.environ["RANK"])
    signal.signal(signal.SIGUSR2, lambda *_: time.sleep(100_000))

    def note(*words: object) -> None:
        with args.record.open("a") as file:
            file.write(" ".join(map(str, [f"{time.time():.3f}", *words])) + "\n")

    note("start", rank, os.uname().nodename, os.getpid())
    client, meeting = monitor(), Sockets(args.patience)
    for other in meeting.others:
        other.settimeout(args.patience)
    args.folder.mkdir(parents=True, exist_ok=True)
    saved = [int(path.name[5:]) for path in args.folder.glob("step-*")] if rank == 0 else []
    step = int(meeting.add([float(max(saved, default=0))])[0])
    over = False
    while not over:
        step += 1
        time.sleep(args.pause)
        over = meeting.add([float(rank == 0 and (args.folder / "enough").exists())])[0] > 0
        if client is not None:
            client.send_heartbeat()
        if rank == 0:
            print(f"step {step}", flush=True)
            note("step", step)
            if step % args.every == 0 or over:
                save(args.folder, step)
                shutil.rmtree(args.folder / f"step-{step - 3 * args.every}", ignore_errors=True)


if __name__ == "__main__":
    main()
