"""Launchers, container runtimes and schedulers of other installed packages: entry points (docs/how-to/plugins.md).

Packages are looked up only when a file holds a name that hpc-launch itself does not have, or when the names are listed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import TYPE_CHECKING, ClassVar, TypeVar

from msgspec import Struct

from hpc_launch.base.errors import Refused, UserError
from hpc_launch.base.findings import Finding, FindingCode, Place

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

API = 1
"""Version of the descriptors and of the scheduler's protocol. Another number is for a change that breaks a package."""

BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "launchers": ("torchrun", "deepspeed", "srun", "none", "ft_launcher", "ray"),
    "runtimes": ("apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud"),
    "schedulers": ("slurm", "local", "ssh"),
}
"""The names that hpc-launch itself has in each group. No package can take one of them."""

NAME = "[a-z][a-z0-9_-]*"
"""The names that packages may add. They become parts of paths."""


class Descriptor(Struct, frozen=True, kw_only=True):
    """What hpc-launch has to know about a launcher, a runtime or a scheduler."""

    group: ClassVar[str]
    name: str
    api: int = 0
    """For one of another package: the API that it is written for."""


D = TypeVar("D", bound=Descriptor)


def plugin_names(group: str) -> tuple[str, ...]:
    """The names that other packages add to a group."""
    return tuple(sorted(_entries(group)))


def load(group: str, name: str, kind: type[D]) -> D:
    """The descriptor of another package. Raises Refused with a finding that names the package and what is wrong."""
    found = _load(group, name)
    if isinstance(found, Finding):
        raise Refused([found])
    assert isinstance(found, kind)  # noqa: S101 - of its group
    return found


@contextmanager
def guarded(group: str, name: str, place: Place | None = None) -> Iterator[None]:
    """Code of another package. Raises Refused with a finding for an exception that is no UserError."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if name in BUILT_IN[group]:
            raise
        raise Refused([_broken(group, name, f"{type(error).__name__}: {error}", place)]) from error


def packages_of(group: str, name: str) -> str:
    """The packages that add the name, with their versions."""
    return " and ".join(f"{one.metadata['Name']} {one.version}" for one, _ in _entries(group).get(name, ()))


def _broken(group: str, name: str, why: str, place: Place | None = None) -> Finding:
    what, package = f"{group[:-1]} `{name}`", packages_of(group, name)
    message, hint = f"no installed package has the {what}", "install the package that adds it"
    if package:
        message = f"the {what} of {package} does not work: {why}"
        hint = f"tell its authors, or replace it: pip install --upgrade {package.partition(' ')[0]}"
    return Finding(FindingCode.BROKEN_PLUGIN, message, place, hint)


@cache
def _load(group: str, name: str) -> Descriptor | Finding:
    entries = _entries(group).get(name, [])
    if len(entries) != 1:
        return _broken(group, name, "only one package may have the name")
    try:
        with guarded(group, name), redirect_stdout(sys.stderr):
            found = entries[0][1].load()
    except Refused as refused:
        return refused.findings[0]
    if not isinstance(found, Descriptor) or found.group != group:
        return _broken(group, name, f"{entries[0][1].value} is not a descriptor of a {group[:-1]}")
    if found.name != name:
        return _broken(group, name, f"its descriptor has the name `{found.name}`")
    if found.api != API:
        return _broken(group, name, f"it is written for version {found.api} of the API, and this is version {API}")
    return found


@cache
def _entries(group: str) -> dict[str, list[tuple[Distribution, EntryPoint]]]:
    """The entry points of a group by name. A package whose own files are broken is left out."""
    from importlib.metadata import distributions

    found: dict[str, dict[str, tuple[Distribution, EntryPoint]]] = {}
    for package in distributions():
        try:
            entries = [one for one in package.entry_points if one.group == f"hpc_launch.{group}"]
            owner = package.metadata["Name"].lower() if entries else ""
        except Exception:  # noqa: S112 - it may be any package, and nobody asked for it
            continue
        for entry in entries:
            if re.fullmatch(NAME, entry.name) and entry.name not in BUILT_IN[group]:
                found.setdefault(entry.name, {}).setdefault(owner, (package, entry))  # the first one on the path
    return {name: list(owners.values()) for name, owners in found.items()}
