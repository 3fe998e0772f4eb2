"""Slurm options: the `#SBATCH` lines, as the site wants them written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpc_launch.base.findings import FindingCode, Place
from hpc_launch.job.document import KeyPath, Origin, rule
from hpc_launch.job.key_hints import answer_to, words
from hpc_launch.job.shell_text import readable
from hpc_launch.job.type_hints import Scalar
from hpc_launch.job.units import counted, format_memory, format_time
from hpc_launch.plan.driver_plan import mail_options
from hpc_launch.plan.job_size import condition_facts, profile_parts
from hpc_launch.plan.launch_plan import Directive, Variable
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.sites.job_settings import Linked, LinkedRule, holds


def apply_site_rules(
    draft: PlanDraft, size: JobSize, lines: Sequence[Directive], variables: Sequence[Variable]
) -> list[Directive]:
    """The directives after the site's rules, with a finding for each forbidden or missing one."""
    options = draft.resolved.site.sbatch
    asked = {line.option for line in lines if line.origin.layer in ("user", "job", "--set", "environment")}
    kept = [line for line in lines if line.option not in options.drop or line.option in asked]
    kept = [Directive(options.rename.get(line.option, line.option), line.value, line.origin) for line in kept]
    about = condition_facts(draft, size)
    for at, one in enumerate(draft.resolved.site.rules):
        if holds(one.when, about):
            kept = _linked(draft, one, at, kept, variables)
    for line in kept:
        if line.option in options.forbid:
            _refuse(draft, "sbatch", line.option, options.forbid[line.option], line.origin.place)
    for option, why in options.require.items():
        if all(line.option != option for line in kept):
            message = f"site {draft.resolved.site.name} requires `--{option}`{_because(why)}"
            hint = f"set it in the job file, by its own key or with `sbatch: {{{option}: …}}`"
            draft.fault(FindingCode.OPTION_REQUIRED_BY_SITE, message, ("sbatch",), hint)
    return kept


def check_srun(draft: PlanDraft, options: Iterable[str]) -> None:
    """HL540 for an srun option that the site forbids, HL541 for a missing one that it requires."""
    site = draft.resolved.site
    names = [option.removeprefix("--").partition("=")[0] for option in options]
    for name in names:
        if name in site.srun.forbid:
            place = draft.resolved.site_origin("srun", "forbid", name).place
            _refuse(draft, "srun", name, site.srun.forbid[name], place)
    for name, why in site.srun.require.items():
        if name not in names:
            message = f"site {site.name} requires `--{name}` for srun{_because(why)}"
            hint = "add it under `srun: {add: …}` in the profile"
            draft.site_fault(FindingCode.OPTION_REQUIRED_BY_SITE, message, ("srun", "require", name), hint)


def _refuse(draft: PlanDraft, command: str, option: str, why: str, place: Place | None) -> None:
    message = f"site {draft.resolved.site.name} forbids `--{option}` for {command}{_because(why)}"
    draft.fault_at(FindingCode.OPTION_REFUSED_BY_SITE, message, place, "remove it")


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _linked(
    draft: PlanDraft, one: LinkedRule, at: int, lines: list[Directive], variables: Sequence[Variable]
) -> list[Directive]:
    """Apply one rule of the site: add what is missing or report it, and report what it excludes."""
    held = _set(variables) | {f"--{line.option}": "true" if line.value is None else line.value for line in lines}
    places = {variable.name: variable.origin.place for variable in variables}
    places |= {f"--{line.option}": line.origin.place for line in lines}
    if not _hold(one.given, held):
        return lines
    why, given = _because(one.why), _names(one.given)
    cause = next((places[key] for key in _settings(one.given) if key in places), None) or draft.resolved.place()
    fix = "remove one of the two" if one.given != Linked() else "remove it"
    for key, value in _settings(one.excludes).items():
        if value in ("*", held.get(key)) and key in held:
            what = key if key.startswith("--") else f"{key}={held[key]}"
            message = f"`{what}` conflicts with {given}{why}"
            draft.fault_at(FindingCode.CONFLICTING_SETTINGS, message, places.get(key), fix, one.severity)
    for key, value in _settings(one.needs).items():
        if value in ("*", held.get(key)) and key in held:
            continue
        option = key.removeprefix("--") if key.startswith("--") else None
        if option is not None and one.add and value != "*":
            origin = _for(draft.resolved.site_origin("rules", at), given)
            lines = [line for line in lines if line.option != option]
            lines.append(Directive(option, None if value == "true" else value, origin))
            continue
        hint = f"set it: `{'env' if option is None else 'sbatch'}: {{{option or key}: {value}}}`"
        message = f"{given} requires `{key}={value}`{why}"
        draft.fault_at(FindingCode.MISSING_COMPANION, message, cause, hint, one.severity)
    return lines


def missing_variables(draft: PlanDraft, size: JobSize, variables: Sequence[Variable]) -> list[Variable]:
    """Variables that the site's rules add. Rules that depend on sbatch options are applied with the directives."""
    added: list[Variable] = []
    for at, one in enumerate(draft.resolved.site.rules):
        held = _set([*variables, *added])
        if not one.add or one.given.sbatch or not holds(one.when, condition_facts(draft, size)):
            continue
        if _hold(one.given, held):
            origin = _for(draft.resolved.site_origin("rules", at), _names(one.given))
            missing = {name: value for name, value in one.needs.env.items() if name not in held}
            added += [Variable(name, (value,), origin) for name, value in missing.items() if value != "*"]
    return added


def _settings(linked: Linked) -> dict[str, str]:
    """Values by the name of the variable, or of the option with its dashes."""
    return linked.env | {f"--{name}": value for name, value in linked.sbatch.items()}


def _set(variables: Sequence[Variable]) -> dict[str, str]:
    """The variables that have a value, as text."""
    return {one.name: readable(one.value) for one in variables if one.value is not None}


def _hold(given: Linked, held: Mapping[str, str]) -> bool:
    return all(key in held and value in ("*", held[key]) for key, value in _settings(given).items())


def _names(given: Linked) -> str:
    words = [key if value in ("*", "true") else f"{key}={value}" for key, value in _settings(given).items()]
    return " and ".join(f"`{word}`" for word in words) or "this site"


def _for(origin: Origin, given: str) -> Origin:
    return rule(f"{origin.short()}: with {given}".replace("`", ""))


_OPTION = re.compile(r"[a-z][a-z0-9-]*\Z")
_REFUSED_IN_VALUE = re.compile(r"[^\x20-\x7e]|[\"'\\`#]")
GPU_OPTIONS = frozenset({"gres", "gpus", "gpus-per-node"})


def directives(draft: PlanDraft, size: JobSize, variables: Sequence[Variable] = ()) -> tuple[Directive, ...]:
    """All directives; `sbatch:` keys of later layers replace earlier ones.

    The layers in order: the site, its launcher, node class and queue, the selected options, the job. `variables` are
    those of the training; the site's rules may refer to them.
    """
    resolved = draft.resolved
    job, site = resolved.job, resolved.site
    queue_path = ("queues", size.queue_name)
    lines = [Directive("job-name", job.name, resolved.origin("name"))]

    def add(option: str, value: object, origin: Origin) -> None:
        if value is not None:
            lines.append(Directive(option, None if value is True else str(value), origin))

    add("partition", size.queue.partition, resolved.site_origin(*queue_path, "partition"))
    add("qos", size.queue.qos, resolved.site_origin(*queue_path, "qos"))
    account, account_origin = charged_account(draft, size)
    add("account", account, account_origin)
    mine = descriptor(job.launcher.name)
    tasks = mine.tasks_per_node(size.processes_per_node)
    style = size.node_class.gpu_request.removesuffix("-type") if size.gpus_per_node else ""
    # It starts without spares where no other nodes are free. Several tasks per node need their number, which a range
    # of nodes excludes, and a total number of GPUs fits one number of nodes only.
    some = job.elastic or (job.spares > 0 and tasks == 1 and style not in ("gpus", "gpus-per-task"))
    nodes = f"{job.min_nodes}-{job.held_nodes}" if some else job.held_nodes
    add("nodes", nodes, rule(f"{job.max_nodes} and {job.spares} spare") if job.spares else resolved.origin("nodes"))
    if job.elastic or job.spares:
        add("no-kill", True, rule("the job survives the loss of a node"))
    why = "one task per process" if mine.tasks != "node" else f"one task per node: {job.launcher.name} starts the rest"
    if not some:  # with it Slurm gives the fewest nodes of a range and no more (seen with 22.05)
        add("ntasks-per-node", tasks, rule(why))
    if size.cpus_per_node is not None:
        share = size.cpus_per_node // tasks
        origin = size.cpus_origin if tasks == 1 else rule(f"{size.cpus_per_node} CPUs for {tasks} tasks")
        add("cpus-per-task", max(share, 1), origin)
    lines += _gpu_request(size, job.held_nodes, tasks)
    lines += _constraint(draft, size)
    if size.memory is not None:
        add("mem", format_memory(size.memory), size.memory_origin)
    if size.queue.exclusive is True:
        add("exclusive", True, resolved.site_origin(*queue_path, "exclusive"))
    if size.time_s is not None:
        add("time", format_time(size.time_s), size.time_origin)
    if job.checkpoint.signal_before is not None:
        add("signal", f"B:USR1@{job.checkpoint.signal_before}", resolved.origin("checkpoint", "signal_before"))
    bad = [name for name in site.bad_nodes.nodes if name not in job.exclude]
    exclude_origin = resolved.origin("exclude") if job.exclude else resolved.site_origin("bad_nodes")
    add("exclude", ",".join([*job.exclude, *bad]) or None, exclude_origin)
    requeue = size.queue.requeue or site.scheduler.requeue
    requeue_path = (*queue_path, "requeue") if size.queue.requeue else ("scheduler", "requeue")
    if requeue == "never":
        add("no-requeue", True, rule("hpc-launch resubmits; Slurm must not requeue"))
    else:
        add("requeue", requeue == "scheduler" or requeue, resolved.site_origin(*requeue_path))
    lines += mail_options(draft)
    add("open-mode", "append", rule("keep the log across requeues"))
    add("output", f"{job.name}-%j.out", rule("for manual starts; `submit` logs to the run folder"))
    advice = site.launchers.get(job.launcher.name)
    layers: list[tuple[KeyPath | None, Mapping[str, Scalar]]] = [
        (("sbatch", "add"), site.sbatch.add),
        (("launchers", job.launcher.name, "sbatch"), advice.sbatch if advice else {}),
        *(((*path, "sbatch"), part.sbatch) for path, part in profile_parts(draft, size).items()),
        (None, job.sbatch),
    ]
    for source, options in layers:
        for option, value in options.items():
            origin = resolved.origin("sbatch", option) if source is None else resolved.site_origin(*source, option)
            lines = _extra(draft, lines, option, value, origin)
    lines = apply_site_rules(draft, size, lines, variables)
    _check_values(draft, size, lines)
    return tuple(lines)


def charged_account(draft: PlanDraft, size: JobSize) -> tuple[str | None, Origin]:
    """The account, with the suffix that the queue or its nodes require."""
    resolved, account = draft.resolved, draft.resolved.job.account
    suffix, path = size.queue.account_suffix, ("queues", size.queue_name, "account_suffix")
    if suffix is None:
        suffix, path = size.node_class.account_suffix, ("node_classes", size.queue.node_class, "account_suffix")
    if account is None or not suffix or account.endswith(suffix):
        return account, resolved.origin("account")
    where = resolved.site_origin(*path).short()
    return account + suffix, rule(f"{resolved.origin('account').short()}, with the suffix of {where}")


def _gpu_request(size: JobSize, nodes: int, tasks: int) -> list[Directive]:
    node, count = size.node_class, size.gpus_per_node
    if not count or node.gpu_request == "none":
        return []
    style = node.gpu_request.removesuffix("-type")
    kind = f"{node.gpu_type}:" if node.gpu_request.endswith("-type") and node.gpu_type else ""
    number = {"gpus": count * nodes, "gpus-per-task": max(count // tasks, 1)}.get(style, count)
    return [Directive(style, f"{'gpu:' if style == 'gres' else ''}{kind}{number}", size.gpus_origin)]


def _constraint(draft: PlanDraft, size: JobSize) -> list[Directive]:
    """All required features, combined with AND."""
    resolved, own = draft.resolved, draft.resolved.job.constraint
    parts = profile_parts(draft, size)
    said = {one.constraint: resolved.site_origin(*path, "constraint") for path, one in parts.items() if one.constraint}
    said |= {own: resolved.origin("constraint")} if own else {}
    if not said:
        return []
    # sbatch(1): `&` does not bind tighter than `|`, so alternatives need parentheses.
    words = [f"({text})" if "|" in text and len(said) > 1 and text[0] != "(" else text for text in said]
    origins = list(said.values())
    origin = origins[0] if len(origins) == 1 else rule(" and ".join(origin.short() for origin in origins))
    return [Directive("constraint", "&".join(words), origin)]


def _extra(draft: PlanDraft, lines: list[Directive], option: str, value: Scalar, origin: Origin) -> list[Directive]:
    if not _OPTION.match(option) or option in words().not_of_sbatch:
        hint = answer_to((option,), value) or "write the long name without `--`, such as `mail-type` or `reservation`"
        message = f"`{option}` is not the long name of an sbatch option"
        draft.fault_at(FindingCode.INVALID_SBATCH_OPTION, message, origin.place, hint)
        return lines
    if option in words().reserved:
        message = f"`--{option}` is set by hpc-launch itself"
        draft.fault_at(FindingCode.RESERVED_SBATCH_OPTION, message, origin.place, answer_to((option,), value))
        return lines
    other = next((line.option for line in lines if line.option in GPU_OPTIONS - {option}), None)
    if other is not None and option in GPU_OPTIONS and (option != "gres" or "gpu" in str(value)):
        message = f"`--{option}` asks for GPUs beside `--{other}`, which hpc-launch sets itself"
        draft.fault_at(FindingCode.RESERVED_SBATCH_OPTION, message, origin.place, answer_to((option,), value))
    kept = [line for line in lines if line.option != option]
    if value is None or value is False:
        return kept
    return [*kept, Directive(option, None if value is True else str(value), origin)]


def _check_values(draft: PlanDraft, size: JobSize, lines: list[Directive]) -> None:
    """sbatch has its own quoting rules for directives; values that would need them are refused, and invalid ones."""
    job, forms = draft.resolved.job, words().forms
    for line in lines:
        form, hint = forms.get(line.option, (".*", ""))
        if not re.fullmatch(form, line.value or "", re.ASCII):
            message = f"invalid value of `--{line.option}`: {line.value or 'none'}"
            draft.fault_at(FindingCode.INVALID_SBATCH_VALUE, message, line.origin.place, hint)
        elif line.option == "segment":
            length, most = int(line.value or 1), size.node_class.nvlink_nodes
            odd = [count for count in (job.min_nodes, job.held_nodes) if count % length]
            if odd:  # Slurm refuses such a job (topology/block), or does not divide it (topology/tree)
                message = f"{counted(odd[0], 'node')} cannot be divided into segments of {line.value}"
                hint = f"use a multiple of {line.value} nodes, or another segment"
                draft.fault_at(FindingCode.CONFLICTING_SETTINGS, message, line.origin.place, hint)
            elif length > most > 1:
                message = f"a segment of {counted(length, 'node')} exceeds the {most} that NVLink connects"
                hint = f"use a segment of at most {most}"
                draft.fault_at(FindingCode.CONFLICTING_SETTINGS, message, line.origin.place, hint, "warning")
        if line.value is not None and _REFUSED_IN_VALUE.search(line.value):
            message = f"the value of `--{line.option}` cannot be written in an #SBATCH line"
            hint = "remove quotes, backslashes, `#` and control characters"
            draft.fault_at(FindingCode.INVALID_SBATCH_VALUE, message, line.origin.place, hint)
