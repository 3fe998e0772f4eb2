"""The copy on one host that shares no folders with the first one: sends it, and writes what comes back.

Self-contained: standard library of Python 3.6 or later.
"""

import json
import os
import subprocess
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Set

from hpc_launch.agent.connection import shown
from hpc_launch.agent.copy_channel import ANSWER_S, Channel, LostError
from hpc_launch.agent.copy_protocol import (
    CHUNK,
    FIRST_HOST,
    MARKS,
    MOST_MARK,
    RefusedError,
    digest_of,
    frame,
    output_time,
)
from hpc_launch.agent.copy_store import Store
from hpc_launch.agent.fan_out import say

READY_S = 600.0
AGAIN_S = 5.0
"""Between a lost connection and the next one."""
LOOK_S = 0.5


class Copy:
    """What all hosts get."""

    def __init__(self, attempt: str, workdir: str, roots: List[Dict[str, Any]]) -> None:
        self.attempt, self.roots = attempt, roots
        self.workdir = workdir
        """What each host must have by itself, or ''."""
        self.token = digest_of(os.path.join(attempt, FIRST_HOST))
        self.places = [(root["path"], entry) for root in roots for entry in root["entries"]]

    def file(self, number: int) -> Iterator[bytes]:
        """The frames of a file. Raises OSError, IndexError."""
        path, entry = self.places[number]
        left = entry[2]
        with open(os.path.join(path, entry[0]), "rb") as file:
            while True:
                data = file.read(min(CHUNK, left))
                left -= len(data)
                last = not data or left == 0
                yield frame({"is": "file", "last": last}, data)
                if last:
                    return


class HostCopy(threading.Thread):
    """The copy on one host: a thread that connects again when the connection is lost."""

    def __init__(self, copy: Copy, host: str, node: int, turn: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self.copy, self.host, self.node, self.turn = copy, host, node, turn
        self.store = Store(copy.attempt, node)
        self.ready, self.done = threading.Event(), threading.Event()
        self.asked = threading.Event()
        """Whether this connection has to end: for the next one, or, with `finish`, for good."""
        self.finish = False
        self.shared = False
        self.problem = ""
        self.channel: Optional[Channel] = None

    def run(self) -> None:
        while not self.done.is_set():
            last = self.finish
            try:
                with self.turn:
                    channel = self.channel = Channel(self.host)
                    self.shared = self.send(channel)
                self.ready.set()
                if self.shared:
                    break
                self.follow(channel)
                if self.finish:
                    break
                self.asked.clear()
            except (
                subprocess.SubprocessError,
                OSError,
                ValueError,
                LookupError,
                TypeError,
                RecursionError,
                LostError,
                RefusedError,
            ) as error:
                problem = self.why(error)
                if not self.ready.is_set() or last:
                    self.problem = problem
                    break
                if not self.problem:
                    say("%s: what it writes cannot be fetched now: %s" % (self.host, problem))
                self.problem = problem
                self.asked.wait(AGAIN_S)
            finally:
                if self.channel is not None:
                    self.channel.close()
                    self.channel = None
        self.done.set()

    def why(self, error: Exception) -> str:
        """What ended the connection."""
        text = str(error)
        if isinstance(error, LostError) and self.channel is not None:
            text += self.channel.last_words()
        return str(shown(text[:400].encode("utf-8", "replace")))

    def send(self, channel: Channel) -> bool:
        """Start the host's end and give it its copy. Returns whether it shares this folder and needs none."""
        channel.open()
        copy = self.copy
        attempt = os.path.relpath(copy.attempt, copy.roots[0]["path"])
        # A host that had its copy only sends: what is here has changed since.
        roots = [dict(root, entries=[]) for root in copy.roots] if self.ready.is_set() else copy.roots
        asked = {"roots": roots, "attempt": attempt, "node": self.node, "token": copy.token}
        channel.write(frame(dict(asked, known=self.store.sizes, workdir=copy.workdir)))
        fields, data = channel.next(READY_S)
        if fields["is"] == "shared":
            return True
        for number in json.loads(data.decode()):
            for part in copy.file(int(number)):
                channel.write(part)
        channel.next(READY_S)
        return False

    def follow(self, channel: Channel) -> None:
        """Write what the host sends, and let it know what all hosts must see, until the end."""
        told: Set[str] = set()
        output, beat, last = output_time(self.copy.attempt), 0.0, False
        while True:
            channel.feed(channel.read(LOOK_S))
            now = time.monotonic()
            for fields, body in channel.waiting:
                if fields["is"] == "end" and last:
                    self.problem = ""
                    channel.ssh.wait(ANSWER_S)  # it removes the environment last, which the next one may bring
                    return
                self.store.take(fields, body)
            channel.waiting = []
            if now - beat < LOOK_S and not (self.asked.is_set() and not last):
                continue
            beat = now
            news = b"\n"
            for name in MARKS:
                path = os.path.join(self.copy.attempt, name)
                if name not in told and os.path.isfile(path):
                    told.add(name)
                    with open(path, "rb") as file:
                        news += frame({"is": "mark", "path": name}, file.read(MOST_MARK))
            grown = output_time(self.copy.attempt)
            if grown > output + LOOK_S:
                output = grown
                news += frame({"is": "output", "age": max(time.time() - grown, 0.0)})
            if self.asked.is_set() and not last:
                last = True
                news += frame({"is": "last"})
            channel.write(news)
