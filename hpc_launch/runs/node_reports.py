"""Read the reports on bad nodes of a team. The files of teammates are not trusted.

Pipes, links, large files and host lists are ignored, and the author of a report is the owner of the file, whatever it
says.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from hpc_launch.base.json_records import file_lines, line_record
from hpc_launch.diagnose.node_health import NodeReport

MAX_ENTRIES = 50_000
"""Directory entries that are looked at."""
MAX_FILES = 500
MAX_BYTES_IN_ALL = 512 << 10
"""Limits on the files of one author that are read, the newest ones. Nobody can slow down the submissions of the others
much, or displace their reports."""
MAX_BYTES = 256 << 10
"""Size of the largest file that is read. A file holds the reports of one verdict, a few kilobytes."""
MAX_CAUSE = 80
"""Characters of a class and of a cause that are kept."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")


def report_files(folder: Path) -> list[Path]:
    """The newest files with reports of each author, oldest first. Raises OSError where the folder cannot be read."""
    found: list[tuple[float, int, int, Path]] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            with suppress(OSError):
                if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, status.st_uid, Path(entry.path)))
    result: list[Path] = []
    read: Counter[int] = Counter()
    for _, size, author, path in sorted(found, reverse=True):
        cost = max(size, MAX_BYTES_IN_ALL // MAX_FILES)
        if read[author] + cost <= MAX_BYTES_IN_ALL:
            read[author] += cost
            result.append(path)
    return result[::-1]


def read_reports(path: Path) -> Iterator[NodeReport]:
    """The valid reports in a file. Never raises."""
    author = owner(path)
    for line in file_lines(path, longest=MAX_BYTES, links=False):
        report = line_record(line, NodeReport)
        if report is not None and _NODE.match(report.node):
            cause = report.cause and report.cause[:MAX_CAUSE]
            yield replace(report, by=author, failure_class=report.failure_class[:MAX_CAUSE], cause=cause)


def owner(path: Path) -> str:
    """The name of a file's owner, or the number of one without a name."""
    try:
        uid = path.lstat().st_uid
    except OSError:
        return "somebody else"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
