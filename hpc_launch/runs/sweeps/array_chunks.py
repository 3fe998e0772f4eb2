"""Split the points of a sweep into job arrays. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import Struct


class ArrayChunk(Struct, frozen=True):
    """One job array: tasks by number, each with its point."""

    script: str
    tasks: Mapping[int, int]

    def spec(self, at_once: int | None) -> str:
        """The value of `sbatch --array`: `0-3,7%2`."""
        ranges = []
        numbers = sorted(self.tasks)
        for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
            block = [number for _, number in group]
            ranges.append(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}")
        return ",".join(ranges) + (f"%{at_once}" if at_once is not None and at_once < len(numbers) else "")


def chunks(scripts: Mapping[int, str], max_array_size: int) -> list[ArrayChunk]:
    """As few arrays as possible: of at most `max_array_size` tasks, which all have one array script.

    A task has the number of its point where Slurm allows that number: task numbers end below MaxArraySize.
    """
    by_script: dict[str, list[int]] = {}
    for point, script in scripts.items():
        by_script.setdefault(script, []).append(point)
    result = []
    for script, points in by_script.items():
        for begin in range(0, len(points), max_array_size):
            result.append(ArrayChunk(script, _numbered(points[begin : begin + max_array_size], max_array_size)))
    return result


def _numbered(points: Sequence[int], max_array_size: int) -> dict[int, int]:
    if max(points) < max_array_size:
        return {point: point for point in points}
    return dict(enumerate(points))
