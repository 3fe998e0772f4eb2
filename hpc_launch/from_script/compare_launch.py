"""The effective launch of the old script beside that of the planned job. Ours is computed from the plan alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from hpc_launch.from_script.old_job import LaunchSize, OldLaunch, OldScript
from hpc_launch.from_script.settings import DEBUGGING, NOT_NEEDED, RENDEZVOUS
from hpc_launch.job.shell_text import RUNTIME, Text, UnknownName, interpolate
from hpc_launch.job.units import format_time, parse_time
from hpc_launch.plan.launch_step import CODE
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
    compared = _Comparison(script, prepared)
    if script.launch is None or script.size is None:
        return [_row("program", None, compared.shown(prepared.plan.program.words))]
    parts = (compared.program(script.launch), compared.software(script.launch), compared.environment(script.launch))
    return [*compared.size(script.size), *(row for part in parts for row in part)]


def is_same(rows: Sequence[ComparedValue]) -> bool:
    """Whether nothing differs but what was left out or added for a reason."""
    return all(row.status != "different" or row.why for row in rows)


def _row(what: str, old: object, new: object, why: str = "") -> ComparedValue:
    """A row; the reason is for a difference."""
    one, other = (None if value is None else str(value) for value in (old, new))
    same = one == other
    return ComparedValue(what, one, other, "same" if same else "different", "" if same else why)


class _Comparison:
    """The rows of both launches."""

    def __init__(self, script: OldScript, prepared: PreparedJob) -> None:
        self.script = script
        self.plan = prepared.plan
        self.names = prepared.loaded.resolved.names

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
        code = self.plan.code
        if code is not None and text[:1] == (CODE,):
            return os.path.normpath(f"{code.root}/{self.plain(text[1:])}")
        return "".join(
            part if isinstance(part, str) else f"${{{_NAMES.get(part, f'shell.{part.name}')}}}" for part in text
        )

    def shown(self, words: Sequence[Text]) -> str:
        """Words of the plan as people read them."""
        return _quoted([self.plain(word) for word in words])

    def size(self, size: LaunchSize) -> Iterator[ComparedValue]:
        plan, request = self.plan, self.script.request
        once = plan.launcher == "none"
        yield _row("nodes", size.nodes, plan.nodes)
        if plan.launcher in {"torchrun", "deepspeed"}:
            tasks = descriptor(plan.launcher).tasks_per_node(plan.processes_per_node)
            why = "the old script starts the launcher several times on each node"
            yield _row("launchers per node", size.starts_per_node, tasks, why)
        total = size.processes_per_node * (1 if size.once else size.nodes)
        yield _row("processes per node", size.processes_per_node, 1 if once else plan.processes_per_node)
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
        words, arguments = [[self.filled(word.text) for word in part] for part in (launch.words, launch.arguments)]
        ours = list(program.words)
        if launch.program == "script" and words:
            if program.kind == "command" and ours[:1] == [("python3",)]:
                ours = ours[1:]
            folder = self.path(self.script.job.workdir or self.script.request.get("chdir") or "")
            words[0] = words[0] if words[0].startswith("${") else os.path.normpath(os.path.join(folder, words[0]))
        elif launch.program == "command":
            words, arguments = [*words, *arguments], []
        yield _row("launcher", launch.launcher, self.plan.launcher)
        yield _row("program", _quoted(words), self.shown(ours))
        yield _row(
            "arguments", _quoted(arguments), self.shown([one for line in program.argument_lines for one in line])
        )

    def software(self, launch: OldLaunch) -> Iterator[ComparedValue]:
        for kind, key in (("source", "source"), ("module", "modules"), ("conda", "conda"), ("venv", "venv")):
            found = self.script.job.software.get(key, [])
            texts = [found] if isinstance(found, str) else found
            old = [self.path(text) if kind in {"source", "venv"} else self.filled(text) for text in texts]
            new = [self.plain(step.argument) for step in self.plan.prelude if step.kind == kind]
            if old or new:
                yield _row(kind, " ".join(old), " ".join(new))
        asked, container = launch.container or {}, self.plan.container
        if asked or container is not None:
            image = asked.get("image")
            local = image and asked["runtime"] != "pyxis" and "://" not in image
            yield _row("image", self.path(str(image)) if local else image, container.image if container else None)
        binds = [self.plain(bind) for bind in container.binds] if container is not None else []
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
        launchers = {name: "set by the launcher" for name in wanted if name in RENDEZVOUS}
        left_out = job.left_out | launchers | {name: NOT_NEEDED for name in wanted if name in DEBUGGING}
        for name, value in wanted.items():
            if name not in left_out:
                yield _row(name, self.filled(value.text), ours.get(name), "" if value.known else value.why)
        for name, reason in left_out.items():
            old = self.filled(wanted[name].text) if name in wanted else "set"
            yield ComparedValue(name, old, ours.get(name), "left out", reason)
        for name in job.secrets:
            yield _row(name, "(a secret)", "(a secret)" if name in plan.secrets else None)
        for name, prefix in job.prepend.items():
            yield _row(name, f"{self.filled(prefix)}:…", f"{ours[name]}:…" if name in ours else None)
        for variable in plan.variables:
            if variable.name not in {*wanted, *left_out, *job.prepend}:
                yield ComparedValue(variable.name, None, ours[variable.name], "added", str(variable.origin))


def _quoted(words: Sequence[str]) -> str:
    return " ".join(word if "${" in word else shlex.quote(word) for word in words)
