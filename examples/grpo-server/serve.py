"""A model server: samples from the policy, and takes new weights.

GET /health; POST /sample {"count": 16, "length": 8}; POST /weights [[…]]
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from policy import Policy, sample

POLICY = Policy()


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON."""

    def do_GET(self) -> None:
        self.answer({"ok": True})

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/weights":
            POLICY.logits.data = torch.tensor(given)
            self.answer({"ok": True})
        else:
            self.answer(sample(POLICY, given["count"], given["length"]).tolist())

    def answer(self, value: object) -> None:
        """Send a value."""
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing about each request."""


def main() -> None:
    """Serve until the job ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server = ThreadingHTTPServer(("", parser.parse_args().port), Handler)
    print("serving", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
