"""The keys of FSDP configurations, by who reads them and for which version of FSDP.

Accelerate reads YAML with a mapping `fsdp_config`; the Transformers Trainer reads a JSON mapping. Neither reports a
key in there that it does not know.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from hpc_launch.plan.strategies.key_check import KeyTable
from hpc_launch.plan.strategies.key_tables import TOP_LEVEL, Kind, LibraryKeys, read_notes, shipped_keys

Reader = Literal["accelerate", "trainer"]


class FsdpKey(Struct, frozen=True):
    """A key: the kind of its value, the versions of FSDP that it is for, and the words that it accepts."""

    kind: Kind
    versions: tuple[int, ...] = (1, 2)
    words: tuple[str, ...] = ()


def library_of(reader: Reader) -> Literal["accelerate", "transformers"]:
    """The library that reads the file."""
    return "accelerate" if reader == "accelerate" else "transformers"


def fsdp_keys(reader: Reader, keys: LibraryKeys | None = None) -> dict[str, FsdpKey]:
    """The FSDP keys that a reader knows, without the prefix `fsdp_`; `keys`: its release, else the shipped one."""
    library = library_of(reader)
    notes = read_notes("fsdp")
    keys = keys or shipped_keys(library)
    mapping = keys.mappings["fsdp_config" if reader == "accelerate" else TOP_LEVEL]
    known: dict[str, Any] = {name.removeprefix("fsdp_"): kind for name, kind in mapping.items()}
    known |= notes["kinds"][library]
    choices = keys.choices or shipped_keys("accelerate").choices  # the Trainer hands the words to Accelerate
    return {
        name: FsdpKey(kind, versions_of(name), choices.get(name, ()) if kind == "text" else ())
        for name, kind in known.items()
    }


def versions_of(name: str) -> tuple[int, ...]:
    """The versions of FSDP that a key is for."""
    note = read_notes("fsdp")["versions"].get(name)
    return (note["only"],) if note else (1, 2)


def accelerate_file(keys: LibraryKeys | None = None) -> KeyTable:
    """The top level of Accelerate's file: the fields of ClusterConfig, and those of an older form."""
    known = (keys or shipped_keys("accelerate")).mappings[TOP_LEVEL]
    older: list[str] = read_notes("fsdp")["older_top_level"]
    every: dict[str, Kind] = {**known, **dict.fromkeys(older, "any")}
    return KeyTable(title="the Accelerate configuration", keys=every, unknown="Accelerate refuses the whole file")
