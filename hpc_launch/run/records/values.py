"""Values from files that a shell script wrote: taken for what they look like, None for whatever they are not."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any


def text(value: Any) -> str | None:
    """A non-empty string, or a whole number as one (job ids are written both ways)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and abs(value) < 10**18 else None


def whole(value: Any) -> int | None:
    """A whole number of at most 18 digits, also from its decimal text."""
    number = seconds(value) if not isinstance(value, str) or "T" not in value else None
    if number is None or number != int(number) or abs(number) >= 10**18:
        return None
    return int(number)


def seconds(value: Any) -> float | None:
    """Seconds since the epoch, or any finite number: from a number, its text, or an ISO 8601 time (UTC by default)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return _iso(value) if isinstance(value, str) else None
    return number if math.isfinite(number) else None


def flag(value: Any) -> bool:
    """Whether a value written by a shell means yes."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "0", "false", "no", "null")
    return bool(value)


def _iso(value: str) -> float | None:
    try:
        moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return moment.timestamp()
    except (ValueError, OverflowError):
        return None
