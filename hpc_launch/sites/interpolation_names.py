"""The names that `${…}` can refer to: those of the machine, of the job, and of the site's paths."""

from __future__ import annotations

import os

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.job import JobSpec
from hpc_launch.job.shell_text import Text, UnknownName, interpolate, plain
from hpc_launch.sites import this_machine
from hpc_launch.sites.folders import MAX_PATH
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import Site

NOT_SET_HERE = "-is-not-set-here"
"""End of the placeholder for a variable of the site that is not set on another machine."""


def interpolation_names(
    site: Site, job: JobSpec, late: dict[str, Text], findings: list[Finding], *, away: bool
) -> dict[str, str]:
    """The names with their values. Names that only the job knows are added to `late`.

    `away`: this machine is not the site, so that a missing variable gets a placeholder.
    """
    names = this_machine.names(os.environ)
    webhook = job.notify.webhook if job.notify is not None else None
    for secret in (*job.secrets, *([webhook.secret] if webhook is not None else [])):
        names.pop(f"env.{secret}", None)  # the script and its folder's names are no place for it
    names["job.name"] = job.name
    if job.account is not None:
        names["account"] = _without_account_suffix(job.account, site.profile)
    for key, folder in site.profile.paths.items():
        place = site.merged.places.get(("paths", key, "path"))
        try:
            text = interpolate(folder.path, _Placeholders(names) if away else names, late=late)
        except UnknownName as unknown:
            if _is_used(f"paths.{key}", job):
                message, hint = f"unknown name `${{{unknown.name}}}`", "the job uses this path; set the variable"
                findings.append(Finding(FindingCode.UNKNOWN_NAME, message, place, hint))
            continue
        path = plain(text)
        if path is not None and len(path) > MAX_PATH:
            message = f"`paths.{key}` is too long: {len(path)} characters"
            findings.append(Finding(FindingCode.INVALID_VALUE, message, place, "shorten the names in it"))
        elif path is not None:
            names[f"paths.{key}"] = path
        else:
            late[f"paths.{key}"] = text
    return names


class _Placeholders(dict[str, str]):
    """Names, with a placeholder for each variable that is not set on this machine."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).startswith("env.")

    def __missing__(self, name: str) -> str:
        if name.startswith("env."):
            return f"/{name[4:]}{NOT_SET_HERE}"
        raise KeyError(name)


def _without_account_suffix(account: str, profile: SiteProfile) -> str:
    """Name of the project: folders have it without the account suffix for the hardware."""
    suffixes = [queue.account_suffix for queue in profile.queues.values()]
    suffixes += [node.account_suffix for node in profile.node_classes.values()]
    site_data = max((suffix for suffix in suffixes if suffix and account.endswith(suffix)), key=len, default="")
    return account.removesuffix(site_data) or account


def _is_used(name: str, job: JobSpec) -> bool:
    return f"${{{name}}}" in repr(job)
