"""Values of a site profile that decide which code a job runs or which secrets it gets. They require trust.

Everything is found in the parsed data, never by searching text: YAML has many spellings of one word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.job.document import KeyPath
from hpc_launch.job.job import JobSpec
from hpc_launch.job.shell_text import end_of_placeholders
from hpc_launch.job.type_hints import fields_of, members
from hpc_launch.sites.harmless_variables import NUMBER, PRINTS, is_public, variable_requiring_trust
from hpc_launch.sites.profile import SiteProfile


class CodeValue(Struct, frozen=True):
    """A value that requires trust: what it is, and its text."""

    path: KeyPath
    kind: str
    text: str


STEPS = {
    "raw": "raw shell line",
    "source": "file to source",
    "venv": "virtual environment",
    "module_use": "folder of modules",
    "copy": "file to copy",
    "mkdir": "folder to create",
}
"""Actions of a prelude step that require trust. A module file is a program, a copy may replace a start-up file, and a
folder in the place of a file of hpc-launch breaks it."""
ENVIRONMENT = {
    "source": "file to source",
    "conda": "Conda environment",
    "venv": "virtual environment",
    "python": "interpreter",
}
JOB_KEYS = {
    "script": "program", "module": "program", "command": "program", "args": "arguments of the program",
    "secrets": "names of secrets", "container": "image", "workdir": "working folder", "run_dir": "run folder",
    "code": "code folder", "strategy": "configuration of the training",
    "notify": "receiver of messages",
}  # fmt: skip
"""Keys of a job file that require trust in `defaults:`: what they are. Loading a checkpoint may run code."""
HARMLESS_KEYS = frozenset(
    "name queue account options constraint nodes spares gpus_per_node gpus processes_per_node cpus_per_node memory "
    "time parallel precision environment env trackers exclude sbatch "
    "checkpoint.signal_before checkpoint.warn retry.stuck_after retry.in_allocation notify.events "
    "notify.no_progress".split()
)
"""Keys that need no trust in `defaults:`, except for single values below them. The rest, such as which checkpoint
counts as complete, what is retried and what is a hang, can end a training or let it begin again."""
CONTAINERS = {
    "images": "image",
    "binds": "folder to mount",
    "options": "option of the container runtime",
    "folder": "folder of images",
}
HARMLESS_OPTIONS = frozenset(
    "account acctg-freq begin cluster-constraint clusters comment constraint contiguous core-spec cores-per-socket "
    "cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot distribution exclude exclusive extra-node-info "
    "gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold immediate job-name "
    "kill-on-bad-exit kill-on-invalid-dep label licenses mail-type mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi "
    "network nice no-kill no-requeue nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node "
    "ntasks-per-socket open-mode overcommit overlap oversubscribe partition power prefer priority profile propagate "
    "qos quiet requeue reservation resv-ports segment signal sockets-per-node spread-job switches thread-spec "
    "threads-per-core time time-min tmp tres-bind tres-per-task unbuffered use-min-nodes verbose wait wait-all-nodes "
    "wckey".split()
)
"""Options of sbatch and srun that choose nodes, tasks and their places. Plug-ins of a site add others of any effect."""
_OF_THE_JOB = {
    "srun": re.compile(
        r"nodes|ntasks.*|nodelist|exclude|overcommit|use-min-nodes|job-name|kill-on-bad-exit|no-kill|wait"
    ),
    "sbatch": re.compile(r"nodes|ntasks.*|job-name|time|time-min|requeue|no-requeue|open-mode|signal|wait|no-kill"),
}
"""Options with which a job or a step would be another one than the plan says."""

_PLACEHOLDER = re.compile(r"(?<!\$)\$\{(?:env|shell)\.([^}]*)\}")
_BY_NAME, _OF_NAMES = ("set", "prepend"), ("unset", "drop")
"""Actions with variables: mappings by name, and lists of names."""
_LEAST_PORTS = 1000
_DESCRIPTIVE = frozenset("facts fact published unknown about why note source as_of when".split())
"""Fields that a job never uses. (`source` is one in `prelude` and `environment`; a queue may have any such name.)"""


def values_requiring_trust(data: Mapping[str, Any]) -> Iterator[CodeValue]:
    """All such values of a profile, whose keys must be without operators and short forms."""
    yield from _walk(data, (), SiteProfile)


def _walk(value: Any, path: KeyPath, type_: Any) -> Iterator[CodeValue]:
    """`type_`: the type that the schema gives to the value; Any below keys of a job file."""
    kind = _kind(path, value) if path else None
    if kind is not None:
        yield CodeValue(path, kind, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        return
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    wanted = type(value)
    member = next((one for one in members(type_) if one.kind is wanted or (wanted is dict and one.is_struct)), None)
    fields = fields_of(member.kind) if member is not None and member.is_struct else {}
    inner = member.args[-1] if member is not None and member.args else Any
    for key, child in children:
        in_step = "prelude" in path or "environment" in path
        if key not in fields or key not in _DESCRIPTIVE or (key == "source" and in_step):
            yield from _walk(child, (*path, key), fields[key].type if key in fields else inner)


def _kind(path: KeyPath, value: Any) -> str | None:
    """What a value is, if it requires trust."""
    key = path[-1]
    if isinstance(value, str) and not all(map(is_public, _PLACEHOLDER.findall(value, 0, end_of_placeholders(value)))):
        return "value of a variable that may be secret"
    if path[0] == "detect":
        return None  # its `env` compares variables
    for at, name in enumerate(path[:-1]):
        if (kind := _below(str(name), path[at + 1 :], value, top=at == 0)) is not None:
            return kind
    if value is None:
        return None
    if path[0] == "caches" and len(path) == 2:
        return "folder of a cache, from which libraries load code"
    if path == ("paths", "ledger"):
        return "folder that is created and opened to the team"
    if path == ("bad_nodes", "file"):
        return "file whose lines everybody sees in the options of the job"
    if path in (("scheduler", "hosts"), ("scheduler", "hostfile")):
        return "hosts that run the job and get its secrets"
    if path[0] == "account" and "variables" in path and isinstance(value, str) and not is_public(value):
        return "variable that may be secret"
    if key == "plugin" and "fabric" in path and _is_place(value):
        return "network plugin"
    if key in ("topology", "topology_inside") and "fabric" in path and value is not None:
        return "file that NCCL reads"
    if path[0] == "launch" and isinstance(value, str) and PRINTS.search(value):
        return "value with which srun starts nothing"
    if path == ("network", "ports") and not _is_wide(value):
        return f"range of fewer than {_LEAST_PORTS} ports, of which another user may occupy all but one"
    plain = key == "suffix" and "." not in str(value) and str(value).startswith("-")
    if path[:2] == ("network", "master") and len(path) == 3 and not plain:
        # torchrun unpickles what the server at this address sends. With `0`, that of n1 would be n10. An interface such
        # as docker0 has the same address on every node.
        return "host of the rendezvous"
    return None


def _below(name: str, rest: KeyPath, value: Any, *, top: bool) -> str | None:
    """What a value is by the key `name` above it, at the top of the profile or below, and the path from there."""
    if name == "prelude" and len(rest) > 1:
        action, inside = str(rest[1]), rest[2:]
        if not inside:
            return STEPS.get(action) if value is not None else None
        if action in _BY_NAME or action in _OF_NAMES:
            return _of_variable(action, inside, value)
        return "module file" if action.startswith("module_") and _is_path(value) else None
    if name == "env":
        if isinstance(rest[0], int) and rest[1:2] and rest[1] in (*_BY_NAME, *_OF_NAMES):
            return _of_variable(str(rest[1]), rest[2:], value)
        return variable_requiring_trust(rest[0], value) if len(rest) == 1 and isinstance(rest[0], str) else None
    if value is None:
        return None
    if name == "environment":
        return ENVIRONMENT.get(str(rest[0])) or ("module file" if rest[0] == "modules" and _is_path(value) else None)
    if name == "defaults":
        names = [".".join(map(str, rest[:length])) for length in (1, 2)]
        harmless = not HARMLESS_KEYS.isdisjoint(names) or any(key.startswith(f"{names[-1]}.") for key in HARMLESS_KEYS)
        if harmless or (names[0].isidentifier() and names[0] not in fields_of(JobSpec)):  # no such key: refused later
            return None
        return JOB_KEYS.get(names[0], "how the training runs or continues")
    if name == "internet":
        return "proxy, to which programs send keys and data" if rest == ("proxy",) else None
    if name == "containers":
        return CONTAINERS.get(str(rest[0])) or ("module file" if rest[0] == "modules" and _is_path(value) else None)
    if name in ("srun_options", "mpirun_options") and len(rest) == 1:
        return None if name == "srun_options" and _is_harmless_option(str(value)) else f"option of {name[:-8]}"
    if name in ("sbatch", "srun") and isinstance(value, str | int | float | bool):
        names = [str(rest[-1]), *([str(value)] if "rename" in rest else [])]
        if top and rest[0] in {"require", "forbid", "since"}:
            return None
        if top and rest[0] == "drop":
            names = [str(value)]
            requires = _OF_THE_JOB[name].fullmatch(names[0]) is not None
        else:  # An abbreviation counts as an option that nobody knows.
            known = HARMLESS_OPTIONS.issuperset(names) and not any(map(_OF_THE_JOB[name].fullmatch, names))
            requires = not known or not _is_harmless_value(str(value))
        return f"option --{names[-1]} of {name}" if requires else None
    return None


def _of_variable(action: str, inside: KeyPath, value: Any) -> str | None:
    """What an action of a step or of `env` does with a variable; `inside` is the path below the action."""
    if len(inside) != 1:
        return None
    return variable_requiring_trust(inside[0], value) if action in _BY_NAME else variable_requiring_trust(value, None)


def _is_wide(ports: Any) -> bool:
    """Whether a range of ports leaves a random choice."""
    numbers = isinstance(ports, list) and len(ports) == 2 and all(type(port) is int for port in ports)
    return numbers and ports[1] - ports[0] + 1 >= _LEAST_PORTS


def _is_place(value: Any) -> bool:
    """Whether a text may be a path or an address."""
    text = NUMBER.sub("", str(value))
    return "/" in text or "${" in text


def _is_path(value: Any) -> bool:
    """Whether a module is named by its file, by several words, or by a name that only the job knows."""
    text = str(value)
    named = text.startswith(("/", ".", "~", "-")) or ".." in text or "${" in text
    return isinstance(value, str) and (named or re.search(r"[\s*?\[]", text) is not None)


def _is_harmless_value(text: str) -> bool:
    """Whether the value of an option is no path, which a plug-in may read or write, and no request to print."""
    path = text.startswith(("/", "./", "../", "~")) or (text.startswith("${") and "/" in text)
    return not path and PRINTS.search(text) is None


def _is_harmless_option(text: str) -> bool:
    """Whether a word is a long option of srun that does not run or write anything. Other words may be a program."""
    match = re.match(r"--([a-z][a-z0-9-]*)(?:=|\Z)", text)
    if match is None or _OF_THE_JOB["srun"].fullmatch(match[1]):
        return False
    return match[1] in HARMLESS_OPTIONS and _is_harmless_value(text[match.end() :])
