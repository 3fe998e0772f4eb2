"""Parse a log line: remove colours, and find its sender (rank, node, local rank) and its time.

Give error numbers and error names of CUDA and HIP their messages: rules need to know only those. The YAML files of
`rules/` have the expressions.
"""

from __future__ import annotations

import errno
import os
import re
import time
from datetime import datetime, timezone, tzinfo
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.installed import read_shipped

FOLDER = Path(__file__).resolve().parent / "rules"
"""The shipped rules; `meanings/` holds what does not depend on words."""


def read_rules(name: str, kind: Any) -> Any:
    """The content of a file as this type. Raises FileNotFoundError for a broken install."""
    return read_shipped(FOLDER / name, kind)


@cache
def line_pattern(name: str) -> re.Pattern[str]:
    """The expression of this name in `meanings/lines.yaml`."""
    return re.compile("".join(read_rules("meanings/lines.yaml", dict[str, list[str]])[name]))


_NUMBER = re.compile(
    r"\[Errno (\d{1,3})\]|\(os error (\d{1,3})\)|\berrno[:=] ?(\d{1,3})\b|\b("
    + "|".join(sorted(set(errno.errorcode.values())))
    + r")\b"
)
"""As Python, Rust and C programs print it, or the name of the constant."""
_NUMBERS = {name: number for number, name in errno.errorcode.items()}


def with_errno_message(text: str) -> str:
    """The text, followed by the message of the error number in it where the text lacks that."""
    match = _NUMBER.search(text)
    if match is None:
        return text
    key = next(group for group in match.groups() if group is not None)
    number = int(key) if key.isdecimal() else _NUMBERS[key]
    message = os.strerror(number)
    return f"{text} [{message}]" if number in errno.errorcode and message.lower() not in text.lower() else text


_NAME = re.compile(r"\b(?:(?:cuda|hip)Error|(?:CUDA|HIP)_ERROR_|(?:CU|HIP|ROC)[A-Z]{2,8}_STATUS_)(\w{3,40})")
"""As the runtime, the driver and the libraries spell them: cudaErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS."""

_BY_NAME = {
    name.lower(): message
    for message, names in read_rules("meanings/gpu-errors.yaml", dict[str, list[str]]).items()
    for name in names
}


def with_gpu_message(text: str) -> str:
    """The text, followed by the message of the error name in it."""
    match = _NAME.search(text)
    if match is None:
        return text
    message = _BY_NAME.get(match[1].replace("_", "").lower())
    return text if message is None else f"{text} [CUDA error: {message}]"


LONGEST = 4000
"""Maximum number of characters that rules see; of a longer line the beginning and the end."""

_SENDER = "ansi stamp rank mpi default pdsh ray nccl kernel iso_kernel ompi ucx stepd bracket_node no_node"
_OF = {name: line_pattern("sender_" + name) for name in _SENDER.split()}
_INSIDE = line_pattern("inside")
_NOT_NODES = ("slurmstepd", "srun", "sbatch", "line", "python", "error", "warning", "bash", "ranks")


FAINT = line_pattern("faint")
"""The line retracts its own message, or reports that the program continues."""


class LogLine(Struct, frozen=True):
    """A line with its sender. `body` has no colours and no sender prefix."""

    body: str
    rank: int | None = None
    node: str | None = None


def plain(raw: bytes) -> str:
    """The text of a line: undecodable bytes replaced, colours and control characters removed, length limited."""
    if len(raw) > 4 * LONGEST:
        raw = raw[: 2 * LONGEST] + b" ... " + raw[-2 * LONGEST :]
    text = raw.decode("utf-8", errors="replace")
    if not text.isprintable():
        text = _OF["ansi"].sub("", text.replace("\t", "    "))
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return text


def parse(text: str, task: int | None = None) -> LogLine:
    """Parse what `plain` gives, without the label that `srun --label` writes; `task`: the task number in that label."""
    rank = task
    node: str | None = None
    stamp = _OF["stamp"].match(text)
    body = text[stamp.end() :] if stamp else text
    for _ in range(3):
        if (match := _OF["rank"].match(body)) or (match := _OF["mpi"].match(body)):
            rank = int(match[1])
        elif match := _OF["default"].match(body):
            pass
        elif match := _OF["ray"].match(body):
            node = match[1] or node
        elif (match := _OF["pdsh"].match(body)) and _may_be_node(match[1]):
            node = match[1]
        else:
            break
        body = body[match.end() :]
    if rank is None and ("ank" in body or "RANK" in body) and (match := _INSIDE.search(body, 0, 400)):
        rank = int(next(group for group in match.groups() if group is not None))
    if node is None:
        node = _node_inside(body.lstrip())
    return LogLine(body, rank, node)


def _may_be_node(word: str) -> bool:
    """Whether a word before a colon is a host name, not an exception, a file or a program."""
    return not word.lower().startswith(_NOT_NODES) and _OF["no_node"].search(word) is None


def _node_inside(body: str) -> str | None:
    for pattern in (_OF["nccl"], _OF["stepd"], _OF["ompi"], _OF["ucx"]):
        if match := pattern.match(body):
            return match[1]
    if "kernel" in body or "systemd" in body or "slurmd" in body:
        for pattern in (_OF["kernel"], _OF["iso_kernel"]):
            if match := pattern.search(body, 0, 300):
                return match[1]
    match = _OF["bracket_node"].search(body, 0, 300)
    return match[1] if match and _may_be_node(match[1]) else None


_MONTHS = {name: number for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
_ISO = re.compile(r"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_US = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(20\d\d) (\d\d):(\d\d):(\d\d)")
_GLOG = re.compile(r"(?:^|\[)[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SYSLOG = line_pattern("syslog")
HEAD = 120
"""How many characters of a line are searched for a time."""


def line_time(text: str, year: int | None = None) -> float | None:
    """The time in `text` in seconds since the epoch, local time if it has no zone; None if there is none.

    `year`: what to take for forms without a year (glog, syslog); without it these give None.
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


@cache
def _zone(text: str) -> tzinfo | None:
    return datetime.strptime(text, "%z").tzinfo


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0
