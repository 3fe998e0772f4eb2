"""A site profile from all its layers: read, put together, its parameters filled in, typed; and as text for a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.sites.layers import SiteLayer, chain, put_together
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.profile_checks import check_profile, tokens
from hpc_launch.sites.provenance import Provenance, provenance, unknown_groups
from hpc_launch.spec.document import Document, KeyPath
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.reader import read
from hpc_launch.spec.regex_safety import BACKTRACKING_MESSAGE, may_backtrack_forever
from hpc_launch.spec.type_hints import fields_of

_PARAMETER = re.compile(r"\$\$\{|\$\{param\.([^}]*)\}")


class Site(Struct, frozen=True):
    """A profile, the values it came from, the sources that each file names, and the text that a run keeps of it."""

    profile: SiteProfile
    merged: Merged
    provenance: dict[str, Provenance]
    text: str
    layers: tuple[str, ...]
    """Names of the layers, the lowest first."""


def read_site(
    path: Path,
    overlay: Document | None,
    findings: list[Finding],
    *,
    asked_at: Place | None = None,
    own: bool = False,
    folders: Sequence[Path] | None = None,
    examples: bool = False,
) -> Site | None:
    """The profile in a file with all that it extends; None where a finding is an error.

    `overlay` is the user's `user.yaml`, whose `profiles:` has keys for profiles by name; `own` says that the user named
    this very file. `folders` are those in which parents are looked for, by default the search path. With `examples`
    a template's parameters have their examples for values.
    """
    found: list[Finding] = []
    layers = chain(path, found, own=own, folders=folders)
    findings += found
    if errors(found) or not layers:
        return None
    last = layers[-1].document
    if last.data.get("kind") == "base":
        hint = "name a system; a base is what others extend"
        findings.append(Finding(FindingCode.BASE_NOT_SYSTEM, f"`{path.stem}` is a base, not a system", asked_at, hint))
        return None
    user = None if last.data.get("recorded") is True else _users_own(overlay, last.data.get("name"))
    faults: list[Finding] = []
    merged = put_together(layers, user, faults)
    fill(merged, faults, examples=examples)
    profile, more = read(merged, SiteProfile)
    if any(fault.code == FindingCode.INVALID_PARAMETER for fault in faults):
        more = [fault for fault in more if "${param." not in fault.message]
    faults += [fault for fault in more if fault not in faults]
    for layer in layers:
        faults += tokens(layer.document)
        faults += unknown_groups(layer.document, frozenset(fields_of(SiteProfile)))
    if profile is not None:
        faults += check_profile(profile, merged)
    findings += faults
    if profile is None or errors(faults):
        return None
    sources = {place.file: provenance(layer.document) for layer in layers if (place := _place(layer))}
    alone = len(layers) == 1 and user is None
    names = (*(layer.name for layer in layers), *(["user"] if user is not None else []))
    return Site(profile, merged, sources, last.text if alone else recorded(merged), names)


def _place(layer: SiteLayer) -> Place | None:
    return layer.document.places.get(())


def _users_own(overlay: Document | None, name: object) -> Document | None:
    """`profiles: {NAME: …}` of `user.yaml` as a document of its own."""
    path = ("profiles", name)
    held: Any = overlay.data if overlay else None
    for key in path:
        held = held.get(key) if isinstance(held, dict) else None
    if overlay is None or not isinstance(held, dict):
        return None

    def inside(table: Mapping[KeyPath, Any]) -> dict[KeyPath, Any]:
        return {key[2:]: value for key, value in table.items() if key[:2] == path}

    return Document(held, inside(overlay.places), inside(overlay.key_places), inside(overlay.written))


class _Parameters:
    """The values of a profile's parameters, and what is wrong with them (HL311)."""

    def __init__(self, merged: Merged, findings: list[Finding], *, examples: bool) -> None:
        self.merged = merged
        self.findings = findings
        self.examples = examples
        known, given = merged.data.get("parameters"), merged.data.get("values")
        self.known: dict[str, Any] = known if isinstance(known, dict) else {}
        self.given: dict[str, Any] = given if isinstance(given, dict) else {}
        self.values: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        for name, parameter in self.known.items():
            self.take(name, parameter if isinstance(parameter, dict) else {})
        for name in self.given:
            if name not in self.known:
                self.fault(f"there is no parameter `{name}`", ("values", name), self.hint())

    def take(self, name: str, parameter: dict[str, Any]) -> None:
        """The value of one parameter: as given, else its default."""
        value, about = self.given.get(name, parameter.get("default")), parameter.get("about")
        if value is None and self.examples:
            value = parameter.get("example")
        if value is None:
            how = f"`values: {{{name}: …}}` in a profile that extends it, or in user.yaml"
            self.fault(f"parameter `{name}` is not set", ("parameters", name), f"{about}: {how}" if about else how)
            return
        text = self.merged.written.get(("values", name), str(value))
        pattern = parameter.get("pattern")
        if isinstance(pattern, str) and may_backtrack_forever(pattern):
            message = f"{BACKTRACKING_MESSAGE}: `{pattern}`"
            self.fault(message, ("parameters", name, "pattern"), "write the pattern without one inside the other")
        elif isinstance(pattern, str) and not _matches(pattern, text):
            message = f"the value `{text}` of parameter `{name}` does not match `{pattern}`"
            self.fault(message, ("values", name), about or f"write a value that matches `{pattern}`")
        self.values[name] = text
        if text.isascii() and text.isdecimal() and len(text) < 18:
            self.numbers[name] = int(text)

    def fill(self, value: Any, path: KeyPath) -> Any:
        """`value` with `${param.NAME}` filled in all its texts; one that is nothing else may become a number."""
        if isinstance(value, dict):
            return {key: self.fill(child, (*path, key)) for key, child in value.items()}
        if isinstance(value, list):
            return [self.fill(child, (*path, at)) for at, child in enumerate(value)]
        if not isinstance(value, str) or "${param." not in value:
            return value
        text = _PARAMETER.sub(lambda match: self.one(match, path), value)
        self.merged.written[path] = text
        alone = _PARAMETER.fullmatch(value)
        return self.numbers.get(alone.group(1), text) if alone else text

    def one(self, match: re.Match[str], path: KeyPath) -> str:
        """The text for one `${param.NAME}`; one that is not there stays, with a finding."""
        name = match.group(1)
        if name is not None and name not in self.known:
            self.fault(f"there is no parameter `{name}`", path, self.hint())
        return match.group() if name is None else self.values.get(name, match.group())

    def hint(self) -> str:
        """Which parameters there are."""
        return f"known are {', '.join(self.known)}" if self.known else "this profile has no `parameters:`"

    def fault(self, message: str, path: KeyPath, hint: str | None) -> None:
        """Note a fault at a value."""
        self.findings.append(Finding(FindingCode.INVALID_PARAMETER, message, self.merged.places.get(path), hint))


def fill(merged: Merged, findings: list[Finding], *, examples: bool = False) -> None:
    """Put values of parameters into all texts of the profile; with `examples` theirs, where there is no value."""
    parameters = _Parameters(merged, findings, examples=examples)
    for key in merged.data:
        if key != "parameters":
            merged.data[key] = parameters.fill(merged.data[key], (key,))


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def recorded(merged: Merged) -> str:
    """All layers as one file, which a run keeps: it needs no other file, and says where each value was from."""
    lines = ["# All layers of the profile, put together by hpc-launch when the run was made.", "recorded: true"]
    lines += _lines(
        merged, {key: value for key, value in merged.data.items() if key not in ("extends", "recorded")}, (), 0
    )
    return "\n".join(lines) + "\n"


def _lines(merged: Merged, data: Mapping[str, Any], path: KeyPath, depth: int) -> Iterator[str]:
    for key, value in data.items():
        here = (*path, key)
        start = f"{'  ' * depth}{_word(key)}:"
        if isinstance(value, dict) and value and depth < 2:
            yield start
            yield from _lines(merged, value, here, depth + 1)
        else:
            origin = merged.origins.get(here)
            yield f"{start} {_flow(merged, value, here)}{f' # {origin.short()}' if origin else ''}"


def _flow(merged: Merged, value: Any, path: KeyPath) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_word(key)}: {_flow(merged, child, (*path, key))}" for key, child in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_flow(merged, child, (*path, at)) for at, child in enumerate(value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, str):
        return _word(value)
    return merged.written.get(path, json.dumps(value))


def _word(text: str) -> str:
    """A text that YAML reads as this text, with nothing in it that steers a terminal."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(map(_escaped, quoted))


def _escaped(character: str) -> str:
    code = ord(character)
    return character if character.isprintable() else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
