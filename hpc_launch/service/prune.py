"""What runs that are over hold on disk, what of it may be deleted, and its deletion.

A run is deleted as a whole, but for one whose folder has its newest complete checkpoint: of that, older checkpoints.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path, PurePath

from msgspec import Struct, structs

from hpc_launch.agent.checkpoints import newest_first, why_incomplete
from hpc_launch.runs.checkpoint_files import TENSOR_FILES, rule_of
from hpc_launch.runs.groups.group_folder import as_pipeline, sweep_of
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.plan_record import PlanRecord, newest_plan
from hpc_launch.runs.records.run_info import why_not_own
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import TOGETHER, poll_runs

TOMB = ".hpc-launch-deleted-"
"""Begins the name of what is being deleted. If the deletion is killed, the rest has this name."""


class Prunable(Struct, frozen=True, kw_only=True):
    """A run that is over, with the bytes on disk that it holds. A file with several hard links counts as nothing."""

    run: str
    state: str | None = None
    """None for what is left of an interrupted deletion."""
    folder: str
    ended: float | None = None
    """In seconds since the epoch."""
    code: int = 0
    logs: int = 0
    """Logs, records and all else."""
    checkpoints: int = 0
    deletes: tuple[str, ...] = ()
    """What may be deleted: the folder of the run, or checkpoints in it."""
    frees: int = 0
    kept: str | None = None
    """Why the run is not deleted."""


class Checkpoints(Struct, frozen=True):
    """The checkpoints of all runs, by path without links."""

    kept: dict[str, str] = {}
    """Why each of those stays that must stay, with all in it."""
    above: dict[str, str] = {}
    """The same for the folders above them."""
    others: dict[str, list[str]] = {}
    """The other checkpoints in the folder of each run."""

    def keep(self, path: str, why: str) -> None:
        """Keep a path."""
        self.kept[path] = why
        self.above.update(dict.fromkeys(map(str, PurePath(path).parents), why))

    def why(self, path: str) -> str | None:
        """Why a path must stay; None if it may be deleted."""
        around = (path, *map(str, PurePath(path).parents))
        return next((self.kept[one] for one in around if one in self.kept), self.above.get(path))


def decide(run: Prunable, checkpoints: Checkpoints, unknown: str | None) -> tuple[tuple[str, ...], str | None]:
    """What of a run may be deleted, and why the rest stays. `unknown`: a file of it that may be a checkpoint."""
    why = checkpoints.why(run.folder)
    if why is None and unknown is not None and run.state is not None:
        why = f"{unknown} may be a checkpoint, and `checkpoint:` of the job does not describe it"
    if why is None:
        return (run.folder,), None
    return tuple(path for path in checkpoints.others.get(run.folder, ()) if checkpoints.why(path) is None), why


def survey(
    index: Index, *, states: Sequence[str] = (), older_than_s: float, keep: int = 1, listener: Listener = QUIET
) -> list[Prunable]:
    """The runs in these states (default: all final ones) that ended so long ago, newest first, with what they hold.

    `keep`: how many of the newest complete checkpoints of each run stay.
    """
    with listener.doing("reading the index of runs"):
        before, entries = time.time() - older_than_s, index.entries()
    old = [RunFolder(entry.folder) for entry in entries if entry.created <= before]
    parts = (old[at : at + TOGETHER] for at in range(0, len(old), TOGETHER))
    polled = (pair for part in parts for pair in zip(part, poll_runs(part, index, listener), strict=True))
    over = [_over(*pair) for pair in polled if pair[1].final and (not states or pair[1].state in states)]
    over = [one for one in over if (one.ended or 0.0) <= before]
    with listener.doing("reading the run folders"):
        checkpoints = _checkpoints([entry.folder for entry in entries], {one.folder for one in over}, keep)
        rests = (rest for place in index.folders() for rest in sorted(place.glob(f"{TOMB}*")))
        left = [_measured(Prunable(run=rest.name, folder=str(rest)), checkpoints) for rest in rests]
        measured = [one if one.kept else _measured(one, checkpoints) for one in over]
    return [*measured, *(one for one in left if one.deletes)]  # others may be another user's


def prune(run: Prunable, index: Index) -> None:
    """Delete what a survey found. Raises OSError; another survey finds what is left."""
    folder, whole, stamp = RunFolder(Path(run.folder)), run.folder in run.deletes, None
    if run.state is not None:
        (status,) = poll_runs([folder], index)
        now = _over(folder, status)
        if not status.final or now.kept is not None or now.ended != run.ended:
            raise OSError(errno.EBUSY, "it goes on, or went on", run.folder)
        stamp = status.final_stamp
        if whole:
            index.note_pruned(run.run, status.state)

    def is_same(renamed: Path) -> bool:
        return stamp is None or RunFolder(renamed if whole else folder.path).attempts_stamp() == stamp

    for path in run.deletes:
        delete(Path(path), is_same)


def _over(run: RunFolder, status: RunStatus) -> Prunable:
    records = (Reader().read(attempt).end for part in _with_parts(run) for attempt in part.attempts()[-1:])
    times = [one.ended for one in (*status.attempts, *records) if one is not None and one.ended is not None]
    kept = why_not_own(run) if status.settled and status.successor is None else "it may continue"
    return Prunable(run=run.name, state=status.state, folder=str(run.path), ended=max(times, default=None), kept=kept)


def _with_parts(run: RunFolder) -> Iterator[RunFolder]:
    """The run, and those of a sweep or a pipeline."""
    yield run
    pipeline, sweep = as_pipeline(run), sweep_of(run)
    for part in (*(pipeline.stage_runs() if pipeline else ()), *(sweep.runs() if sweep else ())):
        yield from _with_parts(part)


def _measured(run: Prunable, checkpoints: Checkpoints) -> Prunable:
    """The same with its sizes and what may be deleted."""
    sizes, unknown = Counter[str](), None
    code = {str(part.code) for part in _with_parts(RunFolder(Path(run.folder)))}
    known = {run.folder, *code, *checkpoints.others.get(run.folder, ())}

    @cache
    def within(folder: str) -> str:
        return folder if folder in known or folder in checkpoints.kept else within(os.path.dirname(folder))

    try:
        for path, status in contents(run.folder):
            where = path if path in known or path in checkpoints.kept else within(os.path.dirname(path))
            sizes[where] += status.st_blocks * 512 if status.st_nlink == 1 else 0
            if where == run.folder and status.st_blocks and PurePath(path).suffix in TENSOR_FILES:
                unknown = os.path.relpath(path, run.folder)
    except (OSError, RecursionError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else "its folders are too deep"
        return structs.replace(run, kept=told)
    deletes, kept = decide(run, checkpoints, unknown)
    of_code, logs, total = sum(sizes[path] for path in code), sizes[run.folder], sum(sizes.values())
    frees = total if kept is None else sum(sizes[path] for path in deletes)
    held = {"code": of_code, "logs": logs, "checkpoints": total - logs - of_code, "frees": frees}
    return structs.replace(run, deletes=deletes, kept=kept, **held)


def _checkpoints(folders: Sequence[Path], over: Collection[str], keep: int) -> Checkpoints:
    """The checkpoints of runs; of those that are not `over`, all stay."""
    result = Checkpoints()
    for folder in map(str, folders):
        for run in _with_parts(RunFolder(Path(folder))):
            rule = rule_of(run)
            if rule is None:
                plan = newest_plan(run) if run.attempts() else PlanRecord()
                if plan is None or plan.checkpoint is not None:
                    result.keep(str(run.path), f"the plan of {run.name} does not tell where its checkpoints are")
                continue
            if folder not in over:
                result.keep(os.path.realpath(rule.folder), f"{run.name} has its checkpoints there")
                continue
            named = newest_first(rule)
            complete = list(islice((one for one in named if why_incomplete(rule, one) is None), keep))
            for path in (path for one in complete for path in _reached(one.path)):
                result.keep(path, f"{complete[0].path.name} is the newest complete checkpoint of {run.name}")
            rest = [*(one.path for one in named if one not in complete), *rule.folder.glob(f"{TOMB}*")]
            # Only what is in the folder of the run itself, and not behind a link.
            inside = [
                path for path in map(str, rest) if path.startswith(f"{folder}/") and os.path.realpath(path) == path
            ]
            result.others.setdefault(folder, []).extend(inside)
    return result


def _reached(path: Path) -> Iterator[str]:
    """Where a checkpoint is, and where the links in it lead."""
    yield os.path.realpath(path)
    for folder, folders, files in os.walk(path):
        yield from (
            os.path.realpath(link) for name in (*folders, *files) if os.path.islink(link := os.path.join(folder, name))
        )


def contents(name: str, place: int | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """The path and status of all in a folder except for folders. `place`: a descriptor of the folder that `name` is in.

    Raises OSError for what must not be deleted: what belongs to another user, another mount (also a bind mount), and
    what a folder without write permission protects.
    """
    mounts = set()

    def stop(error: OSError) -> None:
        raise error

    for path, folders, files, descriptor in os.fwalk(name, onerror=stop, dir_fd=place):
        # proc(5): a bind mount has the device of what it shows, but an id of its own.
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii").splitlines()
        mounts.add(next(line for line in lines if line.startswith("mnt_id:")))
        for one in (".", *folders, *files):
            status = os.stat(one, dir_fd=descriptor, follow_symlinks=False)
            why = "it belongs to another user" if status.st_uid != os.geteuid() else None
            if one == "." and ~status.st_mode & stat.S_IRWXU:
                why = "it is write-protected"
            if why or len(mounts) > 1:
                raise PermissionError(
                    errno.EPERM, why or "something is mounted there", os.path.normpath(os.path.join(path, one))
                )
            if not stat.S_ISDIR(status.st_mode):
                yield os.path.join(path, one), status


def delete(path: Path, is_same: Callable[[Path], bool]) -> None:
    """Delete a file or folder: rename it, so that nobody finds it any more, check it once more, and delete it.

    `is_same` tells by the new path whether it is unchanged. Raises OSError: nothing is deleted, or the rest has a name
    that begins with TOMB.
    """
    place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tomb = path.name if path.name.startswith(TOMB) else f"{TOMB}{os.urandom(8).hex()}"
        if os.readlink(f"/proc/self/fd/{place}") != str(path.parent):
            raise OSError(errno.ELOOP, "a link leads there", str(path))
        os.rename(path.name, tomb, src_dir_fd=place, dst_dir_fd=place)
        try:
            if not is_same(path.with_name(tomb)):
                raise OSError(errno.EBUSY, "it has changed", str(path))
            is_folder = stat.S_ISDIR(os.stat(tomb, dir_fd=place, follow_symlinks=False).st_mode)
            for _ in contents(tomb, place) if is_folder else ():
                pass
        except BaseException:
            os.rename(tomb, path.name, src_dir_fd=place, dst_dir_fd=place)
            raise
        if is_folder:
            shutil.rmtree(f"/proc/self/fd/{place}/{tomb}")  # it follows no link, even one that appears meanwhile
        else:
            os.unlink(tomb, dir_fd=place)
    finally:
        os.close(place)
