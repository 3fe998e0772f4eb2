"""Trust in the files of a profile: by their place and owner, or by the digest of their content.

A trusted file may say everything. Any other file may only state facts: what it sets beyond `FACTS` could decide which
code a job runs or which secrets it gets, so a job on that site is refused until the user has trusted the file.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_launch.base.files import (
    access_to,
    config_folder,
    make_private,
    only_these_can_move,
    only_writable_by,
    read_text,
    write_atomic,
)
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.base.installed import shipped
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.merge import Layer
from hpc_launch.job.shell_text import visible
from hpc_launch.sites.search_path import find_team, teams, teams_folder

MACHINE = Path("/etc/hpc-launch/sites")
"""The administrator's profiles."""
FACTS: Mapping[str, frozenset[str] | None] = {
    **dict.fromkeys(
        "name title kind extends recorded status lifecycle grade source as_of facts contact url verified_on "
        "verified_by published unknown detect hosts default_queue billing pytorch versions".split()
    ),
    "scheduler": frozenset({"type", "version", "submit_from", "submit_hosts"}),
    "account": frozenset({"required", "pattern", "find"}),
    "internet": frozenset({"compute", "trackers"}),
    "node_classes": frozenset(
        "about cpus cpus_per_gpu threads_per_core memory memory_per_gpu arch gpus gpus_allowed gpu_type gpu_memory "
        "gpu_vendor gpu_request constraint versions".split()
    ),
    "queues": frozenset(
        "about node_class partition qos constraint default_time limits node_minutes gpus gpus_per_user max_jobs "
        "max_submitted access exclusive memory preemption".split()
    ),
}
"""Keys that an untrusted file may set, with the keys below them, or those of each entry of a table. None: any."""
_TABLES = ("node_classes", "queues")


def trust_file() -> Path:
    """File with the trusted contents: one digest per line, and the team or file for which it was trusted."""
    return config_folder() / "trusted-profiles"


def digest(text: str) -> str:
    """Digest of a file's content, whatever its line ends. Any change to the file ends the trust."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def is_trusted(path: Path, document: Document) -> bool:
    """Whether a file may decide which code a job runs, by its place and its owner or by its content.

    `document` is what was read at `path`.
    """
    folders = (path.parent, path.parent.parent) if path.parent.name == "bases" else (path.parent,)
    return any(_is_own_place(path, document, folder) for folder in folders) or is_trusted_text(document.text)


def is_trusted_text(text: str) -> bool:
    """Whether a file with this content was trusted, wherever it lies."""
    wanted = digest(text)
    return any(line.partition(" ")[0] == wanted for line in _lines())


def _is_own_place(path: Path, document: Document, folder: Path) -> bool:
    """Whether the file lies in a folder of hpc-launch, the administrator or the user, and nobody else can change it."""
    try:
        ours = shipped("site_configs")
        if os.path.abspath(folder) in {os.path.abspath(ours), os.path.realpath(ours)}:  # by name: a link may change
            return True
        if document.opened is None or stat.S_ISLNK(path.lstat().st_mode):
            return False
        real = folder.resolve(strict=True)
        shared = (team.folder for team in teams() if team.commit is None)
        named = os.environ.get("HPC_LAUNCH_SITE_PATH", "").split(os.pathsep)
        own = (config_folder() / "sites", *map(Path, filter(None, named)), *shared)
        owners = {0} if real == MACHINE else {0, os.getuid()} if real in {one.resolve() for one in own} else set()
        # Whoever can write to a folder can replace what is in it, even between the reading and this look.
        parts = (document.opened, access_to(real), access_to(path.parent))
        unchanged = all(any(only_writable_by(owner, part) for owner in owners) for part in parts)
        return unchanged and only_these_can_move(path, owners)
    except OSError:
        return False


def _lines() -> list[str]:
    try:
        return read_text(trust_file(), errors="replace", owner=os.getuid()).splitlines()
    except OSError:
        return []


def trust(digests: Iterable[str], name: str) -> None:
    """Trust these contents instead of all that were trusted before for a team or file, `name`. Raises OSError."""
    others = [line for line in _lines() if line.partition(" ")[2] != name]
    _write([*others, *(f"{one} {name}" for one in sorted(set(digests)))])


def withdraw(name: str) -> bool:
    """Trust no longer what was trusted for a team, a file, or the files in a folder. False if nothing was."""
    lines = _lines()
    owners = [line.partition(" ")[2] for line in lines]
    kept = [
        line for line, owner in zip(lines, owners, strict=True) if owner != name and not owner.startswith(f"{name}/")
    ]
    if kept != lines:
        _write(kept)
    return kept != lines


def _write(lines: Collection[str]) -> None:
    make_private(trust_file().parent)
    write_atomic(trust_file(), "".join(f"{line}\n" for line in lines), mode=0o600)


def untrusted_keys(path: Path, document: Document, layer: Layer) -> Iterator[Finding]:
    """HL313 if an untrusted file sets more than facts, or removes what others set. `layer` is its parsed content."""
    found = list(dict.fromkeys(_beyond_facts(layer)))
    if found:
        operators = layer.operators.get(found[0])
        place = operators[0].place if operators else layer.key_places.get(found[0], layer.places.get(found[0]))
        keys = ", ".join(f"`{visible('.'.join(map(str, key)))}`" for key in found)
        message = f"the profile is not trusted, and sets more than facts: {keys}"
        yield Finding(FindingCode.UNTRUSTED_CODE, message, place, trust_hint(path, document))


def _beyond_facts(layer: Layer) -> Iterator[KeyPath]:
    """The keys that only a trusted file may set."""
    for path, operators in layer.operators.items():
        if any(one.kind in ("remove", "replace") for one in operators):
            yield path
    for key, value in layer.data.items():
        inner = FACTS.get(key)
        entries = value.items() if key in _TABLES and isinstance(value, dict) else [(None, value)]
        if key not in FACTS:
            yield (key,)
            continue
        for name, entry in entries:
            path = (key,) if name is None else (key, name)
            if inner is not None and isinstance(entry, dict):
                yield from ((*path, other) for other in entry if other not in inner)
            if _is_filled_in_or_removed(entry):
                yield path


def _is_filled_in_or_removed(value: Any) -> bool:
    """Whether a value is null, or is filled in from the environment or another key."""
    if isinstance(value, dict | list):
        return any(map(_is_filled_in_or_removed, value.values() if isinstance(value, dict) else value))
    return value is None or (isinstance(value, str) and "${" in value)


def trust_hint(path: Path, document: Document) -> str:
    """How to trust a file after a review."""
    try:
        team = find_team(path.absolute().relative_to(teams_folder().absolute()).parts[0])
    except (ValueError, IndexError):
        team = None
    if team is not None and team.commit is not None:
        return f"review it, then run `hpc-launch sites update {team.name} --trust {team.commit}`"
    own = config_folder() / "sites"
    if own in path.absolute().parents:
        return f"let nobody but you and root write to the file, to {own} and to the folders above it"
    return f"review it, then run `hpc-launch sites add {path.absolute()} --trust {digest(document.text)}`"
