"""Layers of a site profile: the profiles it extends, the profile itself and the user's overrides, and their merge."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.job.document import Document, KeyPath, Source
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Layer, Merged, merge, parse_operators
from hpc_launch.job.reader import check
from hpc_launch.job.yaml_source import read_document
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.search_path import BASES, ENDING, search_folders
from hpc_launch.sites.trust import is_trusted, untrusted_keys

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")
OWN = frozenset(
    "name title kind extends status lifecycle grade source as_of facts contact url verified_on verified_by "
    "published unknown recorded".split()
)
"""Keys that describe the profile itself and are not inherited. The source of a value is looked up in the file that set
it."""


MAX_CHAIN = 50
"""Files that a profile may consist of. Those that ship with hpc-launch have up to four."""


class SiteLayer(Struct, frozen=True):
    """One file of a profile's chain."""

    path: Path
    document: Document
    trusted: bool = False
    """Whether it may decide which code a job runs."""

    @property
    def kind(self) -> str:
        """The file's `kind`."""
        return str(self.document.data.get("kind", "system"))

    @property
    def name(self) -> str:
        """Name of the layer in origins."""
        name = str(self.document.data.get("name", self.path.stem))
        return f"{'base' if self.kind == 'base' else 'site'} {name}"


Read = Callable[[Path], tuple[Document | None, list[Finding]]]
"""Reads a YAML file, as `read_document` does."""


def chain(
    path: Path,
    findings: list[Finding],
    *,
    own: bool = False,
    review: bool = False,
    folders: Sequence[Path] | None = None,
    read: Read = read_document,
) -> list[SiteLayer]:
    """All files of a profile, lowest first: the profiles it extends in order, each after its own parents, then the
    profile itself.

    A file that is reached twice counts once, at its first position. `own`: the first file is trusted,
    because the user named that very file. `review`: all files are, because nothing is run. `folders` replaces the
    search path for parents, `read` the reading of a file. HL307 cycle, HL308 not found, HL309 invalid name.
    """
    layers: dict[str, SiteLayer] = {}
    named = os.path.realpath(path) if own else None

    def fault(code: FindingCode, message: str, place: Place | None, hint: str) -> None:
        findings.append(Finding(code, message, place, hint))

    def enter(file: Path, named_at: Place | None, above: tuple[str, ...]) -> None:
        """Add a file after the profiles that it extends. `above` are the files that led to it."""
        real = os.path.realpath(file)
        if real in layers:
            return
        if real in above:
            cycle = " → ".join(Path(one).stem for one in (*above[above.index(real) :], real))
            message = f"profiles extend each other in a cycle: {cycle}"
            fault(FindingCode.CIRCULAR_EXTENDS, message, named_at, "remove one of them from `extends`")
            return
        if len(layers) + len(above) >= MAX_CHAIN:
            if not errors(findings):
                message = f"the profile extends {MAX_CHAIN} others or more"
                fault(FindingCode.CIRCULAR_EXTENDS, message, named_at, "merge some of them")
            return
        document, faults = read(file)
        findings.extend(faults)
        if document is None:
            return
        extends = document.data.get("extends")
        parents: list[Any] = extends if isinstance(extends, list) else [] if extends is None else [extends]
        for at, parent in enumerate(parents):
            place = document.places.get(("extends", at), document.places.get(("extends",)))
            parent_file = find_parent(parent, file, folders) if isinstance(parent, str) and NAME.match(parent) else None
            if parent_file is not None:
                enter(parent_file, place, (*above, real))
            elif isinstance(parent, str) and NAME.match(parent):
                hint = f"add {parent}{ENDING} or {BASES}/{parent}{ENDING} to a folder of the search path"
                fault(FindingCode.UNKNOWN_PARENT, f"profile `{parent}`, named in `extends`, not found", place, hint)
            else:
                hint = "use a name, or FOLDER/NAME relative to a folder of the search path"
                fault(FindingCode.INVALID_PARENT_NAME, f"`{parent}` is not a valid profile name", place, hint)
        layers[real] = SiteLayer(file, document, review or real == named or is_trusted(file, document))

    enter(path, None, ())
    return list(layers.values())


def find_parent(name: str, child: Path, folders: Sequence[Path] | None) -> Path | None:
    """The file that `child` extends by this name: first in its own folder, then on the search path.

    A profile's own name refers to the next profile of that name on the search path.
    """
    folder_of_child = child.parent
    path = search_folders() if folders is None else list(folders)
    if name != child.stem:
        own_folders = [folder_of_child, folder_of_child.parent] if folder_of_child.name == BASES else [folder_of_child]
        places = [*own_folders, *path]
    else:
        real, own = [os.path.realpath(folder) for folder in path], os.path.realpath(folder_of_child)
        places = path[real.index(own) + 1 :] if own in real else path
    for folder in places:
        for file in (folder / f"{name}{ENDING}", folder / BASES / f"{name}{ENDING}"):
            if os.path.isfile(file) and os.path.realpath(file) != os.path.realpath(child):
                return file
    return None


def merge_layers(layers: list[SiteLayer], user: Source | None, findings: list[Finding]) -> Merged:
    """Merge all layers. Errors are reported where they occur, even if a later layer overrides the value.

    HL313 for an untrusted layer that sets more than facts.
    """
    last = len(layers) - 1
    parts = [_as_layer(layer, own=at == last, findings=findings) for at, layer in enumerate(layers)]
    if user is not None:
        parts.append(parse_layer("user", user, findings))
    return merge(parts)


def _as_layer(layer: SiteLayer, *, own: bool, findings: list[Finding]) -> Layer:
    layer_data = parse_layer(layer.name, layer.document, findings)
    if not layer.trusted:
        findings += untrusted_keys(layer.path, layer.document, layer_data)
    if own:
        return layer_data
    data = {key: value for key, value in layer_data.data.items() if key not in OWN}
    return replace(layer_data, data=data)


def parse_layer(name: str, document: Source, findings: list[Finding]) -> Layer:
    """A file as a layer: operators parsed, short forms expanded, values checked."""
    layer, faults = parse_operators(name, document, {(): SiteProfile, **job_keys(document.data)})
    findings += faults
    parameter_places = {layer.places.get(path) for path, text in layer.written.items() if "${param." in text}
    findings += [fault for fault in check(layer, SiteProfile) if fault.place not in parameter_places]
    return layer


def job_keys(data: Mapping[str, Any]) -> dict[KeyPath, type[JobSpec]]:
    """Paths at which a profile has keys of a job file."""
    parent_file: dict[KeyPath, type[JobSpec]] = {}
    if isinstance(data.get("defaults"), dict):
        parent_file["defaults",] = JobSpec
    for table in ("node_classes", "queues"):
        entries = data.get(table)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict) and isinstance(entry.get("defaults"), dict):
                parent_file[table, name, "defaults"] = JobSpec
    return parent_file
