"""A headless Chromium that opens one page at a time, driven by the DevTools protocol through a pipe."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
ANSWER_S = 60.0
_PROBLEMS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


@dataclass
class Browser:
    """A tab of a browser, with what it reported since the last page was opened."""

    _to: IO[bytes]
    _from: IO[bytes]
    problems: list[str] = field(default_factory=list)
    """Messages of the console, and exceptions."""
    requests: list[str] = field(default_factory=list)
    _session: str = ""
    _loaded: bool = False
    _rest: bytes = b""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def attach(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, *, width: int, dark: bool) -> None:
        """Load a page and wait until it is there. Width in CSS pixels."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.problems.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._read()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command. Raises RuntimeError if it is an error."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while (answer := self._read()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        """The next message, noted if it is an event. Raises TimeoutError."""
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._from.fileno(), 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method = message.get("method")
        if method == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif method in _PROBLEMS:
            self.problems.append(json.dumps(message["params"]))
        self._loaded |= method == "Page.loadEventFired"
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a Chromium without a window, and stop it in the end."""
    if PROGRAM is None:
        raise FileNotFoundError("no Chromium")
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        words = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        words += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"]
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        with os.fdopen(ours_out, "wb") as to, os.fdopen(ours_in, "rb", buffering=0) as source:
            tab = Browser(to, source)
            try:
                tab.attach()
                yield tab
            finally:
                process.kill()
                process.wait()
