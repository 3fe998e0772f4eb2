"""Values of a profile that an untrusted layer fills in: `${param.NAME}`, `${paths.NAME}` and `${account}`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import KeyPath
from hpc_launch.job.merge import Merged
from hpc_launch.sites.code_values import values_requiring_trust
from hpc_launch.sites.layers import SiteLayer
from hpc_launch.sites.trust import references, trust_hint


class Reference(Struct, frozen=True):
    """A text, and a name in it whose value comes from an untrusted layer."""

    path: KeyPath
    name: str
    place: Place
    hint: str


def references_to_untrusted(merged: Merged, layers: Sequence[SiteLayer]) -> list[Reference]:
    """All texts with a name that an untrusted layer defines. Call this before parameters are filled in."""
    hints = {str(layer.path): trust_hint(layer.path) for layer in layers if not layer.trusted}
    if not hints:
        return []
    return [
        Reference(path, name, place, hints[place.file])
        for path, text in _texts(merged.data, ())
        if "${" in text and path[0] not in ("parameters", "values")
        for name, place in _definitions(merged, text)
        if place.file in hints
    ]


def untrusted_fillings(merged: Merged, found: Sequence[Reference]) -> Iterator[Finding]:
    """HL313 for each of these texts that requires trust once the parameters are filled in."""
    if not found:
        return
    for value in values_requiring_trust(merged.data):
        for reference in found:
            if reference.path[: len(value.path)] == value.path:
                message = f"`${{{reference.name}}}` fills in a {value.kind}, and its profile is not trusted"
                yield Finding(FindingCode.UNTRUSTED_CODE, message, reference.place, reference.hint)


def _definitions(merged: Merged, text: str) -> Iterator[tuple[str, Place]]:
    """The names in a text, and in the texts of those names, with the places that define them; each name once."""
    seen: set[str] = set()
    texts = [text]
    while texts:
        text = texts.pop()
        for prefix, tables in (("param", ("values", "parameters")), ("paths", ("paths",))):
            for name in references(text, prefix):
                full = f"{prefix}.{name}"
                if full in seen:
                    continue
                seen.add(full)
                for table in tables:
                    definition = merged.data.get(table)
                    value = definition.get(name) if isinstance(definition, dict) else None
                    for path, inner in _texts(value, (table, name)):
                        place = merged.origin(*path).place
                        if place is not None:
                            yield full, place
                        texts.append(inner)
        if "${account}" in text and "account" not in seen:
            seen.add("account")
            yield from (("account", place) for path in _accounts(merged) if (place := merged.origin(*path).place))


def _accounts(merged: Merged) -> Iterator[KeyPath]:
    """Where the profile decides about the account of the job: a word such as `../x` would lead its folders elsewhere.

    An account suffix counts, because the folders have the account's name without it.
    """
    for path in merged.origins:
        if (
            path[:2] == ("account", "variables")
            or path[-2:] == ("defaults", "account")
            or path[-1:] == ("account_suffix",)
        ):
            yield path


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, (*path, key))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from _texts(child, (*path, at))
    elif value is not None:
        yield path, str(value)
