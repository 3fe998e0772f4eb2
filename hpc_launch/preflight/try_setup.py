"""Run the set-up steps of a job on this machine, in a subprocess with a time limit, and ask the resulting Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.python_command import WITHOUT_CURRENT_FOLDER
from hpc_launch.images.probe import MARK, probe_code
from hpc_launch.images.start_image import setting_lines, setup_lines
from hpc_launch.job.shell_text import plain, quote
from hpc_launch.plan.launch_plan import LaunchPlan, Prelude

TIMEOUT_S = 90.0
"""Loading modules and starting Python from a cold file system."""
LONGEST = 1 << 20
REPORT = "HPC-LAUNCH-SETUP "

# Environment Modules and Lmod both keep the names of the loaded modules in LOADEDMODULES, and have is-avail since 4.1
# and 6.0; an older `module load` exits with 0 for a module that does not exist.
_SETUP = """\
exec 3>&1 >&2
hl_report() { printf '%s%s\\n' HPC-LAUNCH-SETUP\\  "$*" >&3; }
hl_die() { hl_report "ended $*"; exit 0; }
hl_available() {
    local line
    hl_module is-avail "$1" && return
    while read -r line; do
        [[ $line != "$1" && $line != "$1"[/\\(]* ]] || return 0
    done < <(hl_module -t avail "$1" 2>&1)
    return 1
}
hl_load() {
    local code
    [[ $(declare -f module) != module* ]] || eval "hl_$(declare -f module)"
    module load "$1"
    code=$?
    declare -F hl_module >/dev/null || return "$code"
    case ":${LOADEDMODULES:-}:" in
        *":$1:"* | *":$1/"*) hl_report "module loaded $1" ;;
        *) if ! hl_available "$1"; then
            hl_report "module missing $1"
        elif [ "$code" -ne 0 ]; then
            hl_report "module fails $1"
        else
            hl_report "module loaded $1"
        fi ;;
    esac
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
    start = f"{WITHOUT_CURRENT_FOLDER}exec(sys.argv.pop(1))"
    probe = [plain(plan.python) or "python3", "-c", start, probe_code(), json.dumps(request)]
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
    for line in lines:
        if line.startswith(MARK):
            with suppress(ValueError):
                answer = json.loads(line.removeprefix(MARK))
                if isinstance(answer, dict):
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
