"""Format values for the terminal: durations, times, numbers, host lists, and untrusted text with escapes removed.

Names, reasons and log lines come from YAML files, other programs and other users' processes. They must not move the
cursor, colour the screen or retitle the window, so all such text passes through `clean` or `log_lines` before it is
shown.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

from hpc_launch.job.shell_text import without_escapes

MAX_HOSTS_WIDTH = 60
"""Maximum length of a host list in characters; a longer one is cut and counted."""

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def clean(value: object) -> str:
    """`value` on one line, with non-printable characters escaped."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def log_lines(text: str) -> list[str]:
    """A log line as lines for the terminal: escapes are removed, and carriage returns start a new line."""
    if text.isascii() and text.isprintable():
        return [text]
    return [clean(piece) for piece in without_escapes(text)]


def duration(seconds: float) -> str:
    """`35 s`, `2 m 10 s`, `3 h 05 m`, `2 d 4 h`: at most two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(seconds: float) -> str:
    """An age in one unit: `just now`, `4 s ago`, `13 m ago`."""
    if seconds < 1:
        return "just now"
    unit, size = next((name, size) for name, size in _UNITS if seconds >= size)
    return f"{int(seconds / size)} {unit} ago"


def clock_time(when: float, now: float | None = None) -> str:
    """Local time: the time of day for today, else with the date."""
    current = time.localtime(now)
    try:
        local = time.localtime(when)
    except (OverflowError, ValueError, OSError):
        return "unknown time"
    if local[:3] == current[:3]:
        return time.strftime("%H:%M:%S", local)
    return time.strftime("%Y-%m-%d %H:%M", local)


def number(value: float) -> str:
    """A measured value with four significant digits: `2.31`, `0.00012`, `1.2e+06`."""
    return f"{value:.4g}"


def step_rate(rate: float) -> str:
    """Steps per second, or seconds per step if that is more than one."""
    return f"{number(rate)} steps/s" if rate >= 1 else f"{number(1 / rate)} s/step"


def share(value: float) -> str:
    """A share from 0 to 1 in percent: `98.7%`. Never rounded up to 100% or down to 0%."""
    percent = 100 * value
    if 0 < percent < 0.1:
        return "<0.1%"
    return ">99.9%" if 99.9 < percent < 100 else f"{percent:.3g}%" if percent >= 10 else f"{percent:.2g}%"


def hosts(names: Sequence[str]) -> str:
    """Host names in Slurm's compressed form, `n[1-4]`; a long list is cut and counted."""
    from hpc_launch.job.hostlist import compress

    try:
        short = compress(names)
    except ValueError:
        short = ",".join(map(clean, names))
    return short if len(short) <= MAX_HOSTS_WIDTH else f"{cut(short, MAX_HOSTS_WIDTH)} ({len(names)} nodes)"


def display_width(text: str) -> int:
    """Number of terminal columns that `text` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns, ending in `…` if it was cut."""
    if display_width(text) <= width:
        return text
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    """`text` padded with spaces to `width` columns."""
    return text + " " * max(0, width - display_width(text))


def aligned(rows: Sequence[Sequence[str]], *, empty: bool = True) -> list[str]:
    """Rows as lines with aligned columns, without control characters. Without `empty`, only columns with a value.

    The first row has the headers; shorter rows end with empty columns.
    """
    columns = [list(map(clean, column)) for column in zip_longest(*rows, fillvalue="")]
    columns = [column for column in columns if empty or any(column[1:])]
    widths = [max(map(display_width, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return ["  ".join(pad(text, width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
