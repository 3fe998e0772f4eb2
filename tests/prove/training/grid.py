"""A small training for the grid of faults: it counts, meets the others each step, saves, and fails as it is told.

What the kernel can do is real: signals, codes, /dev/full, closed ports. What needs hardware or another machine is
raised as the library would raise it: errno and type are real, the moment is ours.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from meeting import Meeting, join  # type: ignore[import-not-found]

EVERY, PAUSE = 2, 0.2
STEP_OF = {"first step": 1, "middle": 3, "save": 4}
SHORT_S = 1.0


class Plan:
    """The fault of this process, if it is the one."""

    def __init__(self, args: argparse.Namespace) -> None:
        rank = int(os.environ.get("RANK", "0"))
        concerned = {"first": rank == 0, "other": rank == 1, "all": True}.get(args.who, False)
        first = os.environ.get("HPC_LAUNCH_ATTEMPT", "1") == "1"
        self.what, self.when, self.folder = args.what, args.when, args.folder
        self.mine = concerned and first

    def at(self, when: str, step: int = 0) -> None:
        """Fail if this is the moment."""
        if self.mine and when == self.when and step in (0, STEP_OF.get(when, 0)):
            kind, _, value = self.what.partition(":")
            FAULTS[kind](value, self.folder)


def send_signal(name: str, folder: Path) -> None:
    """The signal as the kernel or somebody else sends it."""
    sys.stdout.flush()
    os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
    time.sleep(30)


def end_with(code: str, folder: Path) -> None:
    """End without a word."""
    os._exit(int(code or 0))


def fail(name: str, folder: Path) -> None:
    """Raise, by doing what raises it where that is possible."""
    if name == "RecursionError":
        fail(name, folder)
    elif name == "JSONDecodeError":
        json.loads("{'a': 1}")
    elif name == "UnicodeDecodeError":
        b"\xff\xfe\xfa".decode("utf-8")
    elif name == "FileNotFoundError":
        (folder / "corpus" / "shard-00017.bin").read_bytes()
    elif name == "IsADirectoryError":
        folder.parent.read_bytes()
    elif name == "ModuleNotFoundError":
        __import__("a_package_that_is_not_installed")
    elif name == "ImportError":
        from collections import a_name_that_it_lacks  # type: ignore[attr-defined]  # noqa: F401
    elif name == "MemoryError":
        take_memory("", folder)
    elif name == "SystemExit":
        sys.exit("this configuration cannot be trained")
    elif name == "KeyError":
        dict[str, int]()["hidden_size"]
    elif name == "ZeroDivisionError":
        1 / 0  # noqa: B018
    elif name == "AttributeError":
        None.shape  # type: ignore[attr-defined]  # noqa: B018
    else:
        raise getattr(builtins, name)("expected 4 columns, got 3")


def lose_peer(name: str, folder: Path) -> None:
    """An error of a socket to another rank."""
    if name == "ECONNREFUSED":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5)
    elif name == "gaierror":
        socket.create_connection(("node-of-this-job.invalid", int(os.environ["MASTER_PORT"])), timeout=5)
    peer = socket.socket()
    number = getattr(errno, name)
    peer.close()
    raise OSError(number, os.strerror(number))


def download(name: str, folder: Path) -> None:
    """An error of a download."""
    if name == "timeout":
        server = socket.create_server(("127.0.0.1", 0))
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/model.bin", timeout=SHORT_S)
    elif name == "refused":
        urllib.request.urlopen("http://127.0.0.1:9/model.bin", timeout=SHORT_S)
    urllib.request.urlopen("http://models.invalid/model.bin", timeout=SHORT_S)


def lose_storage(name: str, folder: Path) -> None:
    """An error of a file."""
    if name == "ENOSPC":
        with Path("/dev/full").open("wb") as stream:
            stream.write(bytes(1 << 16))
    if name == "EMFILE":
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        kept = [Path("/dev/null").open("rb") for _ in range(64)]  # noqa: SIM115
        raise AssertionError(kept)
    number = getattr(errno, name)
    raise OSError(number, os.strerror(number), str(folder / "shard.bin"))


def hang(name: str, folder: Path) -> None:
    """Stop going on, in one of three ways."""
    if name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while name == "spin":
        pass
    time.sleep(100_000)


def take_memory(_: str, folder: Path) -> None:
    """More than the limit of this process."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def tear(_: str, folder: Path) -> None:
    """Half a checkpoint, then the end."""
    torn = folder / "step-4"
    torn.mkdir(parents=True, exist_ok=True)
    (torn / "state.json").write_text("")
    send_signal("KILL", folder)


FAULTS = {
    "signal": send_signal,
    "exit": end_with,
    "leave": end_with,
    "raise": fail,
    "peer": lose_peer,
    "download": download,
    "storage": lose_storage,
    "hang": hang,
    "memory": take_memory,
    "torn": tear,
}


def save(folder: Path, step: int, plan: Plan) -> None:
    """Each rank saves its part, the first one the state."""
    plan.at("save", step)
    if os.environ.get("RANK", "0") == "0":
        draft = folder / f".step-{step}"
        draft.mkdir(parents=True, exist_ok=True)
        (draft / "state.json").write_text(json.dumps({"step": step}))
        shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
        draft.rename(folder / f"step-{step}")


def train(args: argparse.Namespace, meeting: Meeting, plan: Plan) -> None:
    """The steps that are left."""
    begin = json.loads((args.start / "state.json").read_text())["step"] if args.start else 0
    for step in range(begin + 1, args.steps + 1):
        plan.at("first step", step)
        plan.at("middle", step)
        meeting.add([1.0])
        if meeting.rank == 0:
            print(f"step {step}/{args.steps} loss {1 / step:.4f}", flush=True)
        with args.record.open("a") as stream:
            stream.write(f"{os.environ.get('HPC_LAUNCH_ATTEMPT', '1')} {meeting.rank} {step}\n")
        if step % EVERY == 0:
            save(args.folder, step, plan)
        time.sleep(PAUSE)


def main() -> None:
    """Import, meet, train, end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", default="")
    parser.add_argument("--who", default="")
    parser.add_argument("--when", default="")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--from", dest="start", type=Path)
    parser.add_argument("--patience", type=float, default=60, help="seconds until a rank gives the others up")
    parser.add_argument("--local_rank")
    args = parser.parse_args()
    plan = Plan(args)
    plan.at("imports")
    plan.at("rendezvous")
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    train(args, Meeting() if alone else join("sockets", args.patience), plan)
    plan.at("end")


if __name__ == "__main__":
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    main()
