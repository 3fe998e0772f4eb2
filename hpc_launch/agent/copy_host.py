"""Keeps a copy of a run on a host that shares no folders with the first one: receives it, and sends back what grows.

    MARK MARK   sent by copy_connection.py, which holds the other end of its input and output

It prints the two parts of the mark as a line: what comes before it is from the login. Then both sides send frames
(copy_protocol.py). The host gets the list of files, asks for those that it lacks, and checks each by its
digest. From then on it sends the growth of the files that it writes itself. It ends with its input, or after SILENT_S
without any.

Self-contained: standard library of Python 3.6 or later.
"""

import json
import os
import select
import signal
import sys
from typing import List, Optional, Tuple

from hpc_launch.agent.copy_protocol import FIRST_HOST, MOST_FIELDS, Fields, Frames, RefusedError, digest_of, frame
from hpc_launch.agent.copy_receive import Receiver
from hpc_launch.agent.copy_send import Sender

LOOK_S = 0.5
SILENT_S = 30.0
DIGESTS_S = 600
"""For the digests of the files that are here already."""


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


def main() -> None:
    """Serve until the input ends."""
    os.umask(0o022)
    host = Host()
    host.send((sys.argv[1] + sys.argv[2] + "\n").encode())
    try:
        host.serve()
    except (EOFError, OSError):
        pass
    finally:
        host.forget()
