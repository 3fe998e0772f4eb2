"""Terminal properties of a stream (width, colour), safe output, and notices during long waits."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from hpc_launch.job.shell_text import visible

FIRST_NOTICE_S = 2.0
"""Seconds before the first notice."""

REPEAT_NOTICE_S = 5.0
"""Seconds between further notices."""

_STATES = {
    "green": "COMPLETED",
    "cyan": "RUNNING STARTING ENDING",
    "yellow": "SUBMITTING PENDING RETRYING",
    "red": "STUCK FAILED STOPPED",
    "magenta": "CANCELLED UNKNOWN",
}
STATE_COLOURS = {state: colour for colour, states in _STATES.items() for state in states.split()}
"""Colour by run state, with names that click and rich share. The state is always shown as text, too."""


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can move the cursor."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except ValueError:  # closed
        return False


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour `stream`: it is a terminal and NO_COLOR is unset or empty (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def painted(text: str, state: str, *, colour: bool) -> str:
    """`text` in the colour of a run state if `colour` is set."""
    return click.style(text, fg=STATE_COLOURS.get(state), bold=True) if colour else text


def tolerant(stream: TextIO) -> TextIO:
    """`stream`, reconfigured to escape characters that its encoding lacks instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def write_lines(lines: list[str], stream: TextIO | None = None) -> None:
    """Write lines to `stream` (default: stdout). Raises BrokenPipeError if the reader is gone."""
    out = tolerant(stream or sys.stdout)
    out.write("".join(f"{line}\n" for line in lines))
    out.flush()


@contextmanager
def waiting_notice(what: str) -> Iterator[Callable[[str], None]]:
    """Print `what` on stderr if the block takes longer than FIRST_NOTICE_S, and again every REPEAT_NOTICE_S.

    The block may call the function that it gets with what it waits for from then on.
    """
    done = threading.Event()
    current = [what]

    def notify() -> None:
        waited, pause = 0.0, FIRST_NOTICE_S
        while not done.wait(pause):
            waited += pause
            click.echo(f"{visible(current[0])} … ({waited:.0f} s)", err=True)
            pause = REPEAT_NOTICE_S

    thread = threading.Thread(target=notify, daemon=True)
    thread.start()

    def change(text: str) -> None:
        current[0] = text

    try:
        yield change
    finally:
        done.set()
        thread.join()
