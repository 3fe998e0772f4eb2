"""The effective launch of the old script beside that of the planned job. Ours is computed from the plan alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from hpc_launch.from_script import plain_commands
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.job.shell_text import RUNTIME, Text, UnknownName, interpolate
from hpc_launch.job.units import format_time
from hpc_launch.plan.code_folder import CODE
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.prepare.prepare import PreparedJob

Status = Literal["same", "different", "left out", "added"]
_NAMES = {var: name for name, var in RUNTIME.items()}


class ComparedValue(Struct, frozen=True):
    """One property of both launches. None: it has no such property."""

    what: str
    old: str | None
    new: str | None
    status: Status
    why: str = ""


def compare(script: OldScript, prepared: PreparedJob) -> list[ComparedValue]:
    """All properties: size, program, software and environment."""
    if script.launch is None or script.size is None:
        return [ComparedValue("program", None, _shown(prepared.plan.program.words, prepared.plan), "different")]
    plan, names = prepared.plan, prepared.loaded.resolved.names
    old = _OldTexts(names)
    return [
        *_size(script, plan),
        *_program(script, script.launch, plan, old),
        *_software(script, script.launch, plan, old),
        *_environment(script, script.launch, plan, old),
    ]


def is_same(rows: Sequence[ComparedValue]) -> bool:
    """Whether nothing differs but what was left out or added for a reason."""
    return all(row.status != "different" or row.why for row in rows)


class _OldTexts:
    """Values of the old script with the names filled that both know."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def text(self, value: str) -> Text:
        try:
            return interpolate(value, self.names)
        except UnknownName:
            return (value,)


def _shown(words: Sequence[Text], plan: LaunchPlan) -> str:
    """Words as people read them: with the names of what only the job knows."""
    import shlex

    texts = [_plain(word, plan) for word in words]
    return " ".join(text if "${" in text else shlex.quote(text) for text in texts)


def _plain(text: Text, plan: LaunchPlan) -> str:
    parts = []
    for part in text:
        if isinstance(part, str):
            parts.append(part)
        elif part == CODE and plan.code is not None:
            parts.append(plan.code.root + "/")
        else:
            parts.append("${" + _NAMES.get(part, f"shell.{part.name}") + "}")
    return "".join(parts).replace("//", "/") if text and text[0] == CODE else "".join(parts)


def _row(what: str, old: str | None, new: str | None, why: str = "") -> ComparedValue:
    return ComparedValue(what, old, new, "same" if old == new else "different", why if old != new else "")


def _size(script: OldScript, plan: LaunchPlan) -> Iterator[ComparedValue]:
    size, request = script.size, script.request
    if size is None:
        return
    once = plan.launcher == "none"
    ours = 1 if once else plan.processes_per_node
    tasks = descriptor(plan.launcher).tasks_per_node(plan.processes_per_node)
    yield _row("nodes", str(size.nodes), str(plan.nodes))
    if size.once and size.nodes > 1:
        yield _row("nodes of the program", "1", "1" if once else str(plan.nodes))
    if plan.launcher in {"torchrun", "deepspeed"}:
        why = "the old script starts the launcher several times on each node"
        yield _row("launchers per node", str(size.starts_per_node), str(tasks), why)
    yield _row("processes per node", str(size.processes_per_node), str(ours))
    total = size.processes_per_node * (1 if size.once else size.nodes)
    yield _row("processes", str(total), str(1 if once else plan.world_size))
    yield _row("GPUs per node", str(size.gpus_per_node), str(plan.gpus_per_node))
    options = {line.option: line.value for line in plan.directives}
    if size.cpus_per_node:
        yield _row("CPUs per node", str(size.cpus_per_node), str(plan.cpus_per_node))
    if request.time:
        new = format_time(plan.time_limit_s) if plan.time_limit_s else None
        yield _row("time limit", _time(request.time), new)
    for name in ("partition", "qos", "account", "constraint"):
        value = getattr(request, name)
        if value:
            yield _row(name, value, options.get(name))


def _time(text: str) -> str:
    from hpc_launch.job.units import parse_time

    try:
        return format_time(parse_time(text))
    except ValueError:
        return text


def _program(script: OldScript, launch: OldLaunch, plan: LaunchPlan, old: _OldTexts) -> Iterator[ComparedValue]:
    yield _row("launcher", launch.launcher, plan.launcher)
    words = [old.text(word.text) for word in launch.words]
    arguments = [old.text(word.text) for word in launch.arguments]
    ours = list(plan.program.words)
    our_arguments = [text for line in plan.program.argument_lines for text in line]
    if launch.program == "script" and words:
        if plan.program.kind == "command" and ours[:1] == [("python3",)]:
            ours = ours[1:]
        here = _plain(old.text((script.job.workdir or "").replace("${shell.", "${env.")), plan)
        folder = os.path.join(script.folder, script.request.workdir or "", os.path.expanduser(here))
        first = words[0]
        if len(first) == 1 and isinstance(first[0], str):
            words[0] = (os.path.normpath(os.path.join(folder, first[0])),)
    elif launch.program == "command":
        words, arguments = [*words, *arguments], []
    yield _row("program", _shown(words, plan), _shown(ours, plan))
    yield _row("arguments", _shown(arguments, plan), _shown(our_arguments, plan))


def _software(script: OldScript, launch: OldLaunch, plan: LaunchPlan, old: _OldTexts) -> Iterator[ComparedValue]:
    job = script.job

    def path(text: str) -> str:
        plain = _plain(old.text(text.replace("${shell.", "${env.")), plan)
        return os.path.normpath(os.path.join(script.folder, os.path.expanduser(plain)))

    wanted = {
        "source": [path(one) for one in job.sources],
        "module": job.modules,
        "conda": [_plain(old.text(job.conda), plan)] if job.conda else [],
        "venv": [path(job.venv)] if job.venv else [],
    }
    for kind, values in wanted.items():
        ours = [_plain(step.argument, plan) for step in plan.prelude if step.kind == kind]
        if values or ours:
            yield _row(kind, " ".join(values), " ".join(ours))
    image = plan.container.image if plan.container is not None else None
    if launch.container is not None:
        named = launch.container.image
        local = launch.container.runtime != "pyxis" and "://" not in named
        yield _row("image", path(named) if local else named, image)
        binds = [_plain(bind, plan) for bind in plan.container.binds] if plan.container is not None else []
        for bind in launch.container.binds:
            source, colon, inside = bind.partition(":")
            asked = path(source) + colon + inside
            yield _row("bind", asked, asked if asked in binds else None)
    elif image is not None:
        yield _row("image", None, image)


def _environment(script: OldScript, launch: OldLaunch, plan: LaunchPlan, old: _OldTexts) -> Iterator[ComparedValue]:
    ours = {
        variable.name: None if variable.value is None else _plain(variable.value, plan)
        for variable in (*plan.variables, *(step.variable for step in plan.around.steps if step.variable is not None))
    }
    wanted = {name: value for name, (value, _) in script.job.env.items()} | launch.env
    for name, value in wanted.items():
        text = _plain(old.text(value.text), plan)
        reason = plain_commands.DEBUGGING.get(name, "")
        if name in plain_commands.RENDEZVOUS or reason:
            yield ComparedValue(name, text, ours.get(name), "left out", reason or "set by the launcher")
        elif name in ours and ours[name] == text:
            yield ComparedValue(name, text, text, "same")
        else:
            why = "" if value.known else "known only in the job: see the list of lines that were not understood"
            yield ComparedValue(name, text, ours.get(name), "different", why)
    for name, reason in script.job.left_out.items():
        if name not in wanted:
            yield ComparedValue(name, "set", ours.get(name), "left out", reason)
    for name in script.job.secrets:
        passed = name in plan.secrets
        yield ComparedValue(name, "(a secret)", "(a secret)" if passed else None, "same" if passed else "different")
    for name, prefix in script.job.prepend.items():
        front = _plain(old.text(prefix), plan)
        yield _row(name, f"{front}:…", f"{ours[name]}:…" if name in ours else None)
    known = {*wanted, *script.job.left_out, *script.job.prepend}
    for variable in plan.variables:
        if variable.name not in known:
            value_text = None if variable.value is None else _plain(variable.value, plan)
            yield ComparedValue(variable.name, None, value_text, "added", str(variable.origin))
    for name in script.job.unset:
        if name not in wanted and name in ours:
            yield _row(name, None, ours[name])
