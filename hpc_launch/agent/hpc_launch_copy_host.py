"""Keeps a copy of a run on a host that shares no folders with the first one: receives it, and sends back what grows.

    hpc_launch_copy_host.py MARK MARK   sent by hpc_launch_copies.py, which holds the other end of its input and output

It prints the two parts of the mark as a line: what comes before it is from the login. Then both sides send frames: a
line with two numbers, as many bytes of JSON and as many bytes of data. An empty line only says that the sender lives.
The host gets the list of files, asks for those that it lacks, and checks each by its digest. From then on it sends the
growth of the files that it writes itself (`is_own`). It ends with its input, or after SILENT_S without any.

Self-contained: standard library of Python 3.6 or later.
"""

import hashlib
import json
import os
import re
import select
import signal
import stat
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

CHUNK = 1 << 18
"""Bytes of a file in one frame."""
MOST_DATA = 4 << 20
MOST_FIELDS = 64 << 20
"""Of the list of files, which a host gets. What a host sends has at most MOST_DATA."""
LOOK_S = 0.5
SILENT_S = 30.0
DIGESTS_S = 600
"""For the digests of the files that are here already."""
MOST_FILES = 10000
"""That a host sends back."""
MARKS = ("ending", "stop", "done", "agent/hang.json")
"""Files of the attempt whose appearance every host has to see."""
OUTPUT = "agent/last-output"
"""Its time is when a log of any host grew last: hpc_launch_watch_hang.py."""
FIRST_HOST = "agent/first-host"
"""What only those hosts see that share the folder with the first one."""
_OWN = (
    r"logs/node-%d(\.rank-[0-9]{1,7})?\.(log|exit|began)",
    r"logs/ranks-of-node-%d(/[A-Za-z0-9_][A-Za-z0-9._-]{0,150}){1,5}",
    r"agent/node-%d\.jsonl",
)
_SHARED = (r"agent/stacks/rank-[0-9]{1,7}\.txt", r"agent/nccl-rank-[0-9]{1,7}")

Fields = Dict[str, Any]


def is_own(path: str, node: int) -> bool:
    """Whether a file of the attempt folder is one that node `node` writes."""
    patterns = [pattern % node for pattern in _OWN] + list(_SHARED)
    return any(re.match(pattern + r"\Z", path) for pattern in patterns)


def frame(fields: Fields, data: bytes = b"") -> bytes:
    """What to send."""
    text = json.dumps(fields).encode()
    return b"%d %d\n" % (len(text), len(data)) + text + data


class Frames:
    """Puts frames together from what arrives."""

    def __init__(self, most_fields: int = MOST_DATA) -> None:
        self.rest = b""
        self.most_fields = most_fields

    def feed(self, data: bytes) -> Iterator[Tuple[Fields, bytes]]:
        """The frames that are complete now. Raises ValueError if it is something else."""
        self.rest += data
        while True:
            self.rest = self.rest.lstrip(b"\n")
            head = self.rest[:40].split(b"\n")[0]
            if len(head) == len(self.rest):
                if len(head) >= 40:
                    raise ValueError("no frame")
                return
            match = re.match(rb"([0-9]{1,9}) ([0-9]{1,9})\Z", head)
            if match is None:
                raise ValueError("no frame")
            length, size = int(match.group(1)), int(match.group(2))
            if length > self.most_fields or size > MOST_DATA:
                raise ValueError("a frame of %d and %d bytes" % (length, size))
            begin = len(head) + 1
            if len(self.rest) < begin + length + size:
                return
            text, body = self.rest[begin : begin + length], self.rest[begin + length : begin + length + size]
            self.rest = self.rest[begin + length + size :]
            yield dict(json.loads(text.decode("utf-8"))), body


class RefusedError(Exception):
    """This host cannot have the copy."""


def only_mine(folder: str, others: int) -> None:
    """Create a folder unless it is there. Raises RefusedError unless it is this user's, without these permissions, and
    OSError."""
    if not os.path.lexists(folder):
        os.makedirs(folder, 0o755)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & others:
        raise RefusedError("%s is not a folder that only you can change" % folder)
    above = os.path.dirname(os.path.realpath(folder))
    while True:
        status = os.stat(above)
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.getuid()) or (status.st_mode & 0o002 and not sticky):
            raise RefusedError("another user can replace %s" % above)
        if above == "/":
            return
        above = os.path.dirname(above)


def digest_of(path: str) -> str:
    """The SHA-256 of a file; '' if there is none."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(CHUNK), b""):
                found.update(block)
    except OSError:
        return ""
    return found.hexdigest()


def is_here(path: str, entry: List[Any]) -> bool:
    """Whether a file has this size and content."""
    if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) != entry[2]:
        return False
    return digest_of(path) == str(entry[3])


class Receiver:
    """The files that come from the first host. An entry is [path, mode, size, digest], or [path, link]."""

    def __init__(self, roots: List[Fields]) -> None:
        self.entries: List[Tuple[str, List[Any]]] = []
        self.part: Optional[Any] = None
        for root in roots:
            only_mine(root["path"], root["others"])
            for folder in root.get("folders", []):
                os.makedirs(os.path.join(root["path"], folder), 0o755, exist_ok=True)
            self.entries += [(os.path.join(root["path"], entry[0]), entry) for entry in root["entries"]]

    def lacking(self) -> List[int]:
        """The entries whose content is not here. Links are made at once."""
        found = []
        for number, (path, entry) in enumerate(self.entries):
            if not os.path.isdir(os.path.dirname(path)):
                os.makedirs(os.path.dirname(path), 0o755)
            if len(entry) == 2:
                if not (os.path.islink(path) and os.readlink(path) == entry[1]):
                    if os.path.lexists(path):
                        os.unlink(path)
                    os.symlink(entry[1], path)
            elif is_here(path, entry):
                os.chmod(path, entry[1])
            else:
                found.append(number)
        return found

    def take(self, number: int, data: bytes, last: bool) -> None:
        """A part of a file. Raises RefusedError if the file arrived with another content."""
        path, entry = self.entries[number]
        temporary = os.path.join(os.path.dirname(path), ".%s.hpc-launch" % os.path.basename(path)[:200])
        if self.part is None:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            self.part = open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self.part.write(data)
        if last:
            self.part.close()
            self.part = None
            os.chmod(temporary, entry[1])
            if digest_of(temporary) != entry[3]:
                os.unlink(temporary)
                raise RefusedError("%s did not arrive as it was sent" % path)
            os.rename(temporary, path)


class Sender:
    """What this host has written into the attempt folder, and sends to the first one."""

    def __init__(self, folder: str, node: int, known: Fields) -> None:
        self.folder, self.node = folder, node
        self.sent: Dict[str, Tuple[int, int]] = {path: (-1, int(at)) for path, at in known.items()}
        """For each file its inode, -1 if unknown, and how much of it was sent."""
        self.marks: Set[str] = set()
        self.output = self.output_time()

    def exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.folder, name))

    def output_time(self) -> float:
        try:
            return os.stat(os.path.join(self.folder, OUTPUT)).st_mtime
        except OSError:
            return 0.0

    def files(self) -> List[str]:
        """The files of this node: first those that are small and urgent."""
        found = []
        for name in ("logs", "agent"):
            for above, _, names in os.walk(os.path.join(self.folder, name)):
                found += [os.path.relpath(os.path.join(above, one), self.folder) for one in names]
                if len(found) > MOST_FILES:
                    break
        own = [path for path in found[:MOST_FILES] if is_own(path, self.node)]
        return sorted(
            own, key=lambda path: (not path.endswith((".exit", ".began")), not path.startswith("agent"), path)
        )

    def news(self, everything: bool) -> Iterator[bytes]:
        """Frames with what is new. A part of each file, or everything."""
        for name in MARKS:
            if name not in self.marks and self.exists(name):
                self.marks.add(name)
                with open(os.path.join(self.folder, name), "rb") as file:
                    yield frame({"is": "mark", "path": name}, file.read(4096))
        output = self.output_time()
        if output > self.output:
            self.output = output
            yield frame({"is": "output", "age": max(time.time() - output, 0.0)})
        for path in self.files():
            for _ in range(1 << 20 if everything else 4):
                found = self.growth(path, everything)
                if found is None:
                    break
                yield found

    def growth(self, path: str, everything: bool) -> Optional[bytes]:
        """The next part of a file, or None. An empty file may have its content soon: only with everything."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(os.path.join(self.folder, path), flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return None
                if status.st_size == 0 and not everything:
                    return None
                inode, at = self.sent.get(path, (-1, 0))
                again = inode not in (-1, status.st_ino) or status.st_size < at
                at = 0 if again else at
                if status.st_size == at and not again and path in self.sent:
                    self.sent[path] = status.st_ino, at
                    return None
                file.seek(at)
                data = file.read(CHUNK)
        except OSError:
            return None
        self.sent[path] = status.st_ino, at + len(data)
        return frame({"is": "growth", "path": path, "at": at}, data)

    def see(self, fields: Fields, data: bytes) -> None:
        """What the first host has seen on another one."""
        if fields["is"] == "output":
            at = time.time() - fields["age"]
            if at > self.output_time() and self.exists("agent"):
                with open(os.path.join(self.folder, OUTPUT), "a"):
                    os.utime(os.path.join(self.folder, OUTPUT), (at, at))
                self.output = self.output_time()
        elif fields["path"] in MARKS and fields["path"] not in self.marks:
            self.marks.add(fields["path"])
            try:
                with open(os.path.join(self.folder, fields["path"]), "xb") as file:
                    file.write(data)
            except FileExistsError:
                pass


class Host:
    """This end of the connection."""

    def __init__(self) -> None:
        self.frames = Frames(MOST_FIELDS)
        self.waiting: List[Tuple[Fields, bytes]] = []
        self.secret: Optional[str] = None
        signal.signal(signal.SIGALRM, self.on_silence)

    def on_silence(self, number: int, _: object) -> None:
        self.forget()
        os._exit(1)

    def forget(self) -> None:
        """Remove the job's environment, which may hold secrets."""
        try:
            if self.secret is not None:
                os.unlink(self.secret)
        except OSError:
            pass

    def send(self, data: bytes) -> None:
        while data:
            signal.alarm(int(SILENT_S))
            data = data[os.write(1, data) :]

    def receive(self, seconds: float) -> List[Tuple[Fields, bytes]]:
        """What has arrived, after at most `seconds`. Raises EOFError at the end of the input."""
        signal.alarm(int(SILENT_S))
        while select.select([0], [], [], seconds)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                raise EOFError
            found = list(self.frames.feed(data))
            if found:
                return found
            seconds = 0.0 if seconds < 1 else seconds
        return []

    def next(self) -> Tuple[Fields, bytes]:
        """The next frame."""
        while not self.waiting:
            self.waiting += self.receive(SILENT_S)
        return self.waiting.pop(0)

    def serve(self) -> None:
        """Receive the copy, then send what grows until the first host ends it."""
        asked, _ = self.next()
        folder = os.path.join(asked["roots"][0]["path"], asked["attempt"])
        if digest_of(os.path.join(folder, FIRST_HOST)) == asked["token"]:
            self.send(frame({"is": "shared"}))
            return
        try:
            signal.alarm(DIGESTS_S)
            if asked["workdir"] and not os.path.isdir(asked["workdir"]):
                raise RefusedError(
                    "it has no folder %s: create it, or set `code: {copy_workdir: true}`" % asked["workdir"]
                )
            receiver = Receiver(asked["roots"])
            lacking = receiver.lacking()
            self.send(frame({"is": "lacking"}, json.dumps(lacking).encode()))
            self.secret = os.path.join(folder, "environment")
            while lacking:
                fields, data = self.next()
                receiver.take(lacking[0], data, fields["last"])
                if fields["last"]:
                    lacking.pop(0)
        except (OSError, RefusedError) as error:
            self.send(frame({"is": "refused", "why": str(error)}))
            return
        sender = Sender(folder, asked["node"], asked["known"])
        self.send(frame({"is": "ready"}))
        last = False
        while not last:
            for fields, data in self.waiting + self.receive(LOOK_S):
                last = last or fields["is"] == "last"
                if not last:
                    sender.see(fields, data)
            self.waiting = []
            if sender.exists("logs/node-%d.began" % sender.node):
                self.forget()
            for one in sender.news(last):
                self.send(one)
        self.send(frame({"is": "end"}))


if __name__ == "__main__":
    os.umask(0o022)
    host = Host()
    host.send((sys.argv[1] + sys.argv[2] + "\n").encode())
    try:
        host.serve()
    except (EOFError, OSError):
        pass
    finally:
        host.forget()
