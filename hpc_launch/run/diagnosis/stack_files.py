"""Where the ranks of an attempt stood when it was ended for hanging: by py-spy's files, else by what the logs hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpc_launch.base.files import without_waiting
from hpc_launch.recover.hang_stacks import Frame, not_arrived, stack, stacks_in_log
from hpc_launch.run.layout import AttemptFolder

_TAIL = 4 << 20
"""Bytes of each log: the stacks are the last that a rank prints."""


def absent(attempt: AttemptFolder) -> dict[int, Frame]:
    """The ranks that the others waited for, and where each stood; empty where that cannot be told."""
    stacks: dict[int, tuple[Frame, ...]] = {}
    for log in sorted(attempt.logs.glob("node-*.log")):
        stacks.update(stacks_in_log(_last_lines(log)))
    for file in sorted((attempt.path / "agent" / "stacks").glob("rank-*.txt")):
        number = file.stem.removeprefix("rank-")
        frames = stack(_last_lines(file)) if number.isdecimal() else ()
        if frames:
            stacks[int(number)] = frames
    return not_arrived(stacks)


def _last_lines(path: Path) -> Iterator[str]:
    with suppress(OSError), open(path, "rb", opener=without_waiting) as stream:
        stream.seek(0, 2)
        stream.seek(max(stream.tell() - _TAIL, 0))
        yield from stream.read(_TAIL).decode("utf-8", "replace").splitlines()
