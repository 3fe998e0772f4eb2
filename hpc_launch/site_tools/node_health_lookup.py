"""Look up the node health store of a site: the one named, or that of this machine, as `submit` finds it."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_launch.base.errors import Refused, Unreachable
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.shell_text import UnknownName, interpolate, plain
from hpc_launch.prepare.detect_site import detect_site
from hpc_launch.runs.node_health_store import NodeHealthStore
from hpc_launch.sites import this_machine
from hpc_launch.sites.detect_profile import Match
from hpc_launch.sites.load_profile import load_site_profile


def detected_site() -> Match:
    """The site of this machine. Raises Refused where none or several match, Unreachable as the detection does."""
    detection = detect_site(Path.cwd())
    if detection.chosen is not None:
        return detection.chosen
    if detection.unreachable is not None:
        raise Unreachable(detection.message, detection.hint)
    raise Refused([Finding(FindingCode.SITE_NOT_DETECTED, detection.message, hint=detection.hint)])


def node_health_store(site: str) -> NodeHealthStore:
    """Node health records of a site's team. Raises Refused if the site is unknown or its `paths.ledger` cannot be
    resolved."""
    place = Place("--site")
    profile = load_site_profile(site, place, Path.cwd())
    folder = profile.paths.get("ledger")
    if folder is None:
        return NodeHealthStore(profile.name)
    try:
        path = plain(interpolate(folder.path, this_machine.names(os.environ)))
    except UnknownName as unknown:
        message = f"`paths.ledger` uses `${{{unknown.name}}}`, which is only known in a job"
        raise Refused(
            [Finding(FindingCode.INVALID_LEDGER_PATH, message, place, "use one fixed folder for the whole team")]
        ) from unknown
    return NodeHealthStore(profile.name, path)
