"""Read a site profile by name or file with all its layers: merge, parameters, types; and the user's `user.yaml`.

Checks of a profile beyond its types: steps, names, limits, GPU requests and secrets.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import config_folder, only_writable_by, refuse_replaceable
from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.base.patterns import SECRET_NAME, SECRET_VALUE, matches_whole
from hpc_launch.job.document import Document, KeyPath, as_written, yaml_text
from hpc_launch.job.merge import Merged, sublayer
from hpc_launch.job.reader import check, read
from hpc_launch.job.shell_text import end_of_placeholders
from hpc_launch.job.type_hints import fields_of
from hpc_launch.job.yaml_source import read_document
from hpc_launch.sites.job_settings import ACTIONS, ACTIONS_BY_PLACE
from hpc_launch.sites.layers import SiteLayer, chain, merge_layers
from hpc_launch.sites.profile import Overlay, SiteProfile
from hpc_launch.sites.provenance import Provenance, provenance, unknown_groups
from hpc_launch.sites.search_path import find_profile, is_file_name, search_folders

COMMENTED = 3
"""Keys that are this deep have their origin beside them in the profile of a run."""
_PARAMETER = re.compile(r"\$\$\{|\$\{param\.([^}]*)\}")


class Site(Struct, frozen=True):
    """A profile, its merged values, the sources that each file names, and the text that a run keeps."""

    profile: SiteProfile
    merged: Merged
    provenance: dict[str, Provenance]
    text: str
    layers: tuple[str, ...]
    """Names of the layers, lowest first."""


def read_site(
    path: Path,
    overlay: Document | None,
    findings: list[Finding],
    *,
    asked_at: Place | None = None,
    own: bool = False,
    folders: Sequence[Path] | None = None,
    review: bool = False,
) -> Site | None:
    """Read the profile in a file with everything it extends. None if there are errors.

    `overlay` is the user's `user.yaml`, whose `profiles:` has keys for profiles by name. `own` means that the user
    named this very file. `folders` replaces the search path for parents. `review`: all files count as trusted, and the
    parameters of a template default to their examples.
    """
    chain_findings: list[Finding] = []
    layers = chain(path, chain_findings, own=own, review=review, folders=folders)
    findings += chain_findings
    if errors(chain_findings) or not layers:
        return None
    last = layers[-1].document
    if last.data.get("kind") == "base":
        message = f"`{path.stem}` is a base profile, not a system"
        hint = "name a system profile; bases can only be extended"
        findings.append(Finding(FindingCode.BASE_NOT_SYSTEM, message, asked_at, hint))
        return None
    is_record = own and last.data.get("recorded") is True  # a run names the file of its copy
    keys = None if overlay is None else sublayer("user", overlay, "profiles", str(last.data.get("name")))
    user = None if is_record or keys is None or not keys.data else keys
    faults: list[Finding] = []
    merged = merge_layers(layers, user, faults)
    if any(fault.code == FindingCode.UNTRUSTED_CODE for fault in faults):
        findings += faults
        return None
    if not is_record:
        merged.data.pop("recorded", None)
    fill(merged, faults, examples=review)
    profile, type_faults = read(merged, SiteProfile)
    if any(fault.code == FindingCode.INVALID_PARAMETER for fault in faults):
        type_faults = [fault for fault in type_faults if "${param." not in fault.message]
    faults += [fault for fault in type_faults if fault not in faults]
    for layer in layers:
        faults += find_tokens(layer.document)
        faults += unknown_groups(layer.document, frozenset(fields_of(SiteProfile)))
    if profile is not None:
        faults += check_profile(profile, merged)
    findings += faults
    if profile is None or errors(faults):
        return None
    sources = provenance_of(layers)
    single_layer = len(layers) == 1 and user is None
    names = (*(layer.name for layer in layers), *(["user"] if user is not None else []))
    return Site(profile, merged, sources, last.text if single_layer else recorded(merged), names)


def provenance_of(layers: Sequence[SiteLayer]) -> dict[str, Provenance]:
    """The sources that each file names."""
    return {place.file: provenance(one.document) for one in layers if (place := one.document.places.get(()))}


def fill(merged: Merged, findings: list[Finding], *, examples: bool = False) -> None:
    """Substitute `${param.NAME}` in all text of the profile, with HL311 for errors. A value that consists of one
    parameter may become a number. With `examples`, examples replace missing values."""
    tables = (merged.data.get("parameters"), merged.data.get("values"))
    declared, given = (table if isinstance(table, dict) else {} for table in tables)
    known = f"known parameters: {', '.join(declared)}" if declared else "this profile has no `parameters:`"
    texts: dict[str, str] = {}

    def fault(message: str, path: KeyPath, hint: str) -> None:
        findings.append(Finding(FindingCode.INVALID_PARAMETER, message, merged.places.get(path), hint))

    for name in given:
        if name not in declared:
            fault(f"unknown parameter `{name}`", ("values", name), known)
    for name, entry in declared.items():
        parameter = entry if isinstance(entry, dict) else {}
        about, pattern = parameter.get("about"), parameter.get("pattern")
        value = given.get(name, parameter.get("default"))
        if value is None and examples:
            value = parameter.get("example")
        if value is None:
            hint = f"set `values: {{{name}: …}}` in a profile that extends this one, or in user.yaml"
            fault(f"parameter `{name}` is not set", ("parameters", name), f"{about}: {hint}" if about else hint)
            continue
        text = texts[name] = merged.written.get(("values", name), str(value))
        if isinstance(pattern, str) and not matches_whole(pattern, text):
            message = f"the value `{text}` of parameter `{name}` does not match `{pattern}`"
            fault(message, ("values", name), about or f"write a value that matches `{pattern}`")

    def substitute(match: re.Match[str], path: KeyPath) -> str:
        name = match.group(1)
        if name is not None and name not in declared:
            fault(f"unknown parameter `{name}`", path, known)
        return match.group() if name is None else texts.get(name, match.group())

    def filled(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: filled(child, (*path, key)) for key, child in value.items()}
        if isinstance(value, list):
            return [filled(child, (*path, at)) for at, child in enumerate(value)]
        if not isinstance(value, str) or "${param." not in value:
            return value
        end = end_of_placeholders(value)
        text = merged.written[path] = _PARAMETER.sub(lambda match: substitute(match, path), value[:end]) + value[end:]
        is_number = _PARAMETER.fullmatch(value) and text.isascii() and text.isdecimal() and len(text) < 18
        return int(text) if is_number else text

    for key in merged.data:
        if key != "parameters":
            merged.data[key] = filled(merged.data[key], (key,))


def recorded(merged: Merged) -> str:
    """All layers as one file, which a run keeps: it does not refer to other files, and notes the origin of each
    value."""
    data = {key: as_written(value, (key,), merged.written) for key, value in merged.data.items() if key != "extends"}
    notes = {tuple(map(str, path)): origin.short() for path, origin in merged.origins.items() if len(path) <= COMMENTED}
    head = ["All layers of the profile, merged by hpc-launch when the run was created."]
    return yaml_text({"recorded": True, **data}, notes, head)


def read_user_overlay(findings: list[Finding]) -> Document | None:
    """Read `user.yaml` in the configuration folder, which overrides keys of profiles. None if there is none."""
    path = config_folder() / "user.yaml"
    if not os.path.exists(path):
        return None
    document, faults = read_document(path)
    try:
        refuse_replaceable(path.parent)
        if document is not None and document.opened and not only_writable_by(os.getuid(), document.opened):
            raise PermissionError(errno.EPERM, "another user can change the file")
    except OSError as error:
        hint = f"make it your own, and run `chmod go-w {path.parent} {path}`: it decides which code your jobs run"
        raise UsageError(f"{path}: {error.strerror or error}", hint=hint) from None
    findings += faults
    if document is not None:
        findings += check(document, Overlay)
    return document


def load_site_profile(name: str, asked_at: Place, project: Path | None = None) -> SiteProfile:
    """Load a site's profile by name or file, as a job there would use it. Raises Refused if it is invalid.

    `project` is the folder whose own profiles are looked up too.
    """
    findings: list[Finding] = []
    overlay = read_user_overlay(findings)
    found = read_named_site(name, asked_at, project, overlay, findings)
    if found is None or errors(findings):
        raise Refused(findings)
    return found.profile


def read_named_site(
    name: str, asked_at: Place | None, project: Path | None, overlay: Document | None, findings: list[Finding]
) -> Site | None:
    """Read a site's profile by name or file, as `read_site`. Raises Refused if there is none."""
    path = find_profile(name, asked_at, project)
    folders = search_folders(project)
    return read_site(path, overlay, findings, asked_at=asked_at, own=is_file_name(name), folders=folders)


_ASKS_FOR_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})
Fault = tuple[FindingCode, KeyPath, str, str]
"""Code, place, message and hint."""


def find_tokens(document: Document) -> Iterator[Finding]:
    """HL317 for text in the format of a well-known service's access token."""
    message, hint = "the text looks like an access token", "remove it and revoke it: others may have seen it"
    for path, text in document.written.items():
        if SECRET_VALUE.search(text):
            yield Finding(FindingCode.SECRET_IN_PROFILE, message, document.places.get(path), hint)


def check_profile(profile: SiteProfile, merged: Merged) -> Iterator[Finding]:
    """HL314 to HL317: errors that the types do not reveal."""
    for rule in RULES:
        for code, path, message, hint in rule(profile):
            yield Finding(code, message, merged.origin(*path).place, hint)


def _entries(profile: SiteProfile, key: str) -> Iterator[tuple[KeyPath, Any]]:
    """The entries of the lists `key` of the profile, and of each class of nodes, queue and option."""
    holders: list[tuple[KeyPath, Any]] = [((), profile)]
    for table in ("node_classes", "queues", "options"):
        holders += [((table, name), entry) for name, entry in getattr(profile, table).items()]
    for path, holder in holders:
        yield from (((*path, key, at), item) for at, item in enumerate(getattr(holder, key, ())))


def _steps(profile: SiteProfile) -> Iterator[Fault]:
    code = FindingCode.INVALID_PRELUDE_STEP
    for path, step in _entries(profile, "prelude"):
        actions = [action for action in ACTIONS if getattr(step, action) is not None]
        here = ACTIONS_BY_PLACE.get(step.where, frozenset(ACTIONS))
        if len(actions) != 1:
            found = " and ".join(f"`{one}`" for one in actions) or "none"
            yield code, path, f"a step must have exactly one action, not {found}", f"use one of {', '.join(ACTIONS)}"
        elif actions[0] not in here:
            message = f"`{actions[0]}` is not available with `where: {step.where}`"
            yield code, path, message, f"use one of {', '.join(sorted(here))}"
        if step.raw is not None and ("\n" in step.raw or not step.raw.isprintable()):
            yield code, path, "`raw` must be a single printable line", "write one step per line"


def _secrets(profile: SiteProfile) -> Iterator[Fault]:
    for path, entry in (*_entries(profile, "prelude"), *_entries(profile, "env")):
        for name, value in (entry.set or {}).items():
            if SECRET_NAME.search(name) and isinstance(value, str) and value and not value.startswith("${"):
                message = f"`{name}` looks like a secret, and others can read this file"
                hint = f"remove it, and list it in the job file: `secrets: [{name}]`"
                yield FindingCode.SECRET_IN_PROFILE, (*path, "set", name), message, hint


def _names(profile: SiteProfile) -> Iterator[Fault]:
    named = [(("queues", name, "stack"), queue.stack, "stacks") for name, queue in profile.queues.items()]
    named += [(("node_classes", name, "stack"), node.stack, "stacks") for name, node in profile.node_classes.items()]
    named += [(("paths", name, "option"), folder.option, "options") for name, folder in profile.paths.items()]
    for path, wanted, table in named:
        if wanted is not None and wanted not in getattr(profile, table):
            hint = f"use one of `{table}:`: {', '.join(getattr(profile, table)) or 'none defined'}"
            yield FindingCode.UNKNOWN_PROFILE_NAME, path, f"the profile has no {path[-1]} `{wanted}`", hint


def _limits(profile: SiteProfile) -> Iterator[Fault]:
    code = FindingCode.OVERLAPPING_LIMITS
    for name, queue in profile.queues.items():
        for at, row in enumerate(queue.limits):
            path: KeyPath = ("queues", name, "limits", at, "nodes")
            first, last = _bounds(row.nodes)
            if first > last:
                yield code, path, f"the range `{row.nodes}` ends before it starts", "write the smaller number first"
            overlapping = (
                earlier
                for earlier in queue.limits[:at]
                if _overlap(row.nodes, earlier.nodes) and _overlap(row.gpus or "0-", earlier.gpus or "0-")
            )
            if (earlier := next(overlapping, None)) is not None:
                message = f"the row for {row.nodes} nodes overlaps the one for {earlier.nodes}"
                yield code, path, message, "change the ranges so that each count is in one row"


def _overlap(one: str, other: str) -> bool:
    (first, last), (start, end) = _bounds(one), _bounds(other)
    return first <= end and start <= last


def _bounds(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return int(first), int(last) if last else 10**9 if dash else int(first)


def _gpu_requests(profile: SiteProfile) -> Iterator[Fault]:
    code = FindingCode.UNKNOWN_PROFILE_NAME
    for name, queue in profile.queues.items():
        node = profile.node_classes.get(queue.node_class)
        if node is None:
            continue
        of_node: KeyPath = ("node_classes", queue.node_class)
        request = f"`gpu_request: {node.gpu_request}`"
        if node.gpu_request.endswith("-type") and node.gpu_type is None:
            yield code, (*of_node, "gpu_request"), f"{request} requires a GPU type", "set `gpu_type`"
        if not node.gpus or node.gpu_request == "none":
            continue
        options: list[tuple[KeyPath, object]] = [
            *((("sbatch", "add", option), value) for option, value in profile.sbatch.add.items()),
            *(((*of_node, "sbatch", option), value) for option, value in node.sbatch.items()),
            *((("queues", name, "sbatch", option), value) for option, value in queue.sbatch.items()),
        ]
        for path, value in options:
            if path[-1] in _ASKS_FOR_GPUS or (path[-1] == "gres" and str(value).startswith("gpu")):
                message = f"`{path[-1]}` requests GPUs, and so does {request}"
                hint = "remove one of them, or set `gpu_request: none` if the options are complete"
                yield code, path, message, hint


RULES: tuple[Callable[[SiteProfile], Iterator[Fault]], ...] = (_steps, _secrets, _names, _limits, _gpu_requests)
