"""The text of the job file and the site profile, with what was not understood as comments."""

from __future__ import annotations

from hpc_launch.from_script.draft_job import JobDraft
from hpc_launch.from_script.draft_site import SitePart
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.job.shell_text import visible
from hpc_launch.site_tools.learning.profile_yaml import yaml_text


def job_text(script: OldScript, draft: JobDraft, site: SitePart) -> str:
    """The job file."""
    head = [f"Written by `hpc-launch init --from {script.name}`."]
    head += [f"Note: {remark}." for remark in script.remarks]
    text = yaml_text(draft.data, draft.notes, [visible(line) for line in head])
    doubts = script.of("not_understood")
    lines: list[str] = []
    if doubts:
        lines += ["", f"# Not understood in {visible(script.name)}; decide about these lines:"]
        for account in doubts:
            lines.append(f"#   {account.line}: {_shown(account.text)}")
            lines.append(f"#      {visible(account.why)}")
    if site.profile is not None and site.data:
        lines += ["", f"# For the profile of {site.profile.name}, if it lacks them:"]
        lines += [f"#   {line}" for line in yaml_text(site.data, {}, []).splitlines()]
    return text + "\n".join(lines) + ("\n" if lines else "")


def site_text(script: OldScript, site: SitePart) -> str:
    """The site profile, for a script whose site is not known."""
    head = [
        f"Drafted by `hpc-launch init --from {visible(script.name)}` from that script alone.",
        "On the cluster, `hpc-launch sites learn` drafts a better one from what Slurm reports.",
    ]
    return yaml_text(site.data, site.notes, head)


def _shown(text: str) -> str:
    shown = visible(text.strip())
    return shown if len(shown) <= 100 else shown[:99] + "…"
