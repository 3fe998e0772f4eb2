"""Golden scripts of a profile: scripts of small jobs, independent of the user and the machine."""

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
from hpc_launch.sites.layers import chain
from hpc_launch.sites.load_layers import load
from hpc_launch.sites.trust import digest, trust

JOB = """# The job of the golden scripts: no queue, no number of GPUs, no account.
name: tiny
nodes: 2
time: 00:15:00
script: train.py
"""
TEAM_ACCOUNT = "abc123"
"""Account for a site that requires one, if none is set."""
_KEPT_VARIABLES = ("PATH", "LANG", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "TMPDIR")
_SAMPLE_USER = {"HOME": "/home/alice", "USER": "alice", "HPC_LAUNCH_HOME": "/home/alice/runs"}


class GoldenScript(Struct, frozen=True):
    """The script of one job, or the reason why there is none."""

    job: str
    script: str | None
    findings: tuple[Finding, ...]


def golden_scripts(
    profile: Path, jobs: Sequence[Path], overlay: Path | None, folders: Sequence[Path] = ()
) -> list[GoldenScript]:
    """Render each job file on a profile. Without job files: the built-in job with torchrun, and in the first image.

    `overlay` is a `user.yaml` with accounts and parameter values. `folders` is where parents are looked up, after the
    profile's own folder and before the machine's and the shipped ones.
    """
    with sample_user(overlay, folders) as scratch:
        trust((digest(layer.document.text) for layer in chain(profile, [])), str(profile))  # the scripts are not run
        if jobs:
            return [_golden_script(profile, job.stem, job, ()) for job in jobs]
        built_in = scratch / "job.yaml"
        built_in.write_text(JOB, "utf-8")
        result = [_golden_script(profile, "torchrun", built_in, ("launcher=torchrun",))]
        image = _first_image(profile, built_in)
        return [*result, _golden_script(profile, "container", built_in, (f"container={image}",))] if image else result


@contextmanager
def sample_user(overlay: Path | None, folders: Sequence[Path]) -> Iterator[Path]:
    """Environment of a sample user, so that scripts are the same everywhere. Yields a temporary folder."""
    previous = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-golden-") as name:
        scratch = Path(name)
        (scratch / "hpc-launch").mkdir()
        if overlay is not None:
            (scratch / "hpc-launch" / "user.yaml").write_text(overlay.read_text("utf-8"), "utf-8")
        environment = {key: previous[key] for key in _KEPT_VARIABLES if key in previous}
        path = {"HPC_LAUNCH_SITE_PATH": os.pathsep.join(map(str, folders))}
        try:
            os.environ.clear()
            os.environ.update({**environment, **_SAMPLE_USER, **path, "XDG_CONFIG_HOME": name})
            yield scratch
        finally:
            os.environ.clear()
            os.environ.update(previous)


def _golden_script(profile: Path, name: str, job: Path, sets: tuple[str, ...]) -> GoldenScript:
    result = _render_job(profile, name, job, sets)
    if result.script is None and any(one.code == FindingCode.INVALID_ACCOUNT for one in result.findings):
        retried = _render_job(profile, name, job, (*sets, f"account={TEAM_ACCOUNT}"))
        return retried if retried.script is not None else result
    return result


def _render_job(profile: Path, name: str, job: Path, sets: tuple[str, ...]) -> GoldenScript:
    try:
        loaded = load(job, site=str(profile), sets=sets, job_folder="/home/alice/project")
        plan, findings = build(loaded.resolved)
    except Refused as refused:
        return GoldenScript(name, None, refused.findings)
    if plan is None or errors(findings):
        return GoldenScript(name, None, tuple(findings))
    from hpc_launch.script.parts import runtime_digest
    from hpc_launch.script.render import render

    # Every release has another runtime.sh; what a profile changes is in the script.
    return GoldenScript(name, render(plan).replace(runtime_digest(), "0" * 64), tuple(findings))


def _first_image(profile: Path, job: Path) -> str | None:
    """The first named image of the site."""
    try:
        images = load(job, site=str(profile), job_folder="/home/alice/project").resolved.site.containers.images
    except Refused:
        return None
    return next(iter(images), None)
