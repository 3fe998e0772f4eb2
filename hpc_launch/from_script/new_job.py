"""A job file from answers: what is asked, what is found out, and the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.from_script.convert import prepare_text
from hpc_launch.from_script.draft_job import job_name
from hpc_launch.from_script.training_source import TrainingSource
from hpc_launch.job.shell_text import visible
from hpc_launch.job.units import format_time, parse_time
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.site_tools.learning.profile_yaml import yaml_text
from hpc_launch.sites.profile import SiteProfile

Check = Callable[[str], object]


class Question(Struct, frozen=True):
    """One question: the key that answers it, its default, and what turns the answer into a value."""

    key: str
    text: str
    default: str | None
    check: Check = str
    choices: tuple[str, ...] = ()


def count(text: str) -> int:
    """A number of nodes or GPUs. Raises ValueError."""
    if not re.fullmatch(r"\d{1,6}", text):
        raise ValueError(f"`{text}` is not a number")
    return int(text)


def at_least_one(text: str) -> int:
    """A number from 1. Raises ValueError."""
    if count(text) < 1:
        raise ValueError("at least 1")
    return int(text)


def duration(text: str) -> str:
    """A time limit, as written. Raises ValueError."""
    parse_time(text)
    return text


def argument(text: str) -> str | int:
    """A value of the training's own option."""
    return int(text) if re.fullmatch(r"0|-?[1-9]\d{0,15}", text) else text.replace("${", "$${")


def questions(site: SiteProfile, training: TrainingSource, account: str | None) -> list[Question]:
    """What only the user knows, for this site and training."""
    result = []
    queues = list(site.queues)
    queue_name = site.default_queue or (queues[0] if queues else "")
    if len(queues) > 1:
        result.append(Question("queue", "queue", queue_name, str, tuple(queues)))
    if site.account.required and account is None:
        result.append(Question("account", f"account{_how(site.account.find)}", None))
    result.append(Question("nodes", "number of nodes", "1", at_least_one))
    queue = site.queues.get(queue_name)
    node = site.node_classes.get(queue.node_class) if queue is not None else None
    if node is not None and node.gpus:
        result.append(Question("gpus_per_node", "GPUs per node", str(node.gpus), count))
    if site.scheduler.type == "slurm":
        limit = format_time(queue.default_time) if queue is not None and queue.default_time else "01:00:00"
        result.append(Question("time", "time limit", limit, duration))
    for option in training.options:
        if option.required and not option.positional:
            about = f" ({option.help})" if option.help else ""
            result.append(Question(f"args.{option.name}", f"--{option.name}{about}", None, argument))
    return result


def _how(find: str) -> str:
    return f" (find it with: {find})" if find else ""


def new_job_text(
    training: TrainingSource,
    script: str,
    site: str | None,
    answers: Mapping[str, Any],
    environment: Mapping[str, str],
) -> str:
    """The job file. `answers` are nested as in a job file; `environment` is that of this shell."""
    chosen: Any = answers.get("launcher", training.launcher)
    data: dict[str, Any] = {"name": job_name(Path(script).stem)}
    notes: dict[tuple[str, ...], str] = {}
    if site is not None:
        data["site"] = site
    for key in ("queue", "account", "nodes", "gpus_per_node", "time"):
        if key in answers:
            data[key] = answers[key]
    if chosen != "torchrun":
        data["launcher"] = chosen
        if "launcher" not in answers:
            notes["launcher",] = (
                f"{script} imports {training.framework}" if training.framework else f"{script} starts one process"
            )
    if not answers.keys() & {"module", "command"}:
        data["script"] = script
    software = {
        "conda": environment.get("CONDA_DEFAULT_ENV") if environment.get("CONDA_PREFIX") else None,
        "venv": environment.get("VIRTUAL_ENV"),
    }
    found = {key: value for key, value in software.items() if value and value != "base"}
    if found:
        data["environment"] = found
        notes["environment",] = "active in the shell that ran `hpc-launch init`"
    for key, value in answers.items():
        data[key] = {**data[key], **value} if isinstance(data.get(key), dict) and isinstance(value, dict) else value
    head = ["Written by `hpc-launch init`. All keys: `docs/job-file.md`; `hpc-launch validate` checks the file."]
    return yaml_text(data, notes, head) + _other_options(training, data.get("args"), script)


def _other_options(training: TrainingSource, given: Any, script: str) -> str:
    """The training's options that the job leaves at their defaults, as comments."""
    known = given if isinstance(given, Mapping) else {}
    lines = [f"# Other options of {visible(script)}, with their defaults; add those to change to `args:`."]
    for option in training.options:
        if option.name not in known and not option.required:
            about = f"  # {visible(option.help)}" if option.help else ""
            lines.append(f"#   {visible(option.name)}: {visible(option.default or 'unset')}{about}"[:120])
    positional = [option.name for option in training.options if option.positional and option.required]
    if positional:
        lines.append(f"# It also takes {visible(', '.join(positional))} as words: write `args:` as a list for them.")
    return "\n".join(lines) + "\n" if len(lines) > 1 else ""


def checked(text: str, output: Path, site: str | None) -> PreparedJob:
    """Plan the job as `validate` does. Raises Refused with what is wrong."""
    return prepare_text(text, output, site)
