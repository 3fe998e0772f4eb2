"""The job's software, as far as the login node can tell: modules, and the script's imports in the environment or image.

Nothing of the user's is imported here. The nodes may have other files than this machine: the node check asks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_launch.images.script_imports import top_imports
from hpc_launch.job.shell_text import plain
from hpc_launch.plan.launch_plan import LaunchPlan, Prelude
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.preflight.level import Level
from hpc_launch.preflight.try_setup import SetupResult, try_setup
from hpc_launch.prepare.prepare import PreparedJob

OF_THE_NODE = ("/usr/", "/bin/")
"""Each node has its own Python there."""


def software_levels(
    prepared: PreparedJob, job: Path, site: str | None, sets: Sequence[str], arch: str | None
) -> Iterator[Level]:
    """Check the modules and the imports. `arch`: the nodes' CPU architecture, if known."""
    plan = prepared.plan
    if plan.container is not None:
        yield _image_level(job, site, sets)
        return
    machine = os.uname().machine
    modules = [step for step in plan.prelude if step.kind == "module"]
    if arch is not None and arch != machine:
        reason = f"this machine is {machine}, the nodes are {arch}"
        yield from (Level(name, "not checked", (reason,)) for name in (["modules"] if modules else []) + ["imports"])
        return
    names, unread = _imports(prepared)
    result = try_setup(plan, names, _folder(prepared))
    if modules:
        yield _modules_level(modules, result)
    yield _imports_level(plan, names, unread, result)


def _image_level(job: Path, site: str | None, sets: Sequence[str]) -> Level:
    from hpc_launch.prepare.container_images import check_job_image

    checks = check_job_image(job, site, sets)
    # That the image does not start here proves nothing: login nodes often forbid it.
    skipped = {one.name for one in checks if one.level == "skip" or (one.name == "inside" and one.level == "fail")}
    failed = [one for one in checks if one.level == "fail" and one.name not in skipped]
    lines = []
    for one in sorted(checks, key=lambda one: one not in failed):
        text = one.message.removeprefix("not checked: ")
        words = f"not checked: {one.name}: {text}" if one.name in skipped else f"{one.name}: {text}"
        lines.append(f"warning: {words}" if one.level == "warn" else words)
    return Level("image", "failed" if failed else "not checked" if skipped else "ok", tuple(lines))


def _imports(prepared: PreparedJob) -> tuple[list[str], str | None]:
    """The modules that Python must find, and why the script could not be read, if so."""
    job, plan = prepared.loaded.resolved.job, prepared.plan
    names = {"torch"} if descriptor(plan.launcher).in_image else set()
    if job.module is not None:
        names.add(job.module.partition(".")[0])
    if job.script is None:
        return sorted(names), None
    script = ValueFiller(prepared.loaded.resolved, []).file(job.script, ("script",))
    if not script.endswith(".py"):
        return sorted(names), f"{script} is not a .py file"
    try:
        return sorted(names | top_imports(Path(script))), None
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return sorted(names), f"cannot read {script}: {error}"


def _folder(prepared: PreparedJob) -> str:
    job = prepared.loaded.resolved.job
    if job.script is None:
        return prepared.plan.workdir
    return os.path.dirname(ValueFiller(prepared.loaded.resolved, []).file(job.script, ("script",)))


def _modules_level(modules: Sequence[Prelude], result: SetupResult) -> Level:
    reported = (one.split(" ", 2) for one in result.reports if one.startswith("module "))
    states = {words[2]: words[1] for words in reported if len(words) == 3}
    names = [plain(step.argument) or "" for step in modules]
    missing = [name for name in names if states.get(name) == "missing"]
    if missing:
        return Level("modules", "failed", (f"`module` does not find {', '.join(missing)} on this machine",))
    open_ones = [name for name in names if states.get(name) != "loaded"]
    if open_ones:
        reason = result.error or "no module command on this machine"
        return Level("modules", "not checked", (f"{', '.join(open_ones)}: {reason}",))
    return Level("modules", "ok", (f"loaded on this machine: {', '.join(names)}",))


def _imports_level(plan: LaunchPlan, names: Sequence[str], unread: str | None, result: SetupResult) -> Level:
    answer = result.answer
    if answer is None:
        return Level("imports", "not checked", (result.error,))
    python = f"Python {answer.get('python')} at {answer.get('executable')}"
    missing = [str(name) for name in answer.get("missing") or ()]
    where = str(answer.get("executable"))
    own = plan.scheduler != "local" and where.startswith(OF_THE_NODE)
    found = f"finds {_count(names)}" if names else "starts; the job names nothing to import"
    if missing:
        found = f"finds no module {', '.join(missing)}"
    lines = [f"{python} {found}"]
    if plan.program.kind == "command" and plan.program.words:
        word = plain(plan.program.words[0]) or "the program"
        lines.append(f"{word} is {answer.get('program') or 'not in PATH here'}")
    if unread is not None:
        lines.append(f"not checked: {unread}")
    if own:
        lines.append("not checked: the nodes have a Python of their own at this path")
    if own or unread is not None or not names:
        return Level("imports", "not checked", tuple(lines))
    return Level("imports", "failed" if missing else "ok", tuple(lines))


def _count(names: Sequence[str]) -> str:
    return f"the {len(names)} module{'s' if len(names) > 1 else ''} that the training imports first"
