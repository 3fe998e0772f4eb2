"""Reports on bad nodes on disk, per site and team: JSON Lines, one file per write.

The files of teammates are not trusted: pipes, links, large files and host lists are ignored, and the author of a report
is the owner of the file, whatever it says.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from hpc_launch.agent.lease import name_of
from hpc_launch.base.files import make_private, state_folder, user
from hpc_launch.base.json_records import file_lines, line_record, record_text
from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.diagnose.node_health import BadNode, NodeReport, standing
from hpc_launch.job.units import counted

MAX_ENTRIES = 50_000
"""Files with reports that are looked at."""
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
    for path in _named(folder)[:MAX_ENTRIES]:
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime, status.st_size, status.st_uid, path))
    result: list[Path] = []
    read: Counter[int] = Counter()
    for _, size, author, path in sorted(found, reverse=True):
        cost = max(size, MAX_BYTES_IN_ALL // MAX_FILES)
        if read[author] + cost <= MAX_BYTES_IN_ALL:
            read[author] += cost
            result.append(path)
    return result[::-1]


def _named(folder: Path) -> list[Path]:
    """The entries that may be files with reports, at most one more than are looked at. Raises OSError."""
    with os.scandir(folder) as entries:
        named = (Path(entry.path) for entry in entries if entry.name.endswith(".jsonl"))
        return list(islice(named, MAX_ENTRIES + 1))


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
        return name_of(path.lstat().st_uid)
    except OSError:
        return "somebody else"


class NodeHealthStore:
    """The reports on the nodes of one site. `folder`: the team's (`paths.ledger` of the profile); None: the user's own.

    A report that cannot be written to the team's folder goes to the user's own, which is read too.
    """

    def __init__(self, site: str, folder: str | None = None) -> None:
        name = site.replace("/", "_")
        self.own = state_folder() / "ledger" / name
        self.folder = Path(folder) / name if folder else self.own

    def notes(self) -> list[NodeReport]:
        """All reports by all users. Invalid and unreadable ones are left out (`problems` names the latter); never
        raises."""
        return [report for path in self._files() for report in read_reports(path)]

    def standing(self, now: float | None = None) -> list[BadNode]:
        """The nodes with reports that have not expired."""
        return standing(self.notes(), time.time() if now is None else now)

    def write(self, reports: Sequence[NodeReport]) -> str | None:
        """Add reports. Returns why they are only in the user's own folder; None where the team has them.

        Raises OSError where neither folder can be written.
        """
        try:
            _write(self.folder, reports, shared=self.folder != self.own)
        except OSError as error:
            if self.folder == self.own:
                raise
            _write(self.own, reports, shared=False)
            return f"{cannot_write(self.folder, error)}; the report is only in {self.own}"
        return None

    def clear(self, nodes: Sequence[str]) -> None:
        """Report that these nodes are healthy again, wherever there are reports on them. Raises OSError."""
        reports = [NodeReport(time=time.time(), node=node, by=user(), cleared=True) for node in nodes]
        if self.folder != self.own and os.path.isdir(self.own):
            _write(self.own, reports, shared=False)
        _write(self.folder, reports, shared=self.folder != self.own)

    def problems(self) -> list[str]:
        """Why reports of other users are missing here, or this user's there, as text for the user."""
        if self.folder == self.own:
            return []
        result: list[str] = []
        unreadable = [path for path in self._files() if not os.access(path, os.R_OK)]
        with suppress(OSError):
            if len(_named(self.folder)) > MAX_ENTRIES:
                result.append(f"{self.folder} has more than {MAX_ENTRIES} files; reports on bad nodes may be missing")
        if os.path.isdir(self.folder) and not os.access(self.folder, os.R_OK | os.X_OK):
            result.append(f"cannot read the team's reports on bad nodes: {_described(self.folder)}")
        elif unreadable:
            owners = ", ".join(sorted({owner(path) for path in unreadable}))
            count = f"{counted(len(unreadable), 'report')} on bad nodes"
            result.append(f"cannot read {count} by {owners} in {self.folder}; ask for: chmod g+r")
        place = next(path for path in (self.folder, *self.folder.parents) if os.path.exists(path))
        if not os.access(place, os.W_OK | os.X_OK):
            result.append(f"your reports on bad nodes do not reach the team: cannot write {_described(place)}")
        return result

    def _files(self) -> list[Path]:
        result: list[Path] = []
        for folder in dict.fromkeys((self.folder, self.own)):
            with suppress(OSError):
                result += report_files(folder)
        return result


def quotes(evidence: Sequence[Quote]) -> tuple[Quote, ...]:
    """The first lines of evidence, shortened for a report."""
    return tuple(Quote(quote.file, quote.line, quote.text[:400]) for quote in evidence[:3])


def cannot_write(folder: Path, error: OSError) -> str:
    """Why the team's folder cannot be written, and who can change that."""
    place = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return f"cannot write {folder}: {error.strerror or error}; {_described(place)}"


def _write(folder: Path, reports: Sequence[NodeReport], *, shared: bool) -> None:
    if shared:
        _make_shared(folder)
    else:
        make_private(folder)
    name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.jsonl".replace("/", "_")
    text = "".join(record_text(report, indent=None) for report in reports)
    temporary, above = folder / f".{name}", folder.stat()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            if shared:
                # Whoever may read the folder may read the report, whatever the umask. By the descriptor: a teammate
                # may replace the name with a link.
                with suppress(OSError):
                    os.fchown(descriptor, -1, above.st_gid)
                os.fchmod(descriptor, 0o600 | above.st_mode & (stat.S_IRGRP | stat.S_IROTH))
        os.replace(temporary, folder / name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _make_shared(folder: Path) -> None:
    """Create a folder and its parents with the group, the group's permissions and the setgid bit of the folder above.

    A folder of this user that lacks them gets them. Raises OSError, also for a symbolic link: a teammate could have it
    point to a private folder of this user, which would then be opened to the group.
    """
    if not os.path.isdir(folder.parent):
        _make_shared(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    above = folder.parent.stat()
    if not os.path.islink(folder) and not all(name.endswith(".jsonl") for name in os.listdir(folder)):
        return  # not a folder of reports: a profile may name any folder
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        own = os.fstat(descriptor)
        if own.st_uid != os.getuid() or above.st_mode & stat.S_IWOTH:
            return  # the group of a folder like /tmp is not a team
        if own.st_gid != above.st_gid:
            with suppress(OSError):
                os.fchown(descriptor, -1, above.st_gid)
        if os.fstat(descriptor).st_gid == above.st_gid:
            group = above.st_mode & (stat.S_IRWXG | stat.S_ISGID)
            os.fchmod(descriptor, stat.S_IMODE(own.st_mode) & ~(stat.S_IRWXG | stat.S_ISGID | stat.S_IWOTH) | group)
    finally:
        os.close(descriptor)


def _described(path: Path) -> str:
    """A folder with its owner and permissions, and the command that opens it to its group."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    name = owner(path)
    return f"{path} belongs to {name} ({stat.filemode(mode)}); ask {name} to run: chmod g+rwxs {path}"
