"""Convert a script: read all of it, draft the job file and the site part, plan the result, compare both launches."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Place
from hpc_launch.base.patterns import SECRET_NAME
from hpc_launch.from_script.draft import SitePart, job_name, job_text, known_site, own_profile
from hpc_launch.from_script.old_job import LaunchSize, OldJob, OldLaunch, OldScript, choose, find_roles, launch_size
from hpc_launch.from_script.script_text import NOT_KNOWN, Ledger, Value, parse, read_script, take_out
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.statements import Reader
from hpc_launch.from_script.variables import RENDEZVOUS, Variables
from hpc_launch.job.shell_text import RUNTIME, Text, UnknownName, interpolate
from hpc_launch.job.units import format_time, parse_time
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launch_step import CODE
from hpc_launch.prepare.prepare import PreparedJob, detect_site, prepare_text
from hpc_launch.sites.read_profile import load_site_profile
from hpc_launch.sites.search_path import is_file_name

_PLACEHOLDER = re.compile(r"<[A-Z][A-Z0-9]*(?:[_-][A-Z0-9]+)+>")
"""`<YOUR_ACCOUNT>` of an example, which bash would take for redirections."""


class Conversion(Struct, frozen=True):
    """A script as a job file. `site_file` is the text of its own site profile; None if its site is known."""

    script: OldScript
    output: Path
    job_file: str
    site_path: Path
    site_file: str | None

    @property
    def files(self) -> dict[Path, str]:
        """The files to write."""
        own = {} if self.site_file is None else {self.site_path: self.site_file}
        return {self.output: self.job_file, **own}

    def prepare(self) -> PreparedJob:
        """The job as hpc-launch would submit it. Raises Refused with what has to be corrected first."""
        return prepare_text(self.job_file, self.output, site_text=self.site_file, anywhere=True)


def convert(
    path: Path, *, output: Path | None, site: str | None, environment: Mapping[str, str], folder: str
) -> Conversion:
    """Convert the script that is submitted in `folder`. Raises UsageError if it is not a shell script, and Refused for
    an invalid site profile.

    Args: path: the script. output: the job file; by default beside the shell's folder. site: the site profile; detected
    if None. environment: of this shell.
    """
    script = understand(read_script(path), os.path.basename(path), folder, environment)
    output = output if output is not None else Path(f"{job_name(path.stem)}.yaml")
    site_path = output.with_name(f"{output.stem}.site.yaml")
    part = _known(script, site, environment.get("HPC_LAUNCH_SITE"), output)
    if part is None:
        part = own_profile(script, job_name(output.stem).lower(), site_path.name)
    prefix = os.path.relpath(folder, output.parent.resolve())
    text = job_text(script, part, "" if prefix == "." else prefix)
    return Conversion(script, output, text, site_path, part.text)


def _known(script: OldScript, site: str | None, usual: str | None, output: Path) -> SitePart | None:
    """The part for a named, usual or detected Slurm site; None if there is none."""
    reference, place, name = None, Place("$HPC_LAUNCH_SITE"), usual
    if site is not None:
        reference, place, name = site, Place("--site"), site
        if is_file_name(site):
            reference = os.path.relpath(Path(site).resolve(), output.parent.resolve())
            reference = reference if reference.startswith("..") else f"./{reference}"
    elif not usual:
        found = detect_site(output.parent).chosen
        place, name = Place("the detected site"), found.name if found is not None and found.name != "local" else None
    if name is None:
        return None
    profile = load_site_profile(name, place, output.parent)
    return known_site(script, profile, reference) if site or usual or profile.scheduler.type == "slurm" else None


def understand(script: str, name: str, folder: str, environment: Mapping[str, str]) -> OldScript:
    """Read the text of a script that is submitted in `folder`. Raises UsageError for one that cannot be read."""
    lines = script.split("\n")
    ledger = Ledger(lines)
    request = Request(lines, ledger)
    variables = Variables({"SLURM_JOB_NAME": name, **request.constants()}, environment, folder)  # sbatch(1), --job-name
    variables.assign("PWD", Value(os.path.normpath(os.path.join(folder, request.get("chdir") or ""))))
    reader = Reader(request, variables, ledger)
    try:
        reader.script(parse(script))
    except RecursionError:
        raise UsageError(f"{name} nests commands deeper than can be read", "name an sbatch script") from None
    job = reader.job
    roles = find_roles(job, request, ledger)
    launch = roles["train"] if roles else choose(job, request, ledger)
    for one in roles.values() or filter(None, [launch]):
        _keep_secrets(job, one, ledger)
    if launch is not None:
        job.env, job.workdir = launch.job_env, launch.workdir
    for number, line in enumerate(lines, 1):
        if found := _PLACEHOLDER.search(line):
            ledger.not_understood([number], f"a placeholder to fill in: {found[0]}")
        if "\ufffd" in line and (line.startswith("#SBATCH") or not line.lstrip().startswith("#")):
            ledger.not_understood([number], "bytes that are not UTF-8: write the value")
    size = launch_size(launch, request) if launch is not None else None
    if roles:
        needed = sum(one.nodes or 1 for one in roles.values() if not one.beside)
        size = LaunchSize(max(request.nodes, needed), 1, 1, request.gpus_per_node, request.cpus_per_node)
    remarks = _remarks(launch, size) if not roles else [_NO_GATES] if len(roles) > 1 else []
    if roles and size is not None and size.nodes > request.nodes:
        remarks.append(f"the script has no number of nodes: {size.nodes} taken, the fewest that its roles need")
    return OldScript(name, folder, request, job, launch, size, roles, ledger.accounts(), reader.followed, remarks)


_NO_GATES = "no role waits for another: `ready:` and `after:` do that, and $ROLE_PORT is a port that nobody else has"


def _remarks(launch: OldLaunch | None, size: LaunchSize | None) -> list[str]:
    """What is odd about the old launch as a whole."""
    if launch is None or size is None:
        return ["no line that starts a training was found"]
    if size.starts_per_node > 1 and launch.processes_per_node is not None:
        times = f"{size.starts_per_node} times on each node"
        return [f"the old script starts {launch.launcher} {times}; once is right"]
    if launch.launcher == "torchrun" and not launch.by_srun and size.nodes > 1:
        return [f"the old script starts {launch.launcher} on the first of {size.nodes} nodes only"]
    return []


def _keep_secrets(job: OldJob, launch: OldLaunch, ledger: Ledger) -> None:
    """Values of secrets are copied from nowhere: not from the launch line, nor from other variables."""

    def kept(text: str, line: int) -> str:
        hidden, names = take_out(text)
        job.secrets += [name for name in names if name not in job.secrets]
        if hidden != text:
            ledger.not_understood([line], "a secret, which is not copied: `secrets:` and `${shell.NAME}`")
        return hidden

    for name in filter(SECRET_NAME.search, [*launch.env]):
        del launch.env[name]
        job.secrets += [name] if name not in job.secrets else []
        ledger.taken(launch.lines, "secrets", why=f"the value of {name} is not copied: set it in your shell")
    launch.words = [word.with_text(kept(word.text, word.line)) for word in launch.words]
    launch.arguments = [word.with_text(kept(word.text, word.line)) for word in launch.arguments]
    line = launch.lines[0]
    launch.env = {name: replace(one, text=kept(one.text, line)) for name, one in launch.env.items()}
    env = launch.job_env.items()
    launch.job_env = {name: (replace(one, text=kept(one.text, at)), at) for name, (one, at) in env}


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
    compared = _Comparison(script, prepared.plan, prepared)
    if script.roles and script.size is not None:
        rows = [_row("nodes", script.size.nodes, prepared.plan.nodes)]
        for role in prepared.plan.roles:
            own = _Comparison(script, role.plan, prepared).started(script.roles[role.name])
            rows += [replace(row, what=f"{role.name}: {row.what}") for row in own]
        return rows
    if script.launch is None or script.size is None:
        return [_row("program", None, compared.shown(prepared.plan.program.words))]
    return [*compared.size(script.launch, script.size), *compared.started(script.launch)]


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

    def __init__(self, script: OldScript, plan: LaunchPlan, prepared: PreparedJob) -> None:
        self.script = script
        self.plan = plan
        self.names = prepared.loaded.resolved.names

    def started(self, launch: OldLaunch) -> Iterator[ComparedValue]:
        """Its program, software and environment."""
        yield from self.program(launch)
        yield from self.software(launch)
        yield from self.environment(launch)

    def filled(self, value: str) -> str:
        """A value of the old script with the names filled that both know."""
        value = re.sub(r"\$\{role\.(\w+)\.host\}", lambda name: f"${{shell.ROLE_{name[1].upper()}_HOST}}", value)
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

    def size(self, launch: OldLaunch, size: LaunchSize) -> Iterator[ComparedValue]:
        plan, request = self.plan, self.script.request
        once = plan.launcher == "none"
        yield _row("nodes", size.nodes, plan.nodes)
        total = size.processes_per_node * (1 if launch.launcher == "none" else size.nodes)
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
        asked = [name for name in ("partition", "qos", "account", "constraint") if request.get(name)]
        yield from (_row(name, request.get(name), options.get(name)) for name in asked)

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
        given = [one for line in program.argument_lines for one in line]
        yield _row("arguments", _quoted(arguments), self.shown(given))

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

    def environment(self, launch: OldLaunch) -> Iterator[ComparedValue]:
        job, plan = self.script.job, self.plan
        around = [step.variable for step in plan.around.steps if step.variable is not None]
        ours = {
            variable.name: None if variable.value is None else self.plain(variable.value)
            for variable in (*plan.variables, *around)
        }
        wanted = {name: value for name, (value, _) in launch.job_env.items()} | launch.env
        left_out = job.left_out | {name: "set by the launcher" for name in wanted if name in RENDEZVOUS}
        for name, value in wanted.items():
            if name not in left_out:
                yield _row(name, self.filled(value.text), ours.get(name), "" if value.known else NOT_KNOWN)
        for name, reason in left_out.items():
            old = self.filled(wanted[name].text) if name in wanted else "set"
            yield ComparedValue(name, old, ours.get(name), "left out", reason)
        for name in job.secrets:
            yield _row(name, "(a secret)", "(a secret)" if name in plan.secrets else None)
        for variable in plan.variables:
            if variable.name not in {*wanted, *left_out}:
                yield ComparedValue(variable.name, None, ours[variable.name], "added", str(variable.origin))


def _quoted(words: Sequence[str]) -> str:
    return " ".join(word if "${" in word else shlex.quote(word) for word in words)
