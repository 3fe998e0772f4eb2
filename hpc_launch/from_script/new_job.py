"""A job file for a training: what is asked, and the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.from_script.draft import job_name
from hpc_launch.images.training_source import TrainingSource
from hpc_launch.job.document import yaml_text
from hpc_launch.job.units import format_time, parse_time
from hpc_launch.sites.profile import SiteProfile


class Question(Struct, frozen=True):
    """One question: the key that answers it, its default, and what turns the answer into a value."""

    key: str
    text: str
    default: str | None
    check: Callable[[str], object] = str
    choices: tuple[str, ...] = ()


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise ValueError(f"`{text}` is not a number")
    return int(text)


def _argument(text: str) -> str | int:
    return int(text) if re.fullmatch(r"0|-?[1-9]\d{0,15}", text) else text.replace("${", "$${")


def questions(site: SiteProfile, training: TrainingSource, account: str | None) -> list[Question]:
    """What only the user knows, for this site and training. Their checks raise ValueError."""
    result = []
    queues = tuple(site.queues)
    queue_name = site.default_queue or (queues[0] if queues else "")
    if len(queues) > 1:
        result.append(Question("queue", "queue", queue_name, str, queues))
    if site.account.required and account is None:
        how = f" (find it with: {site.account.find})" if site.account.find else ""
        result.append(Question("account", f"account{how}", None))
    result.append(Question("nodes", "number of nodes", "1", _count))
    queue = site.queues.get(queue_name)
    node = site.node_classes.get(queue.node_class) if queue is not None else None
    if node is not None and node.gpus:
        result.append(Question("gpus_per_node", "GPUs per node", str(node.gpus), _count))
    if site.scheduler.type == "slurm":
        limit = format_time(queue.default_time) if queue is not None and queue.default_time else "01:00:00"
        result.append(Question("time", "time limit", limit, lambda text: parse_time(text) and text))
    for name, help_text in training.required.items():
        about = f" ({help_text})" if help_text else ""
        result.append(Question(f"args.{name}", f"--{name}{about}", None, _argument))
    return result


def new_job_text(
    training: TrainingSource, script: str, site: str | None, answers: Mapping[str, Any], environment: Mapping[str, str]
) -> str:
    """The job file. `answers` are nested as in a job file; `environment` is that of this shell."""
    launcher = answers.get("launcher", training.launcher)
    conda = environment.get("CONDA_DEFAULT_ENV", "") if environment.get("CONDA_PREFIX") else ""
    software = {"conda": "" if conda == "base" else conda, "venv": environment.get("VIRTUAL_ENV")}
    data: dict[str, Any] = {
        "name": job_name(Path(script).stem),
        "site": site,
        **{key: answers.get(key) for key in ("queue", "account", "nodes", "gpus_per_node", "time")},
        "launcher": None if launcher == "torchrun" else launcher,
        "script": None if answers.keys() & {"module", "command"} else script,
        "environment": {key: value for key, value in software.items() if value},
    }
    data = {key: value for key, value in data.items() if value is not None and value != {}}
    for key, value in answers.items():
        data[key] = {**data[key], **value} if isinstance(data.get(key), dict) and isinstance(value, dict) else value
    head = ["Written by `hpc-launch init`. All keys: `hpc-launch docs job file`; check it with `hpc-launch validate`."]
    return yaml_text(data, {}, head)
