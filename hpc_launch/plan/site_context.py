"""What of the site a job meets: the facts that its conditions ask about, and the options that the job takes."""

from __future__ import annotations

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.sites.conditions import ConditionFacts
from hpc_launch.sites.software_stacks import SiteOption
from hpc_launch.spec.document import KeyPath


def condition_facts(draft: PlanDraft, size: JobSize) -> ConditionFacts:
    """What conditions are asked about."""
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
    """The stack that the job gets; None in an image, unless the stack is for images too."""
    job, site = draft.resolved.job, draft.resolved.site
    name = job.environment.stack or size.queue.stack or size.node_class.stack
    stack = site.stacks.get(name) if name else None
    return name if stack is not None and (stack.in_container or job.container is None) else None


def profile_parts(draft: PlanDraft, size: JobSize) -> tuple[KeyPath, ...]:
    """Where the profile may say something for this job, the most general first."""
    taken = (("options", name) for name in selected_options(draft))
    return ((), ("node_classes", size.queue.node_class), ("queues", size.queue_name), *taken)


def selected_options(draft: PlanDraft) -> dict[str, SiteOption]:
    """The site's options that the job asks for, or that a folder needs which it names."""
    job, site = draft.resolved.job, draft.resolved.site
    names = list(job.options)
    said = repr(job)
    for key, folder in site.paths.items():
        if folder.option is not None and f"${{paths.{key}}}" in said:
            names.append(folder.option)
    return {name: site.options[name] for name in names if name in site.options}


def check_names(draft: PlanDraft, size: JobSize) -> None:
    """HL319 for an option or a stack that the site does not have."""
    job, site = draft.resolved.job, draft.resolved.site
    for at, name in enumerate(job.options):
        if name not in site.options:
            hint = f"site {site.name} has {', '.join(site.options) or 'none'}"
            draft.fault(
                FindingCode.UNKNOWN_SITE_OPTION, f"site {site.name} has no option `{name}`", ("options", at), hint
            )
    stack = job.environment.stack
    if stack is not None and stack not in site.stacks:
        hint = f"site {site.name} has {', '.join(site.stacks) or 'none'}"
        draft.fault(
            FindingCode.UNKNOWN_SITE_OPTION, f"site {site.name} has no stack `{stack}`", ("environment", "stack"), hint
        )
    theirs: dict[KeyPath, str | None] = {
        ("queues", size.queue_name): size.queue.stack,
        ("node_classes", size.queue.node_class): size.node_class.stack,
    }
    for path, wanted in theirs.items():
        if wanted is not None and wanted not in site.stacks:
            hint = f"`stacks:` has {', '.join(site.stacks) or 'none'}"
            draft.site_fault(
                FindingCode.UNKNOWN_PROFILE_NAME, f"the profile has no stack `{wanted}`", (*path, "stack"), hint
            )
    for key, folder in site.paths.items():
        if folder.option is not None and folder.option not in site.options:
            hint = f"`options:` has {', '.join(site.options) or 'none'}"
            draft.site_fault(
                FindingCode.UNKNOWN_PROFILE_NAME,
                f"the profile has no option `{folder.option}`",
                ("paths", key, "option"),
                hint,
            )


def srun_options(draft: PlanDraft, size: JobSize) -> tuple[str, ...]:
    """Options for srun of the launcher, the node class, the queue and the options taken; HL540 for a forbidden one."""
    job, site = draft.resolved.job, draft.resolved.site
    advice = site.launchers.get(job.launcher.name)
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in site.srun.add.items()]
    options += advice.srun_options if advice is not None else []
    options += [*size.node_class.srun_options, *size.queue.srun_options]
    for option in selected_options(draft).values():
        options += option.srun_options
    return tuple(options)
