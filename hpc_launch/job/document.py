"""A parsed file: its data, and the position and original text of each value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from hpc_launch.base.files import FileAccess
from hpc_launch.base.findings import Place

KeyPath = tuple[str | int, ...]
"""Keys and list indices that lead to a value."""


class Source(Protocol):
    """Data with its position tables. Implemented by `Document`, `merge.Layer` and `merge.Merged`."""

    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def places(self) -> Mapping[KeyPath, Place]: ...
    @property
    def key_places(self) -> Mapping[KeyPath, Place]: ...
    @property
    def written(self) -> Mapping[KeyPath, str]: ...


class Document(Struct, frozen=True):
    """The data of a file (dict, list, str, int, float, bool, None), with tables keyed by the path of each value.

    `places` has every value, () the whole file; `key_places` has the key of each mapping entry; `written` has the
    original text of each scalar, so `1.10` and not 1.1 (quoted text without its quotes). Values below an alias have the
    positions of the anchor; the aliased value itself has that of the alias.
    """

    data: dict[str, Any]
    places: dict[KeyPath, Place] = {}
    key_places: dict[KeyPath, Place] = {}
    written: dict[KeyPath, str] = {}
    text: str = ""
    """The file's text."""
    opened: FileAccess | None = None
    """Who can change the file that was read: its path may lead to another one by now."""
