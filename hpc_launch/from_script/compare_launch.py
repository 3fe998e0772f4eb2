"""The effective launch of the old script beside that of the planned job. Ours is computed from the plan alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from hpc_launch.from_script.old_job import LaunchSize, OldLaunch
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.from_script.settings import DEBUGGING, RENDEZVOUS
from hpc_launch.job.shell_text import RUNTIME, Text, UnknownName, interpolate
from hpc_launch.job.units import format_time, parse_time
from hpc_launch.plan.code_folder import CODE
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.prepare.prepare import PreparedJob

_NAMES = {var: name for name, var in RUNTIME.items()}


class ComparedValue(Struct, frozen=True):
    """One property of both launches. None: it has no such property."""

    what: str
    old: str | None
    new: str | None
    status: Literal["same", "different", "left out", "added"]
    why: str = ""


def compare(script: OldScript, prepared: PreparedJob) -> list[ComparedValue]:
    """All properties: size, program, software and environment."""
    compared = _Comparison(script, prepared.plan, prepared.loaded.resolved.names)
    if script.launch is None or script.size is None:
        words = compared.shown(prepared.plan.program.words)
        return [ComparedValue("program", None, words, "different")]
    return [
        *compared.size(script.size),
        *compared.program(script.launch),
        *compared.software(script.launch),
        *compared.environment(script.launch),
    ]


def is_same(rows: Sequence[ComparedValue]) -> bool:
    """Whether nothing differs but what was left out or added for a reason."""
    return all(row.status != "different" or row.why for row in rows)


def _row(what: str, old: object, new: object, why: str = "") -> ComparedValue:
    one, other = (None if value is None else str(value) for value in (old, new))
    return ComparedValue(what, one, other, "same" if one == other else "different", why if one != other else "")


class _Comparison:
    """Both launches. `names`: values of the names in the job file, which the old script's values use too."""

    def __init__(self, script: OldScript, plan: LaunchPlan, names: Mapping[str, str]) -> None:
        self.script, self.plan, self.names = script, plan, names

    def filled(self, value: str) -> str:
        """A value of the old script with the names filled that both know."""
        try:
            return self.plain(interpolate(value, self.names))
        except UnknownName:
            return value

    def path(self, text: str) -> str:
        """A path of the old script, from the root."""
        plain = os.path.expanduser(self.filled(text.replace("${shell.", "${env.")))
        return os.path.normpath(os.path.join(self.script.folder, plain))

    def plain(self, text: Text) -> str:
        """A text of the plan, with the names of what only the job knows."""
        plain = "".join(
            part if isinstance(part, str) else "${" + _NAMES.get(part, f"shell.{part.name}") + "}" for part in text
        )
        if not text or text[0] != CODE or self.plan.code is None:
            return plain
        return f"{self.plan.code.root}/{plain.partition('}')[2]}".replace("//", "/")

    def shown(self, words: Sequence[Text]) -> str:
        """Words of the plan as people read them."""
        return _quoted([self.plain(word) for word in words])

    def size(self, size: LaunchSize) -> Iterator[ComparedValue]:
        plan, request = self.plan, self.script.request
        once = plan.launcher == "none"
        yield _row("nodes", size.nodes, plan.nodes)
        if size.once and size.nodes > 1:
            yield _row("nodes of the program", 1, 1 if once else plan.nodes)
        if plan.launcher in {"torchrun", "deepspeed"}:
            tasks = descriptor(plan.launcher).tasks_per_node(plan.processes_per_node)
            why = "the old script starts the launcher several times on each node"
            yield _row("launchers per node", size.starts_per_node, tasks, why)
        yield _row("processes per node", size.processes_per_node, 1 if once else plan.processes_per_node)
        total = size.processes_per_node * (1 if size.once else size.nodes)
        yield _row("processes", total, 1 if once else plan.world_size)
        yield _row("GPUs per node", size.gpus_per_node, plan.gpus_per_node)
        if size.cpus_per_node:
            yield _row("CPUs per node", size.cpus_per_node, plan.cpus_per_node)
        if time := request.get("time"):
            with suppress(ValueError):
                time = format_time(parse_time(time))
            yield _row("time limit", time, format_time(plan.time_limit_s) if plan.time_limit_s else None)
        options = {line.option: line.value for line in plan.directives}
        for name in ("partition", "qos", "account", "constraint"):
            if request.get(name):
                yield _row(name, request.get(name), options.get(name))

    def program(self, launch: OldLaunch) -> Iterator[ComparedValue]:
        program = self.plan.program
        yield _row("launcher", launch.launcher, self.plan.launcher)
        words = [self.filled(word.text) for word in launch.words]
        arguments = [self.filled(word.text) for word in launch.arguments]
        ours = list(program.words)
        if launch.program == "script" and words:
            if program.kind == "command" and ours[:1] == [("python3",)]:
                ours = ours[1:]
            folder = self.path(self.script.job.workdir or self.script.request.get("chdir") or "")
            words[0] = words[0] if words[0].startswith("${") else os.path.normpath(os.path.join(folder, words[0]))
        elif launch.program == "command":
            words, arguments = [*words, *arguments], []
        yield _row("program", _quoted(words), self.shown(ours))
        our_arguments = [text for line in program.argument_lines for text in line]
        yield _row("arguments", _quoted(arguments), self.shown(our_arguments))

    def software(self, launch: OldLaunch) -> Iterator[ComparedValue]:
        job, plan = self.script.job, self.plan
        old = job.software
        wanted = {
            "source": [self.path(one) for one in old.get("source", [])],
            "module": old.get("modules", []),
            "conda": [self.filled(old["conda"].replace("${shell.", "${env."))] if "conda" in old else [],
            "venv": [self.path(old["venv"])] if "venv" in old else [],
        }
        for kind, values in wanted.items():
            ours = [self.plain(step.argument) for step in plan.prelude if step.kind == kind]
            if values or ours:
                yield _row(kind, " ".join(values), " ".join(ours))
        asked, new = launch.container or {}, plan.container
        if asked or new is not None:
            image = asked.get("image", "")
            local = image and asked["runtime"] != "pyxis" and "://" not in image
            yield _row("image", self.path(image) if local else image or None, new.image if new is not None else None)
        binds = [self.plain(bind) for bind in new.binds] if new is not None else []
        for bind in asked.get("binds", []):
            source, colon, inside = bind.partition(":")
            path = self.path(source) + colon + inside
            yield _row("bind", path, path if path in binds else None)

    def environment(self, launch: OldLaunch) -> Iterator[ComparedValue]:
        job, plan = self.script.job, self.plan
        around = [step.variable for step in plan.around.steps if step.variable is not None]
        ours = {
            variable.name: None if variable.value is None else self.plain(variable.value)
            for variable in (*plan.variables, *around)
        }
        wanted = {name: value for name, (value, _) in job.env.items()} | launch.env
        for name, value in wanted.items():
            text, new = self.filled(value.text), ours.get(name)
            if name in RENDEZVOUS or name in DEBUGGING:
                yield ComparedValue(name, text, new, "left out", DEBUGGING.get(name, "set by the launcher"))
            else:
                why = "" if value.known else "known only in the job: see the list of lines that were not understood"
                yield _row(name, text, new, why)
        for name, reason in job.left_out.items():
            if name not in wanted:
                yield ComparedValue(name, "set", ours.get(name), "left out", reason)
        for name in job.secrets:
            yield _row(name, "(a secret)", "(a secret)" if name in plan.secrets else None)
        for name, prefix in job.prepend.items():
            yield _row(name, f"{self.filled(prefix)}:…", f"{ours[name]}:…" if name in ours else None)
        for variable in plan.variables:
            if variable.name not in {*wanted, *job.left_out, *job.prepend}:
                yield ComparedValue(variable.name, None, ours[variable.name], "added", str(variable.origin))
        for name in job.unset:
            if name not in wanted and name in ours:
                yield _row(name, None, ours[name])


def _quoted(words: Sequence[str]) -> str:
    return " ".join(word if "${" in word else shlex.quote(word) for word in words)
