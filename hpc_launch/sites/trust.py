"""Trust in raw shell lines: they are allowed in a user's own file, or in a file whose exact content was trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.spec.document import Document, KeyPath


def trust_file() -> Path:
    """File with the digests of trusted files, one per line."""
    return config_folder() / "trusted-profiles"


def digest(text: str) -> str:
    """Digest of a file's content. Any change to the file ends the trust."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_trusted(path: Path, text: str) -> bool:
    """Whether raw lines of this file are allowed: it is among the user's own profiles, or its content was trusted."""
    own = config_folder() / "sites"
    if path.parent.resolve() == own.resolve() and not path.is_symlink():
        return True
    try:
        trusted = trust_file().read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        return False
    return digest(text) in trusted


def trust(texts: Iterable[str]) -> None:
    """Trust files with this content from now on. Raises OSError if that cannot be recorded."""
    path = trust_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    trusted = path.read_text("utf-8").split() if path.exists() else []
    new = [line for line in map(digest, texts) if line not in trusted]
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in new)


def raw_lines(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Paths of raw lines: the key `raw` of a step in any `prelude`."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, child in children:
        key_path = (*path, key)
        if key == "raw" and "prelude" in "".join(map(str, path[-2:-1])) and isinstance(child, str):
            yield key_path
        yield from raw_lines(child, key_path)


def untrusted_lines(path: Path, document: Document) -> list[Finding]:
    """HL313 for each raw line of a layer that is not trusted."""
    paths = list(raw_lines(document.data))
    if not paths or is_trusted(path, document.text):
        return []
    message = "raw shell line in an untrusted profile"
    hint = "review it and run `hpc-launch sites add … --trust REVISION`, or use typed steps"
    return [Finding(FindingCode.UNTRUSTED_SHELL, message, document.places.get(key_path), hint) for key_path in paths]
