"""What the training can be told to do wrong, each as the real thing would do or say it."""

from __future__ import annotations

import argparse
import ctypes
import errno
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ELSEWHERE = frozenset({"full", "quota", "nan", "no-newline"})
"""Those that the training itself does when it saves or writes its log."""
QUIET = ELSEWHERE | {"slow", "warnings"}
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


def happen(args: argparse.Namespace, step: int, rank: int) -> bool:
    """Let it happen; whether the training is to end then. Step 0 is before the ranks meet."""
    if args.fault not in ELSEWHERE:
        getattr(Fault(args, step, rank), args.fault.replace("-", "_"))()
    return bool(args.fault == "early-end")


def spoil_save(kind: str, folder: Path) -> None:
    """A save that the file system refuses half-way."""
    if kind == "quota":
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(folder / "state.json"))
    (folder / "optimizer.bin").write_bytes(bytes(64 * 2**20))


class Fault:
    """The faults, by their names; some of the start, which are said to be of step 0."""

    def __init__(self, args: argparse.Namespace, step: int, rank: int) -> None:
        self.args, self.step, self.rank = args, step, rank

    def port(self) -> None:
        globals()["_kept"] = socket.create_server(("", int(os.environ["MASTER_PORT"])))

    def never_joins(self) -> None:
        time.sleep(600)

    def interface(self) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth9"

    def missing_library(self) -> None:
        importlib.import_module("a_library_that_nobody_installed")

    def config(self) -> None:
        raise ValueError("unknown configuration key 'lerning_rate' in train.yaml; did you mean 'learning_rate'?")

    def config_torn(self) -> None:
        json.loads(Path(__file__).with_name("broken.json").read_text())

    def data(self) -> None:
        Path("/scratch/corpus/train-00000.bin").read_bytes()

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def early_end(self) -> None:
        """Without a word."""

    def segv(self) -> None:
        ctypes.string_at(0)

    def exception(self) -> None:
        raise ValueError(f"rank {self.rank} cannot go on at step {self.step}: expected 4 columns, got 3")

    def swallowed(self) -> None:
        self.exception()

    def cuda_oom(self) -> None:
        if self.args.micro_batch_size <= 2:
            return
        raise type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB "
            "is free. Process 4242 has 38.26 GiB memory in use."
        )

    def host_oom(self) -> None:
        kept = []
        while True:
            kept.append(bytearray(os.urandom(2**20) * 16))
            time.sleep(0.01)

    def hang(self) -> None:
        time.sleep(100_000)

    def slow(self) -> None:
        time.sleep(1.5)

    def ecc(self) -> None:
        Path("/tmp/gpu-is-broken").touch()  # the stand-in for nvidia-smi reports it
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    def warnings(self) -> None:
        sys.stderr.write(FRIGHTENING)
        sys.stderr.flush()

    def slurm_words(self) -> None:
        print(f"Note: node {os.uname().nodename} is down", flush=True)
        self.exception()

    def exit_3(self) -> None:
        time.sleep(5)
        os._exit(3)

    def torn(self) -> None:
        folder: Path = self.args.folder / f"step-{self.step}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("")
        self.kill()

    def leave_one_behind(self) -> None:
        """A process that has left the session and the group, as daemons do, then a crash."""
        words = [sys.executable, "-S", "-c", "import time; time.sleep(100000)", "left-over"]
        subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        self.kill()

    def log_flood(self) -> None:
        for _ in range(4000):
            print("x" * 8000, flush=True)
