"""The files of a run and their names. The run folder is the only source of truth; everything else is derived from it.

docs/explanation/how-a-run-works.md lists the files of a run, the pages on sweeps and pipelines those of a group.
The modules of records/ have the types of the records, groups/group_folder.py those of a group.

`claim` is the only lock: a job trains only if it created the file, and a driver that abandons an attempt creates it
first. A driver that was frozen before sbatch and resumes later submits a job that exits at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_launch.schedulers.job_files import BATCH_LOG, SCRIPT

RUN_MODE, GROUP_MODE = 0o700, 0o2750
"""Of a run folder, and of one that the user opens to a group. Nobody else reaches what is inside."""
FOLDER_MODE = 0o755
"""Of folders in a run folder. Nobody else may change what the job and its drivers execute."""
MOST_BEFORE = 50
"""How far to look back for what an attempt does not record itself."""
_STAGE = re.compile(r"[A-Za-z]\w*(-[A-Za-z]\w*)*(-[0-9]+){0,2}\Z", re.ASCII)
"""A stage, and the checkpoint or point that a run of it is for."""
_ATTEMPT = re.compile(r"[0-9]{3,5}\Z")
_NODE_LOG = re.compile(r"node-(\d{1,9})(?:\.rank-(\d{1,9}))?\.log\Z")
_EXIT = re.compile(r"(?:node-(\d{1,9})\.?)?(?:(?<![^.])rank-(\d{1,9}))?(?<=\d)\.exit\Z")
_NOTES = re.compile(r"node-(\d{1,9})\.jsonl\Z")
_STACK = re.compile(r"rank-(\d{1,9})\.txt\Z")
_OF_TORCHRUN = re.compile(r"ranks-of-node-(\d{1,9})\Z")


class Entry:
    """A file or folder with a fixed place in the folder of a run, a group or an attempt: in its `path`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, owner: type) -> Path:
        path: Path = folder.path / self.name
        return path


class _OfTraining(Entry):
    """A folder of the program: in a job with roles, of the one that ends the job."""

    def __get__(self, folder: AttemptFolder | RunFolder, owner: type) -> Path:
        main = folder.path / "roles" / "main"
        return (main if os.path.isdir(main) else folder.path) / self.name


class _Shared(Entry):
    """A file of a run that all points of a sweep share: it is in the folder of the sweep."""

    def __get__(self, folder: AttemptFolder | RunFolder, owner: type) -> Path:
        home = folder.sweep if isinstance(folder, RunFolder) else None
        return (home or folder).path / self.name


@dataclass(frozen=True)
class AttemptFolder:
    """The folder of one attempt and the paths in it."""

    path: Path

    @property
    def number(self) -> int:
        """Number of the attempt, from 1."""
        return int(self.path.name)

    @property
    def run(self) -> RunFolder:
        """The run that the attempt belongs to."""
        return RunFolder(self.path.parents[1])

    script = Entry(SCRIPT)
    plan = Entry("plan.json")
    intent = Entry("intent.json")
    job = Entry("job.json")
    claim = Entry("claim")
    start = Entry("start.json")
    end = Entry("end.json")
    done = Entry("done")
    final = Entry("final.json")
    batch_log = Entry(BATCH_LOG)
    stop = Entry("stop")
    cancel = Entry("cancel.json")
    stuck = Entry("stuck.json")
    refused = Entry("refused.json")
    verdict = Entry("verdict.json")
    sentinel = Entry("sentinel")
    successor = Entry("successor.json")
    successor_folder = Entry("successor")
    hook_log = Entry("hook.log")
    hosts = Entry("hosts")
    environment = Entry("environment")
    """The job's environment with its secrets, for nodes that mpirun, ibrun or pdsh starts. The script removes it."""
    roles = Entry("roles.json")
    logs = _OfTraining("logs")
    agent = _OfTraining("agent")
    """Where the watchers of all nodes write."""
    hang = _OfTraining("agent/hang.json")
    lost = Entry("agent/lost")
    """The nodes that fell silent, as the job's script found."""
    node_check = Entry("node-check.json")
    bench = Entry("bench.json")
    """What the job of `doctor --bench` measured."""

    @property
    def first_log(self) -> Path:
        """Output of rank 0: its node's log, or its own where srun starts each process."""
        own = self.logs / "node-0.rank-0.log"
        return own if os.path.exists(own) else self.logs / "node-0.log"

    def role(self, name: str) -> RoleFolder:
        """The folder of one role of the job, in which its files have the same places."""
        return RoleFolder(self.path / "roles" / name)

    def node_logs(self) -> Iterator[tuple[int, int | None, Path]]:
        """The training's logs by name: node, rank where the log is of one rank, path."""
        for match, path in _listed(self.logs, _NODE_LOG):
            yield int(match[1]), None if match[2] is None else int(match[2]), path

    def exit_files(self) -> Iterator[tuple[int, int | None, Path]]:
        """The files with the exit codes of the launchers, by node, or of the processes, also by rank."""
        for match, path in _listed(self.logs, _EXIT):
            yield int(match[1] or -1), int(match[2]) if match[2] else None, path

    def error_files(self) -> Iterator[tuple[int, Path]]:
        """The error files of torchelastic's agents, by node."""
        for match, folder in _listed(self.logs, _OF_TORCHRUN, folders=True):
            if os.path.isfile(path := folder / "launcher.json"):
                yield int(match[1]), path

    def worker_error_files(self) -> Iterator[tuple[int, Path]]:
        """The error files that workers under torchrun wrote with `@record`, by node."""
        for match, folder in _listed(self.logs, _OF_TORCHRUN, folders=True):
            with suppress(OSError):
                paths = sorted(folder.rglob("error.json"))
                yield from ((int(match[1]), path) for path in paths if os.path.isfile(path))

    def watcher_files(self) -> Iterator[tuple[int, Path]]:
        """The files with the watchers' events and samples, by node."""
        yield from _numbered(self.agent, _NOTES)

    def stack_files(self) -> Iterator[tuple[int, Path]]:
        """The files with the stacks of hanging ranks, by rank."""
        yield from _numbered(self.agent / "stacks", _STACK)


class RoleFolder(AttemptFolder):
    """The folder of one role of an attempt."""

    @property
    def number(self) -> int:
        """Number of the attempt."""
        return int(self.path.parents[1].name)

    @property
    def run(self) -> RunFolder:
        """The run that the attempt belongs to."""
        return RunFolder(self.path.parents[3])


def _numbered(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    return ((int(match[1]), path) for match, path in _listed(folder, pattern))


def _listed(folder: Path, pattern: re.Pattern[str], *, folders: bool = False) -> list[tuple[re.Match[str], Path]]:
    """The files in a folder whose names match, sorted. A link to a device is not a file: reading it may never end."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    found = [(match, path) for path in paths if (match := pattern.match(path.name))]
    if folders:  # not links to one, which may be very large
        return [(match, path) for match, path in found if os.path.isdir(path) and not os.path.islink(path)]
    return [(match, path) for match, path in found if os.path.isfile(path)]


def attempts_in(folder: Path) -> list[AttemptFolder]:
    """The attempts of a run, or the job arrays of a sweep, by number."""
    try:
        names = [name for name in os.listdir(folder) if _ATTEMPT.match(name)]
    except OSError:
        return []
    return [AttemptFolder(folder / name) for name in sorted(names, key=int)]


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run and the paths in it."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name; `SWEEP/7` for a point of a sweep, whose folder is SWEEP/SWEEP.7, and so for a stage."""
        home = self.sweep or self.pipeline
        return self.path.name if home is None else f"{home.name}/{self.path.name.rpartition('.')[2]}"

    @property
    def sweep(self) -> RunFolder | None:
        """The sweep that this run is a point of, by its name."""
        head, _, number = self.path.name.rpartition(".")
        return RunFolder(self.path.parent) if head == self.path.parent.name and number.isdecimal() else None

    @property
    def pipeline(self) -> RunFolder | None:
        """The pipeline that this run or sweep is a stage of, by its name."""
        head, _, stage = self.path.name.rpartition(".")
        return RunFolder(self.path.parent) if head == self.path.parent.name and _STAGE.match(stage) else None

    info = _Shared("run.json")
    sweep_info = Entry("sweep.json")
    pipeline_info = Entry("pipeline.json")
    stage_info = _Shared("stage.json")
    job_yaml = _Shared("job.yaml")
    resolved_yaml = _Shared("resolved.yaml")
    site_yaml = _Shared("site.yaml")
    code = Entry("code")
    code_info = _Shared("code.json")
    journal = Entry("journal")
    after = Entry("after.sh")
    """The command that the job runs at its end."""
    hooks = Entry("hooks")
    arrays = Entry("arrays")
    """The job arrays of a sweep."""
    attempts_folder = Entry("attempts")

    @property
    def is_foreign(self) -> bool:
        """Whether the run is another user's, who opened it to a group. Its plan may name any file of this user."""
        with suppress(OSError):
            return self.path.stat().st_uid != os.getuid()
        return False

    @property
    def exists(self) -> bool:
        """Whether the run is complete on disk: `run.json` is written last, or the folder of a point's attempts."""
        if self.sweep is not None:
            return os.path.isdir(self.attempts_folder)
        return os.path.exists(self.info)

    def attempt(self, number: int) -> AttemptFolder:
        """The folder of attempt `number`, whether it exists or not."""
        return AttemptFolder(self.attempts_folder / f"{number:03d}")

    def attempts(self) -> list[AttemptFolder]:
        """All existing attempts by number."""
        return attempts_in(self.attempts_folder)

    def attempts_stamp(self) -> int | None:
        """When the run, or a part of the sweep or pipeline, last got an attempt, in ns; None if unknown."""
        with suppress(OSError):
            return self.last_attempt_ns()
        return None

    def last_attempt_ns(self) -> int:
        """The same. Raises OSError where it is unknown."""
        for path in (self.attempts_folder, self.arrays):
            with suppress(FileNotFoundError):
                return os.stat(path).st_mtime_ns
        return os.stat(self.pipeline_info).st_mtime_ns

    def note_attempt(self) -> None:
        """Change the stamp of the sweep or pipeline that this run is a part of, once there is a new attempt."""
        with suppress(OSError):
            if self.sweep is not None:
                os.utime(self.sweep.arrays)
        pipeline = (self.sweep or self).pipeline
        with suppress(OSError):
            if pipeline is not None:
                os.utime(pipeline.pipeline_info)

    def attempts_before(self, attempt: AttemptFolder) -> Iterator[AttemptFolder]:
        """The attempts that precede one, the last first; at most MOST_BEFORE of them. Looks at the disk when asked."""
        earlier = [other for other in self.attempts() if other.number < attempt.number]
        yield from earlier[: -MOST_BEFORE - 1 : -1]
