"""Prepare a job: read the job file and the site profile, merge, plan, check and render the script.

Nothing is written and nothing is submitted.

Collect what detection rules can match on this machine: variables, host names, files and Slurm's cluster name.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import Refused, Unreachable
from hpc_launch.base.findings import Finding, FindingCode, errors
from hpc_launch.base.run_program import run_program
from hpc_launch.job.job_file import JobSource, has_jobs, has_sweep
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.plan_draft import JobSize, ValueFiller
from hpc_launch.plugins.entry_points import guarded
from hpc_launch.prepare.check_files import check_files
from hpc_launch.prepare.find_secrets import look_up
from hpc_launch.sites.detect_profile import Detection, Machine, detect, match_reasons
from hpc_launch.sites.load_layers import JobSources, Loaded, read_sources, resolve
from hpc_launch.sites.profile import DetectionRule, SiteProfile
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.this_machine import NOT_SET_HERE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpc_launch.model.model_config import ModelConfig
    from hpc_launch.plan.job_estimate import JobEstimate
    from hpc_launch.plan.strategy_files import UserStrategyConfig

HOST_NAME_TIMEOUT_S = 2.0
"""Limit for the full name, which takes many seconds if the DNS resolver does not respond."""


def detect_site(project: Path | None = None) -> Detection:
    """Detect the site of this machine. Slurm is queried only if no other method finds a match."""
    return detect(this_machine(), project)


def is_elsewhere(profile: SiteProfile) -> bool:
    """Whether no `detect:` rule of the site recognizes this machine. Slurm is queried only if no other rule matches."""
    rules = sorted((rule for rule in profile.detect if rule != DetectionRule()), key=lambda rule: rule.cluster or "")
    machine = this_machine()
    with suppress(Unreachable):
        return profile.scheduler.type != "local" and not any(match_reasons(rule, machine) for rule in rules)
    return True


def this_machine() -> Machine:
    """The properties of this machine that detection rules can match."""
    return Machine(dict(os.environ), _host_names(), os.path.exists, _cluster, _has_slurm)


def _host_names() -> tuple[str, ...]:
    """The fully qualified and the short name of this host."""
    name = os.uname().nodename
    if "." in name:
        return (name,)
    full = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        full = run_program(["hostname", "--fqdn"], HOST_NAME_TIMEOUT_S).stdout.strip()
    return tuple(dict.fromkeys([full, name] if full else [name]))


def _has_slurm() -> bool:
    from hpc_launch.schedulers.slurm.query_cluster import is_here

    return is_here()


def _cluster() -> str | None:
    from hpc_launch.schedulers.slurm.query_cluster import cluster_name, is_here

    return cluster_name() if is_here() else None


_FIRST, _LAST = FindingCode.PROCESSES_NOT_DIVISIBLE.value, FindingCode.HIDDEN_SIZE_NOT_DIVISIBLE.value
LAYOUT_CODES = frozenset(code for code in FindingCode if _FIRST <= code.value <= _LAST)
"""With an error of these, the processes cannot be divided as the job says, so that nothing can be estimated."""


class PreparedJob(Struct, frozen=True):
    """A job that passed every check, with its plan, its script and the warnings to show."""

    loaded: Loaded
    plan: LaunchPlan
    script: str
    warnings: tuple[Finding, ...]
    model: ModelConfig | None = None
    """The model, if the job says which it is."""


class CheckedJob(Struct, frozen=True):
    """A job with all findings, errors too. `plan` is None if they leave none, `size` if its queue is unknown."""

    loaded: Loaded
    plan: LaunchPlan | None
    findings: list[Finding]
    size: JobSize | None
    model: ModelConfig | None
    estimate: JobEstimate | None
    """The memory of its model, if the model is known and the layout is valid."""


class Preparation(TypedDict, total=False):
    """How a job file is prepared."""

    site: str | None
    """Name or path of the site profile; detected without."""
    sets: Sequence[str]
    """Values of `--set`."""
    job_folder: str | None
    """Base of relative paths; by default the folder of the job file."""
    anywhere: bool
    """Whether a site may be one that this machine does not belong to: then warn of what only the site itself knows."""
    avoid: Sequence[str]
    """Hosts that the run excludes, where no scheduler chooses them."""
    sources: JobSources | None
    """The files of the job, where they were read already."""


def load_job(job_file: JobSource, **how: Unpack[Preparation]) -> tuple[JobSources, Loaded]:
    """Read the files of a job, unless that was done, and merge them. Raises Refused if they cannot be read at all."""
    sets, away = how.get("sets", ()), is_elsewhere if how.get("anywhere") else None
    sources = how.get("sources") or read_sources(job_file, site=how.get("site"), sets=sets, detect=detect_site)
    folder, avoid = how.get("job_folder"), how.get("avoid", ())
    return sources, resolve(sources, sets=sets, job_folder=folder, elsewhere=away, avoid=avoid)


def check_job(job_file: JobSource, **how: Unpack[Preparation]) -> CheckedJob:
    """Check a job file. Raises Refused if it cannot be read at all."""
    loaded = load_job(job_file, **how)[1]
    resolved = loaded.resolved
    user_config, config_findings = _read_user_config(resolved)
    model, model_findings = _read_model(resolved)
    plan, findings = build(resolved, user_config, model)
    findings += config_findings + model_findings
    check_files(resolved, findings)
    estimate = None
    if model is not None and not any(found.code in LAYOUT_CODES for found in errors(findings)):
        from hpc_launch.plan.job_estimate import job_estimate, memory_findings

        estimate = job_estimate(resolved, model, user_config)
        findings += memory_findings(resolved, estimate) if estimate is not None else []
    return CheckedJob(loaded, plan, findings, job_size(ValueFiller(resolved, [])), model, estimate)


def prepare_job(job_file: JobSource, **how: Unpack[Preparation]) -> PreparedJob:
    """Prepare a job file for submission. Raises Refused with all errors at once."""
    checked = check_job(job_file, **how)
    loaded, plan, findings = checked.loaded, checked.plan, checked.findings
    if plan is None or errors(findings):
        raise Refused(findings)
    from hpc_launch.script.render import render

    with guarded("launchers", plan.launcher, loaded.resolved.origin("launcher").place):  # its template
        script = render(plan)
    if loaded.resolved.elsewhere:
        findings += _placeholders(script, loaded.resolved)
    elif plan.secrets:
        missing = look_up(plan.secrets, loaded.resolved.place("secrets"))[1]
        findings += [replace(one, severity="warning") for one in missing]
    return PreparedJob(loaded, plan, script, tuple(findings), checked.model)


def prepare_text(
    text: str, output: Path, *, site: str | None = None, site_text: str | None = None, anywhere: bool = False
) -> PreparedJob:
    """Plan a job file before it is written. `site_text`: of its site profile, which is not written either. Raises
    Refused."""
    document, findings = parse_document(text, str(output))
    if document is None:
        raise Refused(findings)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-init-") as folder:
        if site_text is not None:
            site = str(Path(folder, f"{output.stem}.site.yaml"))
            Path(site).write_text(site_text, encoding="utf-8")
        sources = read_sources(output, site=site, detect=detect_site, document=document)
        return prepare_job(output, site=site, sources=sources, anywhere=anywhere)


def _placeholders(script: str, resolved: Resolved) -> list[Finding]:
    """HL216 for each variable of the site that is not set on this machine."""
    names = sorted(set(re.findall(rf"/(\w+){NOT_SET_HERE}", script)))
    return [
        Finding(
            FindingCode.NOT_CHECKED_HERE,
            f"not checked here: {name} of site {resolved.site.name}, so the script contains a placeholder",
            resolved.place(),
            f"set {name} in this shell, or render the script on the site",
            severity="warning",
        )
        for name in names
    ]


def validate_job(job_file: JobSource, *, site: str | None = None, sets: Sequence[str] = ()) -> list[Finding]:
    """Return every error and warning of a job file, of each point of its sweep, and of each stage of its pipeline."""
    try:
        if isinstance(job_file, Path) and has_jobs(job_file):
            from hpc_launch.prepare.prepare_pipeline import prepare_pipeline

            return list(prepare_pipeline(job_file, site=site, sets=sets, anywhere=True).warnings)
        if has_sweep(job_file, sets):
            from hpc_launch.prepare.prepare_sweep import prepare_sweep

            return list(prepare_sweep(job_file, site=site, sets=sets, anywhere=True).warnings)
        return list(prepare_job(job_file, site=site, sets=sets, anywhere=True).warnings)
    except Refused as refused:
        return list(refused.findings)


def _read_model(resolved: Resolved) -> tuple[ModelConfig | None, list[Finding]]:
    """The model, with findings if `model:` is wrong. The arguments of Megatron need not give every size."""
    if resolved.job.model is None and resolved.job.strategy.name != "megatron":
        return None, []
    from hpc_launch.model.read_model import model_of_job

    filler = ValueFiller(resolved, [])
    config = None if resolved.job.model is None else resolved.job.model.config
    path = None if config is None else filler.file(config, ("model", "config"))
    if filler.findings:
        return None, filler.findings
    model, findings = model_of_job(resolved, config=path)
    return model, [] if resolved.job.model is None else findings


def _read_user_config(resolved: Resolved) -> tuple[UserStrategyConfig | None, list[Finding]]:
    """The file named by `strategy.file`, with findings if it cannot be read. None if the job names no file."""
    strategy, key = resolved.job.strategy, ("strategy", "file")
    if strategy.file is None:
        return None, []
    from hpc_launch.plan.strategies import config_file
    from hpc_launch.plan.strategy_files import UserStrategyConfig

    filler = ValueFiller(resolved, [])
    path = filler.file(strategy.file, key)
    if filler.findings:
        return None, filler.findings
    if not os.path.exists(path):
        message = f"the configuration file {path} does not exist"
        hint = f"relative paths start at {resolved.job_folder}"
        return None, [Finding(FindingCode.FILE_NOT_FOUND, message, resolved.place(*key), hint)]
    relative = os.path.relpath(path)  # shorter in messages if the file is below the working directory
    path = path if relative.startswith("..") else relative
    text, findings = config_file.read(path)
    if text is None:
        return None, findings
    # DeepSpeed and the Trainer read JSON; Accelerate reads YAML for FSDP.
    is_yaml = strategy.zero_stage is None and strategy.reader == "accelerate"
    parsed, findings = config_file.parse(text, path, is_yaml=is_yaml)
    return (None if parsed is None else UserStrategyConfig(text, parsed)), findings
