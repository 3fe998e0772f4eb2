"""A webhook on this machine that behaves well or badly, by the path of its address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cluster.faults import wait_until


class Receiver:
    """What was received, and the address of each behaviour."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.messages: list[tuple[str, dict[str, str], str]] = []
        """Path, headers, body."""
        self.open = threading.Event()
        """Ends requests that wait."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}/token-in-the-address"

    def bodies(self, path: str = "ok") -> list[str]:
        return [body for at, _, body in self.messages if at.startswith(f"/{path}/")]

    def wait_for(self, count: int, path: str = "ok", seconds: float = 30.0) -> list[str]:
        wait_until(lambda: len(self.bodies(path)) >= count, seconds, lambda: str(self.messages))
        return self.bodies(path)


@contextmanager
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found.messages.append((self.path, dict(self.headers), body))
            how = self.path.split("/")[1]
            with suppress(OSError):
                getattr(self, f"be_{how}")()

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, code: int, *headers: tuple[str, str]) -> None:
            self.send_response(code)
            for header in headers:
                self.send_header(*header)
            self.end_headers()

        def be_ok(self) -> None:
            self.answer(200)
            self.wfile.write(b"ok")

        def be_broken(self) -> None:
            self.answer(503)

        def be_elsewhere(self) -> None:
            self.answer(307, ("Location", found.url("ok")))

        def be_silent(self) -> None:
            found.open.wait(30)

        def be_dripping(self) -> None:
            while not found.open.wait(0.1):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")

        def be_huge(self) -> None:
            self.answer(200)
            while not found.open.is_set():
                self.wfile.write(bytes(1 << 16))

        def be_garbage(self) -> None:
            self.wfile.write(b"\0\xff" * 100)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        found.open.set()
        server.shutdown()
        server.server_close()
        thread.join()
