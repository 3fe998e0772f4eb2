"""Probe an image started as the job will start it: with its binds, variables and setup steps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from hpc_launch.images.probe import probe_image
from hpc_launch.images.runtimes.wrap_command import wrap_command
from hpc_launch.job.shell_text import Text, Var, plain, quote
from hpc_launch.plan.launch_plan import ContainerPlan, SiteStep, Variable


def probe_as_job(
    container: ContainerPlan,
    python: str,
    request: Mapping[str, Any],
    variables: Iterable[Variable],
    inside: Iterable[SiteStep],
) -> dict[str, Any]:
    """Probe the image in the job's setting. In the answer, `run_folder` is a stand-in. Raises as `probe_image`."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-check-") as folder:
        known = dict.fromkeys(("HPC_LAUNCH_RUN_DIR", "HPC_LAUNCH_ATTEMPT_DIR"), folder)
        environment = known_variables(variables, known)
        binds = tuple((text,) for bind in container.binds if (text := _filled(bind, known)) is not None)
        wrapper = wrap_command(replace(container, binds=binds, variables=tuple(environment)))
        before = [word for line in wrapper.before for text in line if (word := _filled(text, known)) is not None]
        environment |= {wrapper.prefix + name: environment[name] for name in wrapper.exports if name in environment}
        request = {**request, "writable": [folder, *request["writable"]]}
        answer = probe_image(before, python, request, environment, "".join(setup_lines(inside, known)))
        return {**answer, "run_folder": folder}


def known_variables(variables: Iterable[Variable], known: Mapping[str, str]) -> dict[str, str]:
    """The job's variables, as far as they are known before it runs."""
    result: dict[str, str] = {}
    for variable in variables:
        value = _filled(variable.value, known) if variable.value is not None else None
        if value is not None:
            old = result.get(variable.name) or os.environ.get(variable.name)
            result[variable.name] = f"{value}:{old}" if variable.before and old else value
    return result


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
