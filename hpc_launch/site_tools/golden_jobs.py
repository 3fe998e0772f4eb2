"""Golden scripts of a profile: what it makes of small jobs, apart from whoever asks and from his machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, errors
from hpc_launch.plan.build_plan import build
from hpc_launch.sites.load_layers import load

JOB = """# The job of the golden scripts: no queue, no number of GPUs, no account.
name: tiny
nodes: 2
time: 00:15:00
script: train.py
"""
TEAM_ACCOUNT = "abc123"
"""For a site that wants an account, of which nobody said one."""
_KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "TMPDIR")
_SOMEBODY = {"HOME": "/home/alice", "USER": "alice", "HPC_LAUNCH_HOME": "/home/alice/runs"}


class GoldenScript(Struct, frozen=True):
    """The script of one job, or why there is none."""

    job: str
    script: str | None
    findings: tuple[Finding, ...]


def made_from(
    profile: Path, jobs: Sequence[Path], overlay: Path | None, folders: Sequence[Path] = ()
) -> list[GoldenScript]:
    """What each job file comes to on a profile; without one, the built-in job with torchrun, and in the first image.

    `overlay` is a `user.yaml` with accounts and values of parameters; `folders` is where the profile finds what it
    extends, after its own folder and before the machine's and the shipped ones.
    """
    with somebody(overlay, folders) as scratch:
        if jobs:
            return [_made(profile, job.stem, job, ()) for job in jobs]
        built_in = scratch / "job.yaml"
        built_in.write_text(JOB, "utf-8")
        found = [_made(profile, "torchrun", built_in, ("launcher=torchrun",))]
        image = _an_image(profile, built_in)
        return [*found, _made(profile, "container", built_in, (f"container={image}",))] if image else found


@contextmanager
def somebody(overlay: Path | None, folders: Sequence[Path]) -> Iterator[Path]:
    """The environment of a made-up user, so that scripts are the same everywhere; yields a folder for the while."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-golden-") as name:
        scratch = Path(name)
        (scratch / "hpc-launch").mkdir()
        if overlay is not None:
            (scratch / "hpc-launch" / "user.yaml").write_text(overlay.read_text("utf-8"), "utf-8")
        kept = {key: before[key] for key in _KEPT if key in before}
        path = {"HPC_LAUNCH_SITE_PATH": os.pathsep.join(map(str, folders))}
        try:
            os.environ.clear()
            os.environ.update({**kept, **_SOMEBODY, **path, "XDG_CONFIG_HOME": name})
            yield scratch
        finally:
            os.environ.clear()
            os.environ.update(before)


def _made(profile: Path, name: str, job: Path, sets: tuple[str, ...]) -> GoldenScript:
    found = _planned(profile, name, job, sets)
    if found.script is None and any(one.code == FindingCode.INVALID_ACCOUNT for one in found.findings):
        again = _planned(profile, name, job, (*sets, f"account={TEAM_ACCOUNT}"))
        return again if again.script is not None else found
    return found


def _planned(profile: Path, name: str, job: Path, sets: tuple[str, ...]) -> GoldenScript:
    try:
        loaded = load(job, site=str(profile), sets=sets, job_folder="/home/alice/project")
        plan, findings = build(loaded.resolved)
    except Refused as refused:
        return GoldenScript(name, None, refused.findings)
    if plan is None or errors(findings):
        return GoldenScript(name, None, tuple(findings))
    from hpc_launch.launch.render import render

    return GoldenScript(name, render(plan), tuple(findings))


def _an_image(profile: Path, job: Path) -> str | None:
    """The first image that the site knows by name."""
    try:
        images = load(job, site=str(profile), job_folder="/home/alice/project").resolved.site.containers.images
    except Refused:
        return None
    return next(iter(images), None)
