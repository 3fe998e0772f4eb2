"""A word on stderr while something takes long, so that nothing is silent for more than a few seconds."""

from __future__ import annotations

import threading
from types import TracebackType

import click

FIRST_S = 3.0
AGAIN_S = 5.0


class Patience:
    """`with Patience("waiting for the scheduler"):` says so after 3 s and then every 5 s, with the time so far."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _speak(self) -> None:
        waited, pause = 0.0, FIRST_S
        while not self._done.wait(pause):
            waited += pause
            click.echo(f"{self._what} ({waited:.0f} s)", err=True)
            pause = AGAIN_S
