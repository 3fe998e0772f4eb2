"""Trust in the values of a profile that decide which code a job runs (`sites/code_values.py`).

They are allowed in a user's own files, in those of the administrator and of hpc-launch, and in a file whose exact
content was trusted.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpc_launch.base.files import access_to, only_writable_by, read_text, write_atomic
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.base.folders_above import only_these_can_move
from hpc_launch.base.resources import shipped
from hpc_launch.base.user_dirs import config_folder, make_private
from hpc_launch.job.document import Document, Source
from hpc_launch.job.shell_text import end_of_placeholders, visible
from hpc_launch.sites.code_values import CodeValue, values_requiring_trust
from hpc_launch.sites.team_profiles import find_team, shared_folders, teams_folder

MACHINE = Path("/etc/hpc-launch/sites")
"""The administrator's profiles."""


def trust_file() -> Path:
    """File with the digests of trusted files, one per line."""
    return config_folder() / "trusted-profiles"


def digest(text: str) -> str:
    """Digest of a file's content. Any change to the file ends the trust."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_trusted(path: Path, document: Document) -> bool:
    """Whether a file may decide which code a job runs, by its place and its owner or by its content.

    `document` is what was read at `path`.
    """
    folders = (path.parent, path.parent.parent) if path.parent.name == "bases" else (path.parent,)
    return any(_is_own_place(path, document, folder) for folder in folders) or is_trusted_text(document.text)


def is_trusted_text(text: str) -> bool:
    """Whether a file with this content was trusted, wherever it lies."""
    return digest(text) in _trusted()


def _is_own_place(path: Path, document: Document, folder: Path) -> bool:
    """Whether the file lies in a folder of hpc-launch, the administrator or the user, and nobody else can change it."""
    try:
        ours = shipped("site_configs")
        if os.path.abspath(folder) in {os.path.abspath(ours), os.path.realpath(ours)}:  # by name: a link may change
            return True
        if document.opened is None or stat.S_ISLNK(path.lstat().st_mode):
            return False
        real = folder.resolve(strict=True)
        named = os.environ.get("HPC_LAUNCH_SITE_PATH", "").split(os.pathsep)
        own = (config_folder() / "sites", *map(Path, filter(None, named)), *shared_folders())
        owners = {0} if real == MACHINE else {0, os.getuid()} if real in {one.resolve() for one in own} else set()
        # Whoever can write to a folder can replace what is in it, even between the reading and this look.
        parts = (document.opened, access_to(real), access_to(path.parent))
        unchanged = all(any(only_writable_by(owner, part) for owner in owners) for part in parts)
        return unchanged and only_these_can_move(path, owners)
    except OSError:
        pass
    return False


def _trusted() -> list[str]:
    try:
        return read_text(trust_file(), errors="replace", owner=os.getuid()).split()
    except OSError:
        return []


def trust(texts: Iterable[str]) -> None:
    """Trust files with this content from now on. Raises OSError if that cannot be recorded."""
    trusted = dict.fromkeys([*_trusted(), *map(digest, texts)])
    make_private(trust_file().parent)
    write_atomic(trust_file(), "".join(f"{line}\n" for line in trusted), mode=0o600)


def untrusted_values(path: Path, source: Source) -> list[Finding]:
    """HL313 for each value of a file that requires trust, by its parsed data."""
    hint = trust_hint(path)
    return [untrusted(value, source, hint) for value in values_requiring_trust(source.data)]


def untrusted(value: CodeValue, source: Source, hint: str) -> Finding:
    """HL313 for one value."""
    place = next(filter(None, (source.places.get(value.path[:end]) for end in range(len(value.path), -1, -1))), None)
    message = f"{value.kind} in an untrusted profile: `{visible(value.text)}`"
    return Finding(FindingCode.UNTRUSTED_CODE, message, place, hint)


def trust_hint(path: Path) -> str:
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
    return f"review it, then copy the profile to {own}, or add it with `sites add … --trust COMMIT`"


def references(text: str, prefix: str) -> Sequence[str]:
    """The names after `prefix` in the placeholders of a text: `${paths.scratch}` refers to `scratch` of `paths`."""
    return re.compile(rf"\$\{{{re.escape(prefix)}\.([^}}]*)\}}").findall(text, 0, end_of_placeholders(text))
