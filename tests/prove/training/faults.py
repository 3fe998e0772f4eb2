"""What the training can be told to do wrong, each as the real thing would do or say it."""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUIET = frozenset({"slow", "warnings", "full", "quota", "nan", "out-of-memory-text", "no-newline"})
"""Those that are no single moment, or note it themselves."""

FRIGHTENING = """\
node:41:52 [0] misc/ibvwrap.cc:279 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory, retrying
UserWarning: Can't initialize NVML
WARNING: CUDA out of memory in the benchmark of kernels, falling back to a smaller workspace
[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:12345 (errno: 97 - not supported).
Error in sys.excepthook was ignored; retrying the upload to the tracker: Connection refused
slurmstepd: error: Detected 0 oom-kill events in the test of the monitor
FutureWarning: `torch.cuda.amp.autocast` is deprecated, this will be an ERROR in a future release
"""


def due(args: argparse.Namespace, step: int, rank: int) -> bool:
    """Whether the fault is to happen now, to this rank, in this attempt, on this node."""
    if not args.fault or int(os.environ.get("HPC_LAUNCH_ATTEMPT", "1")) > args.fault_attempts:
        return False
    if args.fault_node and args.fault_node != os.uname().nodename:
        return False
    # What goes on, such as a slow rank, goes on to the end.
    here = step >= args.fault_step if args.fault in ("slow", "full") else step == args.fault_step
    return here and args.fault_rank in (rank, -1)


def before_meeting(args: argparse.Namespace, rank: int) -> None:
    """Faults of the start, which are said to be of step 0."""
    if not due(args, 0, rank):
        return
    if args.fault == "port":
        taken = socket.create_server(("", int(os.environ["MASTER_PORT"])))
        globals()["_kept"] = taken
    elif args.fault == "never-joins":
        time.sleep(600)
    elif args.fault == "interface":
        os.environ["GLOO_SOCKET_IFNAME"] = "eth9"
    elif args.fault == "import":
        import a_library_that_nobody_installed  # type: ignore[import-not-found]  # noqa: F401
    elif args.fault == "config":
        raise ValueError("unknown configuration key 'lerning_rate' in train.yaml; did you mean 'learning_rate'?")
    elif args.fault == "config-torn":
        from json import loads

        loads(Path(__file__).with_name("broken.json").read_text())
    elif args.fault == "data":
        Path("/scratch/corpus/train-00000.bin").open("rb")  # noqa: SIM115 - it is not there


def spoil_save(kind: str, folder: Path) -> None:
    """A save that the file system refuses half-way."""
    if kind == "quota":
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(folder / "state.json"))
    (folder / "optimizer.bin").write_bytes(bytes(64 * 2**20))


def _kill(args: argparse.Namespace, step: int, rank: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _end(args: argparse.Namespace, step: int, rank: int) -> str:
    return "end"


def _crash(args: argparse.Namespace, step: int, rank: int) -> None:
    ctypes.string_at(0)


def _raise(args: argparse.Namespace, step: int, rank: int) -> None:
    raise ValueError(f"rank {rank} cannot go on at step {step}: expected 4 columns, got 3")


def _cuda_oom(args: argparse.Namespace, step: int, rank: int) -> None:
    if args.micro_batch_size <= 2:
        return
    raise type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is "
        "free. Process 4242 has 38.26 GiB memory in use."
    )


def _host_oom(args: argparse.Namespace, step: int, rank: int) -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(2**20) * 16))
        time.sleep(0.01)


def _hang(args: argparse.Namespace, step: int, rank: int) -> None:
    time.sleep(100_000)


def _slow(args: argparse.Namespace, step: int, rank: int) -> None:
    time.sleep(1.5)


def _ecc(args: argparse.Namespace, step: int, rank: int) -> None:
    Path("/tmp/gpu-is-broken").touch()  # the stand-in for nvidia-smi reports it
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def _warn(args: argparse.Namespace, step: int, rank: int) -> None:
    sys.stderr.write(FRIGHTENING)
    sys.stderr.flush()


def _slurm_words(args: argparse.Namespace, step: int, rank: int) -> None:
    print(f"Note: node {os.uname().nodename} is down", flush=True)
    raise ValueError(f"rank {rank} cannot go on at step {step}: expected 4 columns, got 3")


def _exit_silently(args: argparse.Namespace, step: int, rank: int) -> None:
    time.sleep(5)
    os._exit(3)


def _torn(args: argparse.Namespace, step: int, rank: int) -> None:
    folder = args.folder / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("")
    os.kill(os.getpid(), signal.SIGKILL)


def _leave_one_behind(args: argparse.Namespace, step: int, rank: int) -> None:
    """A process that has left the session and the group, as daemons do, then a crash."""
    words = [sys.executable, "-S", "-c", "import time; time.sleep(100000)", "left-over"]
    subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _log_flood(args: argparse.Namespace, step: int, rank: int) -> None:
    for _ in range(4000):
        print("x" * 8000, flush=True)


def _nothing(args: argparse.Namespace, step: int, rank: int) -> None:
    """Done elsewhere: at the start, or while saving."""


FAULTS: dict[str, Callable[..., Any]] = {
    "kill": _kill,
    "segv": _crash,
    "raise": _raise,
    "swallowed": _raise,
    "cuda-oom": _cuda_oom,
    "host-oom": _host_oom,
    "hang": _hang,
    "slow": _slow,
    "ecc": _ecc,
    "slurm-words": _slurm_words,
    "exit-3": _exit_silently,
    "no-newline": _nothing,
    "interface": _nothing,
    "warnings": _warn,
    "torn": _torn,
    "leave-one-behind": _leave_one_behind,
    "log-flood": _log_flood,
    "early-end": _end,
    "nan": _nothing,
    "full": _nothing,
    "quota": _nothing,
    "port": _nothing,
    "never-joins": _nothing,
    "import": _nothing,
    "config": _nothing,
    "config-torn": _nothing,
    "data": _nothing,
}
