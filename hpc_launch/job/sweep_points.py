"""The points of a sweep: which `--set` options each of them adds to the job. Pure."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

from msgspec import Struct

from hpc_launch.base.patterns import SECRET_NAME
from hpc_launch.job.document import KeyPath, flow_yaml
from hpc_launch.job.group_keys import RandomRange, RandomValues, Sweep

MAX_POINTS = 10_000
"""Points of one sweep."""

MOST = 1e300
"""The largest number in a range."""

FIXED_KEYS = frozenset({"name", "site", "queue", "account", "run_dir", "code", "secrets", "sweep", "notify"})
"""Keys that all points share: they say where the sweep runs and where its files are."""

_DRAWS = 100
"""Draws per random point before its range counts as exhausted."""

Written = Mapping[KeyPath, str]
Values = tuple[tuple[str, str], ...]
"""Keys with the text of their values, as in `--set KEY=VALUE`."""


class SweepPoint(Struct, frozen=True):
    """One point: its number, from 0, and its values."""

    number: int
    values: Values

    @property
    def sets(self) -> tuple[str, ...]:
        """The point as `--set` options."""
        return tuple(f"{key}={text}" for key, text in self.values)


class SweepFault(Exception):
    """Why a sweep has no valid points. `path` is the place below `sweep`."""

    def __init__(self, message: str, path: KeyPath, hint: str) -> None:
        super().__init__(message)
        self.path, self.hint = path, hint


def count_points(sweep: Sweep) -> int:
    """The number of points before exclusions, without making them."""
    sizes = [len(values) for values in sweep.grid.values()]
    sizes += [len(values) for values in list(sweep.zip.values())[:1]]
    sizes += [len(sweep.list_)] if sweep.list_ else []
    sizes += [sweep.random.count] if sweep.random is not None else []
    return math.prod(sizes) if sizes else 0


def points_of(sweep: Sweep, written: Written) -> tuple[SweepPoint, ...]:
    """The points, in the order of the file: the last key varies fastest. Raises SweepFault.

    `written` has the text of each scalar by its path from the root of the job, so that `1e-4` stays `1e-4`.
    """
    _check_keys(sweep)
    count = count_points(sweep)
    if count > MAX_POINTS:
        raise SweepFault(f"the sweep has {count:,} points; at most {MAX_POINTS:,} are possible", (), "use fewer values")
    excluded = [{key: _comparable(value) for key, value in entry.items()} for entry in sweep.exclude]
    kept: list[Values] = []
    seen: dict[str, Values] = {}
    for values in _combined(sweep, written):
        comparable = {key: _comparable(_parsed(text)) for key, text in values}
        if any(entry.items() <= comparable.items() for entry in excluded):
            continue
        identity = json.dumps(comparable, sort_keys=True)
        if identity in seen:
            raise SweepFault(f"two points are the same: {label(values)}", (), "remove one of them")
        seen[identity] = values
        kept.append(values)
    if not kept:
        raise SweepFault("the sweep has no points", (), "give at least one value, and exclude fewer")
    return tuple(SweepPoint(number, values) for number, values in enumerate(kept))


def label(values: Values) -> str:
    """`lr=3e-4,seed=1`: the last part of each key, or all of it where two keys end alike; secrets are not shown."""
    shown = ("…" if SECRET_NAME.search(key) else text for key, text in values)
    return ",".join(f"{name}={text}" for name, text in zip(short_names(values), shown, strict=True))


def short_names(values: Values) -> tuple[str, ...]:
    """The last part of each key, or all of it where two keys end alike."""
    last = [key.rpartition(".")[2] for key, _ in values]
    counts = Counter(last)
    return tuple(name if counts[name] == 1 else key for name, (key, _) in zip(last, values, strict=True))


def matches(point: SweepPoint, text: str) -> bool:
    """Whether `lr=3e-4,seed=1` describes a point: all values that it names, by short or full key."""
    names = {**dict(point.values), **dict(zip(short_names(point.values), (v for _, v in point.values), strict=True))}
    if label(point.values) == text:
        return True
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in names:
            return False
        if names[name] != value and _comparable(_parsed(names[name])) != _comparable(_parsed(value)):
            return False
    return True


def _check_keys(sweep: Sweep) -> None:
    drawn = sweep.random.values if sweep.random is not None else {}
    used: set[str] = set()
    parts: tuple[tuple[KeyPath, Collection[str]], ...] = (
        (("grid",), sweep.grid),
        (("zip",), sweep.zip),
        (("list",), dict.fromkeys(key for entry in sweep.list_ for key in entry)),
        (("random", "values"), drawn),
    )
    for path, keys in parts:
        for key in keys:
            if key.partition(".")[0] in FIXED_KEYS or not key.strip(".") or "=" in key:
                hint = f"submit another job file for it; a point changes none of: {', '.join(sorted(FIXED_KEYS))}"
                raise SweepFault(f"a point cannot change `{key}`", (*path, key), hint)
            if key in used:
                raise SweepFault(f"`{key}` has values twice", (*path, key), "give its values in one place")
            if isinstance(keys, dict) and keys[key] == []:
                raise SweepFault(f"`{key}` has no values", (*path, key), "give at least one value")
            used.add(key)
    if len({len(values) for values in sweep.zip.values()}) > 1:
        raise SweepFault("the lists of `zip` differ in length", ("zip",), "give each key the same number of values")
    for at, entry in enumerate(sweep.exclude):
        if not entry or not set(entry) <= used:
            unknown = ", ".join(f"`{key}`" for key in entry if key not in used) or "nothing"
            message = f"`exclude` names {unknown}, which the sweep does not vary"
            raise SweepFault(message, ("exclude", at), "name keys of the sweep")
    for key, values in drawn.items():
        if isinstance(values, RandomRange):
            _check_range(key, values)


def _check_range(key: str, values: RandomRange) -> None:
    path: KeyPath = ("random", "values", key)
    finite = math.isfinite(values.low) and math.isfinite(values.high)
    if not finite or values.low > values.high or (values.scale == "log" and values.low <= 0):
        above = " and above 0" if values.scale == "log" else ""
        raise SweepFault(f"the range of `{key}` is empty", path, f"give a `low` that is below `high`{above}")
    if max(abs(values.low), abs(values.high)) > MOST:
        raise SweepFault(f"the range of `{key}` is too large", path, f"stay within ±{MOST:g}")


def _combined(sweep: Sweep, written: Written) -> Iterator[Values]:
    """All combinations, with the keys in the order of the file."""

    def pairs(part: str, key: str, values: list[Any]) -> list[tuple[str, str]]:
        return [(key, _text(value, written.get(("sweep", part, key, at)))) for at, value in enumerate(values)]

    parts: list[list[Values]] = [[(pair,) for pair in pairs("grid", *item)] for item in sweep.grid.items()]
    if sweep.zip:
        parts.append(list(zip(*(pairs("zip", *item) for item in sweep.zip.items()), strict=True)))
    if sweep.list_:
        parts.append(
            [
                tuple((key, _text(value, written.get(("sweep", "list", at, key)))) for key, value in entry.items())
                for at, entry in enumerate(sweep.list_)
            ]
        )
    if sweep.random is not None:
        parts.append(_drawn(sweep.random, written))
    for combination in product(*parts) if parts else ():
        yield tuple(pair for part in combination for pair in part)


def _drawn(drawn: RandomValues, written: Written) -> list[Values]:
    """Distinct draws. Only `random()` of a seeded generator is the same in every Python release."""
    generator = random.Random(drawn.seed)  # noqa: S311 - not for secrets
    rows: dict[Values, None] = {}
    for _ in range(drawn.count * _DRAWS):
        row = []
        for key, values in drawn.values.items():
            share = generator.random()
            if isinstance(values, RandomRange):
                row.append((key, _in_range(values, share)))
            else:
                at = int(share * len(values))
                row.append((key, _text(values[at], written.get(("sweep", "random", "values", key, at)))))
        rows[tuple(row)] = None
        if len(rows) == drawn.count:
            return list(rows)
    message = f"`random` finds only {len(rows)} different points, not {drawn.count}"
    raise SweepFault(message, ("random", "count"), "draw fewer points, or widen the ranges")


def _in_range(values: RandomRange, share: float) -> str:
    low, high = values.low, values.high
    if values.scale == "log":
        return f"{math.exp(math.log(low) + share * (math.log(high) - math.log(low))):.6g}"
    if low == int(low) and high == int(high):
        return str(int(low) + int(share * (int(high) - int(low) + 1)))
    return f"{low + share * (high - low):.6g}"


def _text(value: Any, written: str | None) -> str:
    """A value as `--set` takes it: as written where that means the same, else as JSON, which is YAML."""
    if written is not None and written.isprintable():
        parsed = _parsed(written)
        if parsed == value and type(parsed) is type(value):
            return written
    return flow_yaml(value)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    from hpc_launch.job.yaml_source import parse_document

    document, _ = parse_document(f"value: {text}", "")
    return document.data.get("value") if document is not None else text


def _comparable(value: Any) -> str:
    """Equal for equal values, and different for 1 and true."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)
