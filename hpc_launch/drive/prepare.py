"""Job file in, finished script out: read, merge, plan, check, render. Nothing is written and nothing submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, errors
from hpc_launch.drive.detect_site import detect_site
from hpc_launch.drive.file_checks import check_files
from hpc_launch.drive.strategy_config import read_own
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.sites.load_layers import Loaded, load


class Ready(Struct, frozen=True):
    """A job that passed every check, and its script. `warnings` are worth showing."""

    loaded: Loaded
    plan: LaunchPlan
    script: str
    warnings: tuple[Finding, ...]


def make_ready(
    job_file: Path, *, site: str | None = None, sets: Sequence[str] = (), job_folder: str | None = None
) -> Ready:
    """The whole way from the files to the script. Raises Refused with all faults at once.

    Relative paths start at `job_folder`, by default the job file's own.
    """
    loaded = load(job_file, site=site, sets=sets, job_folder=job_folder, detect=detect_site)
    own, faults = read_own(loaded.resolved)
    plan, findings = build(loaded.resolved, own)
    findings += faults
    check_files(loaded.resolved, findings)
    if plan is None or errors(findings):
        raise Refused(findings)
    from hpc_launch.launch.render import render

    return Ready(loaded, plan, render(plan), tuple(findings))


def all_findings(job_file: Path, *, site: str | None = None, sets: Sequence[str] = ()) -> list[Finding]:
    """What `validate` shows: every fault and warning, as far as the reading gets."""
    try:
        return list(make_ready(job_file, site=site, sets=sets).warnings)
    except Refused as refused:
        return list(refused.findings)
