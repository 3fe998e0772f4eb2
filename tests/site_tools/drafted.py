"""The profile that a draft is."""

from pathlib import Path

from hpc_launch.base.findings import Finding
from hpc_launch.site_tools.draft_profile import ProfileDraft
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.read_profile import read_site


def profile(made: ProfileDraft, folder: Path) -> SiteProfile:
    """Write the draft, and read it without a finding."""
    path = folder / f"{made.name}.yaml"
    path.write_text(made.text(), encoding="utf-8")
    findings: list[Finding] = []
    site = read_site(path, None, findings, own=True)
    assert site is not None, findings
    assert not findings
    return site.profile
