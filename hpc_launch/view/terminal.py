"""What the stream at hand is: a terminal or not, how wide, in colour or not; and a word while something takes long."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

PATIENCE_S = 2.0
"""After so long without an answer a person is told what is being waited for."""

AGAIN_S = 5.0
"""And again each time so much later: nothing is silent for longer."""

STATE_COLOURS = {
    "COMPLETED": "green",
    "RUNNING": "cyan",
    "STARTING": "cyan",
    "ENDING": "cyan",
    "SUBMITTING": "yellow",
    "PENDING": "yellow",
    "RETRYING": "yellow",
    "STUCK": "red",
    "FAILED": "red",
    "STOPPED": "red",
    "CANCELLED": "magenta",
    "UNKNOWN": "magenta",
}
"""By state of a run; click and rich know the same names. The state's word always stands beside its colour."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person may be looking at `stream` with something that can move a cursor."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except ValueError:  # closed
        return False


def wants_colour(stream: TextIO) -> bool:
    """Whether colour may go to `stream`: a terminal, and no NO_COLOR (no-color.org: set, and not empty)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def columns() -> int:
    """The width of the terminal, `$COLUMNS` first."""
    return shutil.get_terminal_size().columns


def painted(text: str, state: str, *, colour: bool) -> str:
    """`text` in the colour of a run's state, where colour is wanted."""
    return click.style(text, fg=STATE_COLOURS.get(state), bold=True) if colour else text


def tolerant(stream: TextIO) -> TextIO:
    """`stream` itself, made to write an escape for what its encoding lacks rather than to fail over it."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def write_lines(lines: list[str], stream: TextIO | None = None) -> None:
    """Write lines to `stream`, by default stdout. Raises BrokenPipeError where nobody reads any more."""
    out = tolerant(stream or sys.stdout)
    out.write("".join(f"{line}\n" for line in lines))
    out.flush()


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on stderr that `what` is going on, if it still is after PATIENCE_S seconds, and again every AGAIN_S."""
    done = threading.Event()

    def speak() -> None:
        waited, pause = 0.0, PATIENCE_S
        while not done.wait(pause):
            waited += pause
            click.echo(f"{what} … ({waited:.0f} s)", err=True)
            pause = AGAIN_S

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
