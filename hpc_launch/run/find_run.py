"""Find a run by what a user types: a name or its beginning, a job id, a folder, or `@last`."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.run_index import Index, IndexEntry
from hpc_launch.schedulers.ssh.hand_over_run import host_with

LAST = "@last"

SHOWN = 5
"""How many candidates an error message names."""


NEAR = 1000
"""Among how many of the newest runs similar names are searched."""


class RunElsewhere(UserError):
    """The files of a run are on its first host."""

    def __init__(self, text: str, folder: Path, host: str) -> None:
        super().__init__(f"the files of {folder.name} are on {host}", f"run the command there, with {folder}")
        self.text, self.folder, self.host = text, folder, host


def find_run(text: str, index: Index) -> RunFolder:
    """The run that `text` names.

    Raises UsageError with similar names, or with all runs it may mean; RunElsewhere if another host has its files.
    """
    run = _find_run(text, index)
    if (host := host_with(run.path)) is not None:
        raise RunElsewhere(text, run.path, host)
    return run


def _find_run(text: str, index: Index) -> RunFolder:
    folder = _as_folder(text)
    if folder is not None:
        return folder
    if text == LAST:
        newest = index.entries(limit=1)
        if not newest:
            raise UsageError("there is no run yet", hint="submit one with hpc-launch submit JOB.yaml")
        return RunFolder(newest[0].folder)
    entries = index.entries(prefix=text) if text else []
    exact = [entry.folder for entry in entries if entry.run == text]
    by_prefix = [entry.folder for entry in entries]
    by_job = index.jobs(text) if not exact and (text[:1].isdecimal() or not by_prefix) else []
    candidates = exact or by_job or by_prefix
    if len(candidates) == 1:
        return RunFolder(candidates[0])
    if not candidates:
        raise UsageError(f"no run is called {text!r}", hint=_near(text, index.entries(limit=NEAR)))
    names = ", ".join(folder.name for folder in candidates[:SHOWN])
    more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
    raise UsageError(f"{text!r} may mean {names}{more}", hint="type more of the name, or the run's folder")


def _as_folder(text: str) -> RunFolder | None:
    """The run that `text` is the folder of, or a folder inside.

    Only a path counts: others may create a folder with the name of a run in the current folder.
    """
    if "/" not in text and text not in (".", "..", "~"):
        return None
    try:
        if not os.path.isdir(Path(text).expanduser()):
            return None
        path = Path(text).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):
        return None
    for folder in map(RunFolder, (path, *path.parents[:2])):
        if folder.exists or os.path.isdir(folder.attempts_folder):
            return folder
    return None


def _near(text: str, entries: list[IndexEntry]) -> str:
    from difflib import get_close_matches

    names = [entry.run for entry in entries]
    near = get_close_matches(text, names, SHOWN, 0.4)
    near += [entry.run for entry in entries if get_close_matches(text, [entry.name], 1, 0.6) and entry.run not in near]
    if near:
        return f"did you mean {', '.join(near[:SHOWN])}?"
    return "hpc-launch list shows all runs" if names else "there is no run yet"
