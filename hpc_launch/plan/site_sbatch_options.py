"""Apply the site's rules for sbatch options: drop, rename, require, forbid, and combine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Place
from hpc_launch.job.origin import Origin, rule
from hpc_launch.job.shell_text import Text, Var
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.plan_parts import Directive, Variable
from hpc_launch.plan.site_context import condition_facts
from hpc_launch.sites.conditions import holds, version_holds
from hpc_launch.sites.option_rules import Linked, LinkedRule, Options


def apply_site_rules(
    draft: PlanDraft, size: JobSize, lines: Sequence[Directive], variables: Sequence[Variable]
) -> list[Directive]:
    """The directives after the site's rules, with a finding for each forbidden or missing one."""
    options = draft.resolved.site.sbatch
    asked = {line.option for line in lines if line.origin.layer in ("user", "job", "--set", "environment")}
    kept = [line for line in lines if line.option not in options.drop or line.option in asked]
    kept = [_renamed(line, options.rename) for line in kept]
    about = condition_facts(draft, size)
    for at, one in enumerate(draft.resolved.site.rules):
        if holds(one.when, about):
            kept = _linked(draft, one, at, kept, variables)
    known = draft.resolved.site.scheduler.version
    for line in kept:
        if line.option in options.forbid:
            _refuse(draft, "sbatch", line.option, options.forbid[line.option], line.origin.place)
        _check_release(draft, line, options, known)
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
            _refuse(
                draft, "srun", name, site.srun.forbid[name], draft.resolved.site_origin("srun", "forbid", name).place
            )
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


def _renamed(line: Directive, names: Mapping[str, str]) -> Directive:
    return Directive(names[line.option], line.value, line.origin) if line.option in names else line


def _check_release(draft: PlanDraft, line: Directive, options: Options, known: str | None) -> None:
    since = options.since.get(line.option)
    if since is None or known is None or version_holds(f">={since.lstrip('>= ')}", known):
        return
    message = f"`--{line.option}` needs Slurm {since.lstrip('>= ')}, but site {draft.resolved.site.name} has {known}"
    draft.fault_at(FindingCode.OPTION_TOO_NEW, message, line.origin.place, "remove it for this site")


def _linked(
    draft: PlanDraft, one: LinkedRule, at: int, lines: list[Directive], variables: Sequence[Variable]
) -> list[Directive]:
    """Apply one rule of the site: add what is missing or report it, and report what it excludes."""
    set_ = {variable.name: _spelt(variable.value) for variable in variables if variable.value is not None}
    set_places = {variable.name: variable.origin.place for variable in variables}
    asked = {line.option: "true" if line.value is None else line.value for line in lines}
    if not all(_has(one.given, set_, asked)):
        return lines
    why, origin = _because(one.why), draft.resolved.site_origin("rules", at)
    severity, given = one.severity, _names(one.given)
    holders = {**{line.option: line.origin.place for line in lines}, **set_places}
    cause = next((holders[name] for name in (*one.given.env, *one.given.sbatch) if name in holders), None)
    cause = cause or draft.resolved.place()
    fix = "remove one of the two" if one.given != Linked() else "remove it"
    for name, value in one.excludes.env.items():
        if name in set_ and value in ("*", set_[name]):
            place = set_places.get(name)
            message = f"`{name}={set_[name]}` conflicts with {given}{why}"
            draft.fault_at(FindingCode.CONFLICTING_SETTINGS, message, place, fix, severity)
    for name, value in one.excludes.sbatch.items():
        if name in asked and value in ("*", asked[name]):
            place = next((line.origin.place for line in lines if line.option == name), None)
            draft.fault_at(
                FindingCode.CONFLICTING_SETTINGS, f"`--{name}` conflicts with {given}{why}", place, fix, severity
            )
    for name, value in one.needs.env.items():
        if name not in set_ or value not in ("*", set_[name]):
            hint = f"set it: `env: {{{name}: {value}}}`"
            message = f"{given} requires the variable `{name}={value}`{why}"
            draft.fault_at(FindingCode.MISSING_COMPANION, message, cause, hint, severity)
    for name, value in one.needs.sbatch.items():
        if name in asked and value in ("*", asked[name]):
            continue
        if one.add and value != "*":
            lines = [line for line in lines if line.option != name]
            lines.append(Directive(name, None if value == "true" else value, _for(origin, given)))
        else:
            hint = f"add it: `sbatch: {{{name}: {value}}}`"
            draft.fault_at(
                FindingCode.MISSING_COMPANION, f"{given} requires `--{name}={value}`{why}", cause, hint, severity
            )
    return lines


def missing_variables(draft: PlanDraft, size: JobSize, variables: Sequence[Variable]) -> list[Variable]:
    """Variables that the site's rules add. Rules that depend on sbatch options are applied by `obey`."""
    added: list[Variable] = []
    for at, one in enumerate(draft.resolved.site.rules):
        if not one.add or one.given.sbatch or not holds(one.when, condition_facts(draft, size)):
            continue
        set_ = {each.name: _spelt(each.value) for each in (*variables, *added) if each.value is not None}
        if all(_has(one.given, set_, {})):
            origin = _for(draft.resolved.site_origin("rules", at), _names(one.given))
            added += [
                Variable(name, (value,), origin)
                for name, value in one.needs.env.items()
                if value != "*" and name not in set_
            ]
    return added


def _has(given: Linked, variables: Mapping[str, str], options: Mapping[str, str]) -> Iterable[bool]:
    yield from (name in variables and value in ("*", variables[name]) for name, value in given.env.items())
    yield from (name in options and value in ("*", options[name]) for name, value in given.sbatch.items())


def _names(given: Linked) -> str:
    words = [f"{name}={value}" if value != "*" else name for name, value in given.env.items()]
    words += [f"--{name}" if value in ("*", "true") else f"--{name}={value}" for name, value in given.sbatch.items()]
    return " and ".join(f"`{word}`" for word in words) or "this site"


def _for(origin: Origin, given: str) -> Origin:
    return rule(f"{origin.short()}: with {given}".replace("`", ""))


def _spelt(text: Text | None) -> str:
    return "".join(f"${part.name}" if isinstance(part, Var) else part for part in text or ())
