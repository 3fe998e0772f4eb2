"""A site's profile outside a job, by the name that a verb was given; and what the user's own `user.yaml` says of it."""

from __future__ import annotations

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.sites.profile import Overlay, SiteProfile
from hpc_launch.sites.read_profile import read_site
from hpc_launch.sites.search_path import find_profile, is_file_name
from hpc_launch.spec.document import Document
from hpc_launch.spec.reader import check
from hpc_launch.spec.yaml_source import read_document


def users_own(findings: list[Finding]) -> Document | None:
    """`user.yaml` in the configuration folder, whose keys lie over those of a profile; None where there is none."""
    path = config_folder() / "user.yaml"
    if not path.exists():
        return None
    document, faults = read_document(path)
    findings += faults
    if document is not None:
        findings += check(document, Overlay)
    return document


def profile_of(name: str, asked_at: Place) -> SiteProfile:
    """The profile of a site by its name or file, as a job there gets it. Raises Refused where it cannot be read."""
    findings: list[Finding] = []
    overlay = users_own(findings)
    path = find_profile(name, asked_at)
    found = read_site(path, overlay, findings, asked_at=asked_at, own=is_file_name(name))
    if found is None or errors(findings):
        raise Refused(findings)
    return found.profile
