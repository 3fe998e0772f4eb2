"""Values as text for a person: durations, times, numbers, host lists, and anything foreign made harmless.

Names, reasons and log lines come from YAML files, other programs and other people's processes. Nothing of them may
move the cursor, colour the rest of the screen or retitle the window, so whatever is shown went through `clean` or
`log_lines` first.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Sequence

MOST_HOSTS = 60
"""Characters that a host list may take before only its beginning and the count are shown."""

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS and the like: titles, links
    r"|\x1b[ -/]*[0-~]"  # the short ones
)


def clean(value: object) -> str:
    """`value` on one line, with every character that is not simply printed shown as its escape."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def log_lines(text: str) -> list[str]:
    """A line of a log as lines for the terminal: colours are taken out, and what would overwrite gets its own line."""
    if text.isascii() and text.isprintable():
        return [text]
    plain = _ESCAPES.sub("", text)
    pieces = [piece for piece in re.split(r"[\r\n]+", plain) if piece] or [""]
    return [clean(piece.expandtabs()) for piece in pieces]


def duration(seconds: float) -> str:
    """`35 s`, `2 m 10 s`, `3 h 05 m`, `2 d 4 h`: never more than two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(seconds: float) -> str:
    """An age: `just now`, `4 s ago`, `13 m ago`; one unit is enough."""
    if seconds < 1:
        return "just now"
    unit, size = next((name, size) for name, size in _UNITS if seconds >= size)
    return f"{int(seconds / size)} {unit} ago"


def moment(when: float, now: float | None = None) -> str:
    """A time of day where it is today, else with its date; local time."""
    current = time.localtime(now)
    try:
        local = time.localtime(when)
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
    if local[:3] == current[:3]:
        return time.strftime("%H:%M:%S", local)
    return time.strftime("%Y-%m-%d %H:%M", local)


def number(value: float) -> str:
    """A measured value with four digits that count: `2.31`, `0.00012`, `1.2e+06`."""
    return f"{value:.4g}"


def pace(rate: float) -> str:
    """Steps a second, or seconds a step where that reads better."""
    return f"{number(rate)} steps/s" if rate >= 1 else f"{number(1 / rate)} s a step"


def hosts(names: Sequence[str]) -> str:
    """Host names in Slurm's short form, `n[1-4]`; a long list is cut and counted."""
    from hpc_launch.spec.hostlist import compress

    try:
        short = compress(names)
    except ValueError:
        short = ",".join(map(clean, names))
    return short if len(short) <= MOST_HOSTS else f"{cut(short, MOST_HOSTS)} ({len(names)} nodes)"


def cells(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns, with `…` at its end where something is missing."""
    if cells(text) <= width:
        return text
    taken, room = "", width - 1
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        taken += character
    return f"{taken}…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    """`text` with spaces behind it, up to `width` columns."""
    return text + " " * max(0, width - cells(text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
