"""The parts of a site profile that apply to a job: facts for its conditions, the software stack and options."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.document import KeyPath
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.sites.conditions import ConditionFacts
from hpc_launch.sites.option_rules import SiteOption


def condition_facts(draft: PlanDraft, size: JobSize) -> ConditionFacts:
    """The facts that conditions are evaluated against."""
    resolved, job = draft.resolved, draft.resolved.job
    node, site = size.node_class, resolved.site
    stack = site.stacks.get(stack_name(draft, size) or "")
    versions = {**site.versions, **node.versions, **(stack.versions if stack else {})}
    if site.scheduler.version is not None:
        versions["slurm"] = site.scheduler.version
    if resolved.torch is not None:
        versions["torch"] = ".".join(map(str, resolved.torch))
    versions.update(job.environment.versions)
    return ConditionFacts(
        nodes=job.max_nodes,
        gpus_per_node=size.gpus_per_node,
        processes_per_node=size.processes_per_node,
        queue=size.queue_name,
        node_class=size.queue.node_class,
        arch=node.arch,
        vendor=node.gpu_vendor,
        launcher=job.launcher.name,
        runtime=(job.container.runtime or site.containers.runtime) if job.container else None,
        versions=versions,
    )


def stack_name(draft: PlanDraft, size: JobSize) -> str | None:
    """The software stack of the job; None in a container, unless the stack applies there too."""
    job, site = draft.resolved.job, draft.resolved.site
    name = job.environment.stack or size.queue.stack or size.node_class.stack
    stack = site.stacks.get(name) if name else None
    return name if stack is not None and (stack.in_container or job.container is None) else None


def profile_parts(draft: PlanDraft, size: JobSize) -> tuple[KeyPath, ...]:
    """The parts of the profile that apply to this job, the most general first."""
    taken = (("options", name) for name in selected_options(draft))
    return ((), ("node_classes", size.queue.node_class), ("queues", size.queue_name), *taken)


def selected_options(draft: PlanDraft) -> dict[str, SiteOption]:
    """The site options that the job selects, or that a folder which it names requires."""
    job, site = draft.resolved.job, draft.resolved.site
    names = list(job.options)
    said = repr(job)
    for key, folder in site.paths.items():
        if folder.option is not None and f"${{paths.{key}}}" in said:
            names.append(folder.option)
    return {name: site.options[name] for name in names if name in site.options}


def check_names(draft: PlanDraft, size: JobSize) -> None:
    """HL319 for an unknown option or software stack."""
    job, site = draft.resolved.job, draft.resolved.site
    for at, name in enumerate(job.options):
        if name not in site.options:
            hint = f"use one of: {', '.join(site.options) or 'none defined'}"
            draft.fault(
                FindingCode.UNKNOWN_SITE_OPTION, f"site {site.name} has no option `{name}`", ("options", at), hint
            )
    stack = job.environment.stack
    if stack is not None and stack not in site.stacks:
        hint = f"use one of: {', '.join(site.stacks) or 'none defined'}"
        draft.fault(
            FindingCode.UNKNOWN_SITE_OPTION, f"site {site.name} has no stack `{stack}`", ("environment", "stack"), hint
        )
    named: dict[KeyPath, str | None] = {
        ("queues", size.queue_name): size.queue.stack,
        ("node_classes", size.queue.node_class): size.node_class.stack,
    }
    for path, wanted in named.items():
        if wanted is not None and wanted not in site.stacks:
            hint = f"use one of `stacks:`: {', '.join(site.stacks) or 'none defined'}"
            draft.site_fault(
                FindingCode.UNKNOWN_PROFILE_NAME, f"the profile has no stack `{wanted}`", (*path, "stack"), hint
            )
    for key, folder in site.paths.items():
        if folder.option is not None and folder.option not in site.options:
            hint = f"use one of `options:`: {', '.join(site.options) or 'none defined'}"
            message = f"the profile has no option `{folder.option}`"
            draft.site_fault(FindingCode.UNKNOWN_PROFILE_NAME, message, ("paths", key, "option"), hint)


def srun_options(draft: PlanDraft, size: JobSize) -> tuple[str, ...]:
    """srun options of the site, the launcher, the node class, the queue and the selected options."""
    job, site = draft.resolved.job, draft.resolved.site
    advice = site.launchers.get(job.launcher.name)
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in site.srun.add.items()]
    options += advice.srun_options if advice is not None else []
    options += [*size.node_class.srun_options, *size.queue.srun_options]
    for option in selected_options(draft).values():
        options += option.srun_options
    return tuple(options)
