"""Whether a raw line of shell in a layer counts: in a user's own file, or in a file whose very content was trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.spec.document import Document, KeyPath


def store() -> Path:
    """The file with the digests of trusted files, a line each."""
    return config_folder() / "trusted-profiles"


def digest(text: str) -> str:
    """What a file's content is known by: any change to the file ends the trust."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_trusted(path: Path, text: str) -> bool:
    """Whether raw lines of this file count: it lies among the user's own profiles, or its content was trusted."""
    own = config_folder() / "sites"
    if path.parent.resolve() == own.resolve() and not path.is_symlink():
        return True
    try:
        known = store().read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        return False
    return digest(text) in known


def trust(texts: Iterable[str]) -> None:
    """Trust files of this content from now on. Raises OSError where that cannot be noted."""
    path = store()
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.read_text("utf-8").split() if path.exists() else []
    new = [line for line in map(digest, texts) if line not in known]
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in new)


def raw_lines(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Where raw lines stand: the key `raw` of a step of any `prelude`."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, child in children:
        here = (*path, key)
        if key == "raw" and "prelude" in "".join(map(str, path[-2:-1])) and isinstance(child, str):
            yield here
        yield from raw_lines(child, here)


def refused(path: Path, document: Document) -> list[Finding]:
    """HL313 for each raw line of a layer that is not trusted."""
    found = list(raw_lines(document.data))
    if not found or is_trusted(path, document.text):
        return []
    message = "a raw line of shell in a shared profile does not count"
    hint = "read it, then `hpc-launch sites add … --trust REVISION`; or use the typed steps"
    return [Finding(FindingCode.UNTRUSTED_SHELL, message, document.places.get(here), hint) for here in found]
