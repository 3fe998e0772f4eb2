"""Shell text inside a launch line: `bash -c TEXT`, and local shell files that srun starts. They are read, not run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.base.errors import UsageError
from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.read_script import decode
from hpc_launch.from_script.values import Word

if TYPE_CHECKING:
    from hpc_launch.from_script.walk_script import Walker

MAX_FOLLOWED = 256 << 10
"""Bytes of a local shell file that a script starts."""
_TAKEN = ("program", "words", "arguments", "options", "max_restarts", "python")


def read_nested(outer: Walker, launch: OldLaunch, kind: str, rest: Sequence[Word], word: Word) -> bool:
    """Read the text into the launch; False if it does more than a job file says, so that the command stays."""
    name = ""
    if kind == "file":
        name = word.text
        text = _local_file(outer, name)
    else:
        text = _quoted_text(word.raw)
    if text is None:
        return False
    ledger = Ledger(text.split("\n"))
    scope = outer.scope.copy()
    scope.parameters = tuple(one.value for one in (rest if name else rest[1:]))  # after `bash -c TEXT`, the first is $0
    scope.nested = not name
    if name:
        outer.followed[name] = ()
    inner = outer.child(text, scope, ledger)
    if not inner.fits or len(inner.job.launches) != 1 or not _fits(inner, ledger):
        outer.followed.pop(name, None)
        return False
    if not name and word.raw.startswith('"') and re.search(r"(?<!\\)\$\{?[@*1-9]", word.raw):
        launch.doubts.append((word.line, "arguments of the script: add them to `args:`"))
    _merge(outer, inner, launch)
    outer.followed |= {file: found for file, found in inner.followed.items() if found}
    if name:
        found = inner.job.launches[0]
        ledger.taken(found.lines, *dict.fromkeys(found.keys))
        outer.followed[name] = ledger.accounts()
    return True


def _fits(inner: Walker, ledger: Ledger) -> bool:
    """Whether the text only sets up and starts one program that is the same in each process."""
    job = inner.job
    launch = job.launches[0]
    words = [*launch.words, *launch.arguments]
    values = [*(word.value for word in words), *launch.env.values(), *(value for value, _ in job.env.values())]
    others = ledger.any_not_understood(launch.lines)
    more = job.workdir or job.modules or job.mkdir or job.prepend or job.unset or job.ulimit or job.secrets
    return not (others or launch.doubts or more or any("rank" in value.uses for value in values))


def _merge(outer: Walker, inner: Walker, launch: OldLaunch) -> None:
    """Add what the text does to the launch."""
    job, found = inner.job, inner.job.launches[0]
    outer.job.sources += job.sources
    outer.job.conda, outer.job.venv = job.conda or outer.job.conda, job.venv or outer.job.venv
    outer.job.left_out |= job.left_out
    launch.env |= {name: value for name, (value, _) in job.env.items()} | found.env
    for field in _TAKEN:
        setattr(launch, field, getattr(found, field))
    if found.launcher != "none" or not launch.by_srun:
        launch.launcher = found.launcher
    launch.processes_per_node = found.processes_per_node or launch.processes_per_node
    launch.container = found.container or launch.container
    launch.keys += found.keys
    launch.pdsh = found.pdsh and not launch.by_srun


def _local_file(outer: Walker, path: str) -> str | None:
    """The text of a shell file below the folder of the job, unless it is being read."""
    if "${" in path or path in outer.followed:
        return None
    full = os.path.join(outer.base, outer.job.workdir or "", path)
    try:
        if not os.path.isfile(full) or os.path.getsize(full) > MAX_FOLLOWED:
            return None
        with open(full, "rb") as stream:
            return decode(stream.read(MAX_FOLLOWED), path).text
    except (OSError, UsageError):
        return None


def _quoted_text(raw: str) -> str | None:
    """The text between quotes, as the inner bash gets it."""
    if len(raw) > 1 and raw[0] == raw[-1] == "'":
        return raw[1:-1]
    if len(raw) > 1 and raw[0] == raw[-1] == '"':
        return re.sub(r"\\([$`\"\\])", r"\1", raw[1:-1])
    return None
