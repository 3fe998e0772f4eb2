"""Whether a role is ready: it answers by HTTP or TCP, its log says so, or its Ray cluster has all its resources.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import re
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Any, Dict, Optional

EVERY_S = 0.5
"""Between two questions."""
ANSWER_S = 2.0
"""For an answer."""
TAIL_BYTES = 1 << 16


class Probe:
    """The question that a role has to answer. `answer` is the last one, for people. Nobody waits for it: a role that is
    silent, or a file server, must not keep the end of others from being seen."""

    def __init__(self, ready: Optional[Dict[str, Any]], host: str, port: int, folder: str) -> None:
        self.ready, self.host, self.port = ready or {}, host, port
        self.within = self.ready.get("within", 600)
        self.log = os.path.join(folder, "logs", "node-0.log")
        self.ray = os.path.join(folder, "ray.ready")
        self.read, self.rest = 0, ""
        self.answer, self.asked, self.found = "not asked yet", 0.0, False
        self.thread: Optional[threading.Thread] = None

    def is_ready(self) -> bool:
        """Whether an answer was good. Asks again, if it is time to."""
        waits = self.thread is not None and self.thread.is_alive()
        if not (self.found or waits or time.monotonic() - self.asked < EVERY_S):
            self.asked = time.monotonic()
            self.thread = threading.Thread(target=self.ask, daemon=True)
            self.thread.start()
        return self.found

    def ask(self) -> None:
        self.found = self.asks()

    def asks(self) -> bool:
        """Ask once. A role that says nothing of `ready` is ready when its log exists."""
        if "http" in self.ready:
            return self.asks_http(self.ready["http"])
        if "tcp" in self.ready:
            return self.asks_tcp()
        if "log" in self.ready:
            return self.reads_log(self.ready["log"])
        path = self.ray if "ray" in self.ready else self.log
        self.answer = "its Ray cluster is not complete yet" if "ray" in self.ready else "no output yet"
        return os.path.exists(path) or os.path.exists(self.log.replace("node-0.log", "node-0.rank-0.log"))

    def asks_http(self, path: str) -> bool:
        connection = HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            self.answer = "GET %s: %s" % (path, str(error) or type(error).__name__)
            return False
        finally:
            connection.close()
        self.answer = "GET %s: status %d" % (path, status)
        return 200 <= status < 300

    def asks_tcp(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=ANSWER_S).close()
        except OSError as error:
            self.answer = "port %d: %s" % (self.port, error)
            return False
        return True

    def reads_log(self, pattern: str) -> bool:
        """Whether a line that is new in the log matches."""
        self.answer = "no line matches %r" % pattern
        try:
            with open(self.log, "rb") as file:
                file.seek(self.read)
                data = file.read(TAIL_BYTES)
        except OSError:
            return False
        self.read += len(data)
        lines = (self.rest + data.decode("utf-8", "replace")).split("\n")
        self.rest = lines.pop()[-4096:]
        return any(re.search(pattern, line[:4096]) for line in lines)
