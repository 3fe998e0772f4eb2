"""The ledger of a site, by the site's name or file."""

from __future__ import annotations

import os

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place
from hpc_launch.run.ledger import Ledger
from hpc_launch.sites import machine
from hpc_launch.sites.read import read_site
from hpc_launch.sites.search import find_profile, is_file_name
from hpc_launch.spec.text import UnknownName, interpolate, plain


def ledger_of(site: str) -> Ledger:
    """The notes of a site's team. Raises Refused where there is no such site, or its `paths.ledger` cannot be told."""
    findings: list[Finding] = []
    place = Place("--site")
    found = read_site(find_profile(site, place), None, findings, asked_at=place, own=is_file_name(site))
    if found is None:
        raise Refused(findings)
    folder = found.profile.paths.get("ledger")
    if folder is None:
        return Ledger(found.profile.name)
    try:
        path = plain(interpolate(folder.path, machine.names(os.environ)))
    except UnknownName as unknown:
        message = f"`paths.ledger` names `${{{unknown.name}}}`, which is not known outside a job"
        raise Refused([Finding("HL535", message, place, "a ledger is one folder for the whole team")]) from unknown
    return Ledger(found.profile.name, path)
