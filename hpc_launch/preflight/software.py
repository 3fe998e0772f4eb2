"""The job's software, as far as the login node can tell: modules, and the script's imports in the environment or image.

Nothing of the user's is imported here. The nodes may have other files than this machine: the node check asks them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.images.probe import probe_answer, probe_command, setting_lines, setup_lines
from hpc_launch.images.training_source import needed_modules
from hpc_launch.job.job_file import JobSource
from hpc_launch.job.shell_text import plain, quote
from hpc_launch.job.units import counted
from hpc_launch.plan.launch_plan import LaunchPlan, Prelude
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.preflight.short_run import Level
from hpc_launch.prepare.prepare import PreparedJob

TIMEOUT_S = 90.0
"""Loading modules and starting Python from a cold file system."""
LONGEST = 1 << 20
REPORT = "HPC-LAUNCH-SETUP "

# Environment Modules and Lmod both keep the names of the loaded modules in LOADEDMODULES, and print what is available
# one to a line; an older `module load` exits with 0 for a module that does not exist.
_SETUP = """\
exec 3>&1 >&2
hl_report() { printf '%s%s\\n' HPC-LAUNCH-SETUP\\  "$*" >&3; }
hl_die() { hl_report "ended $*"; exit 0; }
hl_load() {
    local code line
    module load "$1"
    code=$?
    declare -F module >/dev/null || return "$code"
    case ":${LOADEDMODULES:-}:" in
        *":$1:"* | *":$1/"*) hl_report "module loaded $1"; return "$code" ;;
    esac
    while read -r line; do
        [[ $line == "$1" || $line == "$1"[/\\(]* ]] || continue
        [ "$code" -ne 0 ] || hl_report "module loaded $1"
        return "$code"
    done < <(module -t avail "$1" 2>&1)
    hl_report "module missing $1"
    return "$code"
}
"""


class SetupResult(Struct, frozen=True):
    """What the subprocess reported."""

    reports: tuple[str, ...]
    answer: dict[str, Any] | None
    """The answer of probe_script.py; None if it did not get so far."""
    error: str
    """Why it did not."""


def try_setup(plan: LaunchPlan, names: Sequence[str], folder: str, *, limit_s: float = TIMEOUT_S) -> SetupResult:
    """Run the job's set-up and the probe in a session of their own, which is killed at the end."""
    program = plan.program.words[0] if plan.program.kind == "command" else None
    request = {"imports": list(names), "folders": [folder], "program": plain(program) if program is not None else None}
    probe = probe_command(plain(plan.python) or "python3", request)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-doctor-") as scratch:
        known = dict.fromkeys(("HPC_LAUNCH_RUN_DIR", "HPC_LAUNCH_ATTEMPT_DIR"), scratch)
        lines = [f"cd -- {quote(plan.workdir)} || exit\n", *setup_lines(plan.around.steps, known)]
        lines += [_prelude_line(step) for step in plan.prelude]
        for variable in plan.variables:
            lines += setting_lines(variable, known)
        script = f'{_SETUP}{"".join(lines)}exec "$@" >&3\n'
        shell = ["bash", *(["-l"] if plan.around.login_shell else []), "-c", script, "bash"]
        out, errors = Path(scratch, "out"), Path(scratch, "errors")
        try:
            status = _wait([*shell, *probe], out, errors, limit_s)
        except OSError as error:
            return SetupResult((), None, f"cannot run bash: {error.strerror}")
        return _result(status, _read(out), _read(errors), limit_s)


def _wait(command: Sequence[str], out: Path, errors: Path, limit_s: float) -> int | None:
    """The exit code; None if it took too long. Files, because what the set-up leaves running would keep a pipe open."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with out.open("wb") as stream, errors.open("wb") as messages:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=messages, env=environment, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(LONGEST).decode("utf-8", "replace")


def _result(status: int | None, output: str, errors: str, limit_s: float) -> SetupResult:
    lines = output.splitlines()
    reports = tuple(line.removeprefix(REPORT) for line in lines if line.startswith(REPORT))
    if (answer := probe_answer(output)) is not None:
        return SetupResult(reports, answer, "")
    if status is None:
        return SetupResult(reports, None, f"no answer within {limit_s:g} s")
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "no message")
    ended = next((one.removeprefix("ended ") for one in reports if one.startswith("ended ")), f"exit code {status}")
    return SetupResult(reports, None, f"the set-up of the job does not work here: {ended}: {last[:200]}")


def _prelude_line(step: Prelude) -> str:
    argument = plain(step.argument)
    shown = quote(step.argument)
    if argument is None:
        return f"hl_die {quote(f'{step.kind}: known only inside a job')}\n"
    match step.kind:
        case "module":
            return f"hl_load {shown} || hl_die {quote(f'module load {argument} failed')}\n"
        case "conda":
            activate = f"conda activate {shown} || hl_die {quote(f'conda activate {argument}')}"
            return f'eval "$(conda shell.bash hook)" && {activate}\n'
        case "venv":
            return f". {shown}/bin/activate || hl_die {quote(f'activate {argument}')}\n"
        case _:
            return f". {shown} || hl_die {quote(f'source {argument}')}\n"


OF_THE_NODE = ("/usr/", "/bin/")
"""Each node has its own Python there."""


def software_levels(
    prepared: PreparedJob, job: JobSource, site: str | None, sets: Sequence[str], arch: str | None
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
    asked = prepared.loaded.resolved.job
    path = ValueFiller(prepared.loaded.resolved, []).file(asked.script, ("script",)) if asked.script else None
    readable = path is None or path.endswith(".py")
    torch = descriptor(plan.launcher).in_image
    names, unread = needed_modules(path if readable else None, asked.module, torch=torch)
    unread = unread if readable else f"{path} is not a .py file"
    result = try_setup(plan, names, os.path.dirname(path) if path is not None else plan.workdir)
    if modules:
        yield _modules_level(modules, result)
    yield _imports_level(plan, names, unread, result)


def _image_level(job: JobSource, site: str | None, sets: Sequence[str]) -> Level:
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
    imported = f"finds the {counted(len(names), 'module')} that the training imports first"
    found = imported if names else "starts; the job names nothing to import"
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
