"""Look up the node health store of a site by the site's name or file."""

from __future__ import annotations

import os

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.run.node_health_store import NodeHealthStore
from hpc_launch.sites import this_machine
from hpc_launch.sites.load_profile import load_site_profile
from hpc_launch.spec.shell_text import UnknownName, interpolate, plain


def node_health_store(site: str) -> NodeHealthStore:
    """Node health records of a site's team. Raises Refused if the site is unknown or its `paths.ledger` cannot be
    resolved."""
    place = Place("--site")
    profile = load_site_profile(site, place)
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
