"""A server on loopback that sends a file in parts, cuts connections, and counts who asks for what."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """`cuts`: after how many bytes each of the next answers ends. `ranges`: whether it sends parts at all."""

    content: bytes
    tag: str = '"one"'
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    delay: float = 0.0
    status: int = 200
    asked: list[str | None] = field(default_factory=list)
    """The `Range` of each request, None for all of it."""
    url: str = ""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None:
            """Nothing: the test looks at `asked`."""

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append(wanted)
            if server.status != 200:
                self.send_error(server.status)
                return
            at = int(re.match(r"bytes=(\d+)-", wanted)[1]) if wanted else 0  # type: ignore[index]
            if not server.ranges or self.headers.get("If-Range") not in (None, server.tag):
                at = 0
            if at and at >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if at else 200)
            self.send_header("ETag", server.tag)
            self.send_header("Content-Length", str(len(server.content) - at))
            if at:
                self.send_header("Content-Range", f"bytes {at}-{len(server.content) - 1}/{len(server.content)}")
            self.end_headers()
            threading.Event().wait(server.delay)
            end = at + server.cuts.pop(0) if server.cuts else len(server.content)
            self.wfile.write(server.content[at:end])

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}/images/small.sif"
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
