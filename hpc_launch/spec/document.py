"""The data of a file, and beside it where each value stands in the file and how it is written there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from hpc_launch.base.findings import Place

Path = tuple[str | int, ...]
"""Where a value stands in the data: the keys and list positions that lead to it."""


class Source(Protocol):
    """Data with its tables: `Document`, `merge.Layer` and `merge.Merged` are such."""

    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def places(self) -> Mapping[Path, Place]: ...
    @property
    def key_places(self) -> Mapping[Path, Place]: ...
    @property
    def written(self) -> Mapping[Path, str]: ...


class Document(Struct, frozen=True):
    """The data of a file (dict, list, str, int, float, bool, None), with tables by the path of each value.

    `places` has every value, () the whole; `key_places` the key of each value in a mapping, by the value's path;
    `written` the text of each scalar as the file has it, so `1.10` and not 1.1 (a quoted text without its quotes).
    What an alias stands for has the places of its anchor, save that the value itself is placed at the alias.
    """

    data: dict[str, Any]
    places: dict[Path, Place] = {}
    key_places: dict[Path, Place] = {}
    written: dict[Path, str] = {}
    text: str = ""
    """The file as it was read."""
