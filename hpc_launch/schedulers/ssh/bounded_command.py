"""Run a command that talks to a host that need not be trusted: its time, output and memory are bounded."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence

MAX_BEFORE = 64 << 20
"""Bytes that a host may print at login. They are dropped."""
MAX_ANSWER = 4 << 20
MAX_MESSAGES = 64 << 10
"""Bytes that are kept: the beginning of the answer, and the end of the messages."""
_CHUNK = 1 << 16
_POLL_S = 0.2


class BoundedCommand:
    """A command whose answer begins after a mark.

    Attributes:
        found: Whether the mark was printed.
        answer: What followed it; before it was found, the end of what was printed.
        messages: The end of the standard error.
        too_long: Whether the command was killed because it printed too much.
    """

    def __init__(self, words: Sequence[str], text: bytes, mark: bytes) -> None:
        self.found, self.too_long, self.answer, self.messages = False, False, b"", b""
        self._mark, self._before, self._left = mark, 0, memoryview(text)
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def run(self, timeout_s: float) -> int:
        """Until it has ended. Returns its exit code. Raises TimeoutExpired."""
        end = time.monotonic() + timeout_s
        with self._process as process, selectors.DefaultSelector() as selector:
            try:
                self._register(selector)
                # A process that outlives the command, such as ssh's ControlMaster, may keep its outputs open.
                while selector.get_map():
                    if time.monotonic() > end:
                        raise subprocess.TimeoutExpired(process.args, timeout_s)
                    ended = process.poll() is not None  # before the look at its outputs, which are then complete
                    ready = selector.select(0 if ended else _POLL_S)
                    for key, _ in ready:
                        self._transfer(selector, key)
                    if ended and not ready:
                        break
                    if self.too_long:
                        process.kill()
                return process.wait(max(end - time.monotonic(), 0.1))
            except BaseException:
                process.kill()
                raise

    def _register(self, selector: selectors.BaseSelector) -> None:
        streams = (
            (self._process.stdin, selectors.EVENT_WRITE),
            (self._process.stdout, selectors.EVENT_READ),
            (self._process.stderr, selectors.EVENT_READ),
        )
        for stream, event in streams:
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, event)

    def _transfer(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        """Write or read what is possible now."""
        try:
            if key.events & selectors.EVENT_WRITE:
                self._left = self._left[os.write(key.fd, self._left[:_CHUNK]) :]
                over = not self._left
            else:
                data = os.read(key.fd, _CHUNK)
                over = not data
                self._keep(data) if key.fileobj is self._process.stdout else self._keep_message(data)
        except BlockingIOError:
            return
        except OSError:
            over = True
        if over:
            selector.unregister(key.fileobj)
            if key.events & selectors.EVENT_WRITE and self._process.stdin is not None:
                self._process.stdin.close()

    def _keep(self, data: bytes) -> None:
        if self.found:
            self.answer += data[: max(MAX_ANSWER - len(self.answer), 0)]
            self.too_long = self.too_long or len(self.answer) >= MAX_ANSWER
            return
        self.answer += data
        self._before += len(data)
        _, mark, rest = self.answer.partition(self._mark)
        if mark:
            self.found, self.answer = True, rest
        else:
            self.answer = self.answer[-_CHUNK:]
            self.too_long = self._before > MAX_BEFORE

    def _keep_message(self, data: bytes) -> None:
        self.messages = (self.messages + data)[-MAX_MESSAGES:]
