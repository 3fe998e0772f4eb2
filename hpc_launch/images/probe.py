"""Find Apptainer or Singularity on this machine, and inspect an image by running `probe_script.py` inside it.

The image is started as the job will start it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER
from hpc_launch.base.errors import Refused, UserError
from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.base.run_program import run_program
from hpc_launch.job.shell_text import Text, Var, plain, quote, visible
from hpc_launch.plan.launch_plan import LaunchPlan, SiteStep, Variable
from hpc_launch.runtimes.container_runtimes import ContainerPlan, wrap_command

PROGRAMS = ("apptainer", "singularity")

TAIL = 12
"""Number of output lines that the error of a failed program includes."""


class Tool(Struct, frozen=True):
    """A program that builds and pulls images. `name` comes from its --version output, because many sites link one name
    to the other program."""

    path: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_tool(wanted: str | None = None, purpose: str = "build images") -> Tool:
    """Find the program; `wanted` is tried first. Raises Refused with HL472 if there is none."""
    names = [wanted, *PROGRAMS] if wanted in PROGRAMS else PROGRAMS
    for name in dict.fromkeys(names):
        path = shutil.which(name or "")
        if path is None:
            continue
        with suppress(OSError, subprocess.SubprocessError):
            # `apptainer version 1.4.5`, `singularity-ce version 4.3.1`, `singularity version 3.8.7`.
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
            match = re.match(r"(\S+) version (\S+)", done.stdout)
            if match:
                return Tool(path, match[1], match[2])
    hint = "load its module, e.g. `module load apptainer`; some sites provide it only on compute nodes"
    message = f"cannot {purpose}: neither apptainer nor singularity found"
    raise Refused([Finding(FindingCode.NO_APPTAINER, message, hint=hint)])


def run(command: Sequence[str]) -> None:
    """Run the program, echoing its output to stderr. Raises UserError with the last lines of output if it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines = [*lines[-TAIL:], line.rstrip()]
            print(visible(line.rstrip()), file=sys.stderr, flush=True)
    if process.returncode != 0:
        output = "\n".join(line for line in lines if line)
        program = f"{os.path.basename(command[0])} {command[1]}"
        raise UserError(f"{program} failed with exit code {process.returncode}:\n{output}")


MARK = "HPC-LAUNCH-PROBE "
TIMEOUT = 300.0
"""Seconds per probe; starting a large image from a cold file system and importing torch takes about a minute."""


def probe_image(
    before: Sequence[str],
    python: str,
    request: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    prelude: str = "",
) -> dict[str, Any]:
    """Run the probe script and return its answer. `request` is its argument.

    `before`: the command prefix that starts the container. `environment`: additional variables. `prelude`: lines of
    bash to run first inside. Raises UserError if the image does not start or has no such Python.
    """
    setup = ["bash", "-c", f'{prelude}exec "$@"', "bash"] if prelude else []
    command = [*before, *setup, *probe_command(python, request)]
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    try:
        done = run_program(command, TIMEOUT, environment=variables)
    except OSError as error:
        raise UserError(f"cannot run {before[0]}: {error.strerror}", "load its module first") from error
    except subprocess.TimeoutExpired as error:
        message = f"the image did not respond within {TIMEOUT:g} s"
        raise UserError(message, "try again on a less busy machine") from error
    if (answer := probe_answer(done.stdout)) is not None:
        return answer
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith(("INFO:", "WARNING:"))]
    raise UserError(lines[-1] if lines else f"exit code {done.returncode}, no output")


def probe_command(python: str, request: Mapping[str, object]) -> list[str]:
    """Run the probe script with a Python. It often starts in the folder of the job, where nothing must be imported."""
    code = Path(__file__).with_name("probe_script.py").read_text(encoding="utf-8")
    return [python, "-c", f"{WITHOUT_CURRENT_FOLDER}exec(sys.argv.pop(1))", code, json.dumps(request)]


def probe_answer(output: str) -> dict[str, Any] | None:
    """What the probe script printed, among other text; None where it did not get so far."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            with suppress(ValueError):
                answer = json.loads(line.removeprefix(MARK))
                if isinstance(answer, dict):
                    return answer
    return None


def versions_in(tool: Tool | None, image: Path) -> dict[str, str]:
    """Versions of Python, PyTorch and related packages in an image; empty if it cannot be run here."""
    with suppress(UserError):
        tool = tool or find_tool(purpose="inspect it")
        before = [tool.path, "exec", "--no-home", str(image)]
        answer = probe_image(before, "python3", {})
        platform = {key: value for key in ("cuda", "hip") if (value := answer["torch"].get(key))}
        return {"python": answer["python"], **answer["packages"], **platform}
    return {}


def probe_as_job(container: ContainerPlan, job: LaunchPlan | None, request: Mapping[str, Any]) -> dict[str, Any]:
    """Probe the image in the job's setting. In the answer, `run_folder` is a stand-in. Raises as `probe_image`."""
    python, variables = (plain(job.python) or "python3", job.variables) if job is not None else ("python3", ())
    inside = job.around.inside if job is not None else ()
    with tempfile.TemporaryDirectory(prefix="hpc-launch-check-") as folder:
        known = dict.fromkeys(("HPC_LAUNCH_RUN_DIR", "HPC_LAUNCH_ATTEMPT_DIR"), folder)
        environment: dict[str, str] = {}
        for variable in variables:
            value = _filled(variable.value, known) if variable.value is not None else None
            if value is not None:
                old = environment.get(variable.name) or os.environ.get(variable.name)
                environment[variable.name] = f"{value}:{old}" if variable.before and old else value
        binds = tuple((text,) for bind in container.binds if (text := _filled(bind, known)) is not None)
        wrapper = wrap_command(replace(container, binds=binds, variables=tuple(environment)))
        before = [word for line in wrapper.before for text in line if (word := _filled(text, known)) is not None]
        environment |= {wrapper.prefix + name: environment[name] for name in wrapper.exports if name in environment}
        request = {**request, "writable": [folder, *request["writable"]]}
        answer = probe_image(before, python, request, environment, "".join(setup_lines(inside, known)))
        return {**answer, "run_folder": folder}


def _filled(text: Text, known: Mapping[str, str]) -> str | None:
    return plain(tuple(known.get(part.name, part) if isinstance(part, Var) else part for part in text)) if text else ""


def setup_lines(steps: Iterable[SiteStep], known: Mapping[str, str]) -> Iterator[str]:
    """Setup steps as bash, as far as they are known before the job runs."""
    for step in steps:
        words = [word for text in step.words if (word := _filled(text, known)) is not None]
        if step.kind == "source" and words:
            yield f". {quote(words[0])} || exit\n"
        elif step.kind == "raw" and words:
            yield f"{words[0]}\n"
        elif step.kind == "command" and len(words) == len(step.words):
            yield f"{' '.join(map(quote, words))}{'' if step.may_fail else ' || exit'}\n"
        elif step.variable is not None:
            yield from setting_lines(step.variable, known)


def setting_lines(variable: Variable, known: Mapping[str, str]) -> Iterator[str]:
    """A variable as bash, if its value is known."""
    name = variable.name
    if variable.value is None:
        yield f"unset {name}\n"
    elif (value := _filled(variable.value, known)) is not None:
        more = f'"${{{name}:+:${name}}}"' if variable.before else ""
        yield f"export {name}={quote(value)}{more}\n"
