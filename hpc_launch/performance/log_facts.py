"""Log lines that affect training speed: NCCL's transports, bucket sizes, DataLoader workers.

NCCL reports its transports only with `NCCL_DEBUG=INFO`, PyTorch its bucket size with `TORCH_DISTRIBUTED_DEBUG=INFO`,
DeepSpeed always. Message texts: NCCL 2.20 to 2.28, aws-ofi-nccl 1.7 to 1.16, PyTorch 2.13 (c10d logger, DataLoader),
DeepSpeed 0.19.8 (stage_1_and_2.py, stage3.py), Lightning 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Quote

LineKind = Literal[
    "socket", "no_ib", "shm", "p2p", "nvlink", "p2p_off",
    "ddp_bucket", "ddp_total", "zero_bucket", "workers", "few_workers",
]  # fmt: skip


class LogFact(Struct, frozen=True):
    """The first line of its kind in a log; `value` is the number in it, in the unit given in `RULES`."""

    kind: LineKind
    quote: Quote
    node: str | None = None
    rank: int | None = None
    value: float | None = None


# Kind, keywords of which the line must contain one (a cheap pre-filter), pattern.
RULES: tuple[tuple[LineKind, str, re.Pattern[str]], ...] = (
    (
        "socket",
        "network Socket|NET/Socket|rovider is",
        re.compile(
            r"NCCL INFO (?:Using network Socket\b|Channel .{1,80} via NET/Socket/)"
            r"|NET/OFI Selected [Pp]rovider is (?:sockets|tcp)\b"
        ),
    ),
    ("no_ib", "NET/IB|libibverbs", re.compile(r"NET/IB ?: No device found|Failed to open libibverbs")),
    ("shm", "via SHM", re.compile(r"Channel \d.{1,80} via SHM/")),
    ("p2p", "via P2P", re.compile(r"Channel \d.{1,80} via P2P/")),
    ("nvlink", "NVL[", re.compile(r"NCCL INFO [ +]{0,40}NVL\[ ?\d")),
    (
        "p2p_off",
        "P2P",
        re.compile(r"P2P is disabled between NVLINK connected GPUs|NCCL_P2P_DISABLE set by environment to 1"),
    ),
    ("ddp_bucket", "bucket_cap_bytes", re.compile(r"\bbucket_cap_bytes: (\d{1,15})\s*$")),  # bytes
    ("ddp_total", "total_parameter", re.compile(r"\btotal_parameter_size_bytes: (\d{1,15})\s*$")),  # bytes
    ("zero_bucket", "educe bucket size", re.compile(r"\bReduce bucket size (\d{1,15})\b")),  # elements
    (
        "workers",
        "This DataLoader",
        re.compile(r"This DataLoader will create (\d{1,6}) worker processes in total\. Our suggested max"),
    ),
    ("few_workers", "many workers", re.compile(r"does not have many workers which may be a bottleneck")),
)
_RANK = re.compile(r"\[rank(\d{1,9})\]:")
MAX_LINE = 2000
"""Maximum bytes of a line that are matched."""
MAX_CANDIDATES = 200
"""Maximum number of lines with a keyword that are matched for each kind."""


def first_lines(data: bytes, file: str, *, node: str | None = None, rank: int | None = None) -> Iterator[LogFact]:
    """The first line of each kind in the head of a log. Not split into lines, since few contain a keyword."""
    for kind, keywords, pattern in RULES:
        hits = [at for keyword in keywords.split("|") if (at := _first(data, keyword.encode(), pattern)) is not None]
        if hits:
            text = _text(data, min(hits))
            match, own = pattern.search(text), _RANK.match(text)
            value = float(match[1]) if match is not None and match.groups() else None
            quote = Quote(file, data.count(b"\n", 0, min(hits)) + 1, text.strip())
            yield LogFact(kind, quote, node, int(own[1]) if own else rank, value)


def _first(data: bytes, keyword: bytes, pattern: re.Pattern[str]) -> int | None:
    """Offset of the first line that contains the keyword and matches the pattern."""
    at = 0
    for _ in range(MAX_CANDIDATES):
        hit = data.find(keyword, at)
        if hit < 0:
            return None
        begin = data.rfind(b"\n", 0, hit) + 1
        if pattern.search(_text(data, begin)):
            return begin
        end = data.find(b"\n", hit)
        if end < 0:
            return None
        at = end + 1
    return None


def _text(data: bytes, begin: int) -> str:
    return data[begin : begin + MAX_LINE].partition(b"\n")[0].decode("utf-8", errors="replace")
