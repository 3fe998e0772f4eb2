"""Serve a checkpoint: GET /health, and GET /predict?x=0.5."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

MODEL = json.loads(Path(sys.argv[1]).read_text())


class Handler(BaseHTTPRequestHandler):
    """Answers with the prediction of the model."""

    def do_GET(self) -> None:
        x = float(parse_qs(urlsplit(self.path).query).get("x", ["0"])[0])
        data = json.dumps(MODEL["slope"] * x + MODEL["intercept"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    HTTPServer(("", int(sys.argv[2])), Handler).serve_forever()
