"""Axes of charts: round numbers and times."""

from __future__ import annotations

import math

from hpc_launch.view.format_values import number

TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most so many round numbers from `low` to `high`."""
    span = high - low
    if not 0 < span / most < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    first = math.ceil(low / step)
    return [at * step for at in range(first, first + most + 2) if at * step <= high + 1e-9 * span]


def time_ticks(span: float, most: int = 8) -> list[float]:
    """At most about so many round times from 0 to `span` seconds."""
    days = 86400.0 * max(1, math.ceil(span / 86400 / most))
    step = next((float(step) for step in TIME_STEPS if span / step <= most), days)
    return [at * step for at in range(int(span / step) + 1)]


def time_label(seconds: float) -> str:
    """`0`, `30 s`, `1 m 30 s`, `15 m`, `2 h 30 m`, `3 d`: at most two units."""
    if not seconds:
        return "0"
    if seconds < 1:
        return f"{number(seconds)} s"
    left, words = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        words += [f"{left // size} {unit}"] if left >= size else []
        left %= size
    return " ".join(words[:2])
