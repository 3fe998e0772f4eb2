"""Read the time of a log line, in the formats that training logs use."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone

_MONTHS = {name: number for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
_ISO = re.compile(r"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_US = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(20\d\d) (\d\d):(\d\d):(\d\d)")
_GLOG = re.compile(r"(?:^|\[)[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SYSLOG = re.compile(
    r"(?:^|[\[ ])(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)"
    r"(?: (?:[A-Z]{3,4} )?(20\d\d))?"
)
HEAD = 120
"""How many characters of a line are searched for a time."""


def line_time(text: str, year: int | None = None) -> float | None:
    """The time in `text` in seconds since the epoch, local time if it has no zone; None if there is none.

    Args:
        text: A line.
        year: What to take for forms without a year (glog, syslog); without it these give None.
    """
    head = text[:HEAD]
    if ":" not in head:
        return None
    try:
        if match := _ISO.search(head):
            return _iso(match)
        if match := _US.search(head):
            month, day, whole, hour, minute, second = map(int, match.groups())
            return _local((whole, month, day, hour, minute, second))
        if (match := _SYSLOG.search(head)) and match[1].lower() in _MONTHS:
            whole = int(match[6]) if match[6] else year or 0
            return _local((whole, _MONTHS[match[1].lower()], *map(int, match.groups()[1:5]))) if whole else None
        if match := _GLOG.search(head):
            return _local((year, *map(int, match.groups()[:5]))) + _fraction(match[6]) if year else None
    except (ValueError, OverflowError, OSError):
        return None
    return None


def year_of(stamp: float) -> int:
    """The year, for formats without one."""
    return datetime.fromtimestamp(stamp).astimezone().year


def _local(parts: tuple[int, ...]) -> float:
    """Seconds since the epoch for a local date and time.

    Raises ValueError for an invalid date.
    """
    datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc, arg-type]
    return time.mktime((*parts, 0, 0, -1))  # type: ignore[arg-type]


def _iso(match: re.Match[str]) -> float:
    parts = tuple(map(int, match.groups()[:6]))
    if match[8] is None:
        return _local(parts) + _fraction(match[7])
    moment = datetime(*parts, tzinfo=_zone(match[8]))  # type: ignore[misc, arg-type]
    return moment.timestamp() + _fraction(match[7])


def _zone(text: str) -> timezone:
    if text == "Z":
        return timezone.utc
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0
