"""Load a site profile by name, without a job, and the user's `user.yaml`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import only_writable_by
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.base.folders_above import refuse_replaceable
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.job.document import Document
from hpc_launch.job.reader import check
from hpc_launch.job.yaml_source import read_document
from hpc_launch.sites.profile import Overlay, SiteProfile
from hpc_launch.sites.read_profile import read_site
from hpc_launch.sites.search_path import find_profile, is_file_name, search_path


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
    path = find_profile(name, asked_at, project)
    folders = [folder for _, folder in search_path(project)]
    found = read_site(path, overlay, findings, asked_at=asked_at, own=is_file_name(name), folders=folders)
    if found is None or errors(findings):
        raise Refused(findings)
    return found.profile
