"""The configuration keys that DeepSpeed, Accelerate and the Transformers Trainer read.

`key_tables/LIBRARY.json` is generated from the installed library (`make key-tables`) and names its release.
`key_tables/*_notes.yaml` is written by hand: what no library tells, such as what replaced a removed key.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

FOLDER = Path(__file__).parent / "key_tables"

Library = Literal["deepspeed", "accelerate", "transformers"]
LIBRARIES: tuple[Library, ...] = ("deepspeed", "accelerate", "transformers")

Kind = Literal["bool", "int", "number", "text", "object", "any"]
"""The type of a value. `int` includes 5e8, as in DeepSpeed. `any`: the library does not tell."""

TOP_LEVEL = "top_level"
"""The name of a file's outermost mapping; any other mapping is named by its dotted path."""


class LibraryKeys(Struct, frozen=True):
    """What one release of a library reads: by mapping, each key with the kind of its value."""

    release: str
    mappings: Mapping[str, Mapping[str, Kind]]
    removed: Mapping[str, tuple[str, ...]] = {}
    """By mapping, the keys that the library refuses because it removed them."""
    deprecated: Mapping[str, Mapping[str, str]] = {}
    """By mapping, each key that still works, with the key that replaced it."""
    choices: Mapping[str, tuple[str, ...]] = {}
    """Keys without the prefix `fsdp_`, with the words that each accepts."""
    defaults: Mapping[str, str] = {}
    """What Accelerate assumes for a key of `fsdp_config` that is left out."""


@cache
def shipped_keys(library: Library) -> LibraryKeys:
    """The table that ships with hpc-launch."""
    return msgspec.json.decode((FOLDER / f"{library}.json").read_bytes(), type=LibraryKeys)


@cache
def read_notes(name: Literal["deepspeed", "fsdp"]) -> Any:
    """The hand-written part, as plain data."""
    import yaml

    return yaml.safe_load((FOLDER / f"{name}_notes.yaml").read_text(encoding="utf-8"))
