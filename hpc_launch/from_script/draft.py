"""The job file of an old script, and the part that describes its cluster: for the site profile, not for the job.

The job file of a training without a script: what is asked, and the text.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.from_script.old_job import OldLaunch, OldScript, launch_size
from hpc_launch.from_script.variables import RENDEZVOUS
from hpc_launch.images.training_source import TrainingSource
from hpc_launch.job.document import written_arguments, yaml_text
from hpc_launch.job.shell_text import visible
from hpc_launch.job.units import format_time, parse_time
from hpc_launch.sites.profile import SiteProfile


class SitePart(Struct, frozen=True, kw_only=True):
    """What belongs to the site, so that the job does not say it."""

    reference: str | None
    """`site:` of the job file."""
    text: str | None = None
    """The profile that was drafted, where no site is known."""
    queue: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    runtime: str | None = None
    sbatch: Mapping[str, str | bool] = {}


def own_profile(script: OldScript, name: str, reference: str) -> SitePart:
    """A profile of a cluster that has exactly what the script requests."""
    request, size, job = script.request, script.size, script.job
    gpus = size.gpus_per_node if size is not None else request.gpus_per_node
    asked = size.cpus_per_node if size is not None else None
    cpus = asked or max(size.processes_per_node if size is not None else 1, 1)
    container = script.launch.container if script.launch is not None else None
    runtime = container["runtime"] if container else None
    pulls = container is not None and "://" in container["image"] and runtime != "pyxis"
    notes: dict[tuple[str, ...], str] = {}
    if asked is None:
        notes["node_classes", "node", "cpus"] = "a guess: the script requests none"
    notes["node_classes", "node", "gpus"] = "as many as the script requests; correct it if a node has more"
    node: dict[str, Any] = {"cpus": cpus}
    if gpus:
        node |= {"gpus": gpus, "gpu_request": request.gpu_request, "gpu_type": request.gpu_type}
    exclusive = request.get("exclusive") is not None
    queue = {"node_class": "node", "memory": "omit", **_queue_options(script), "exclusive": exclusive}
    data: dict[str, Any] = {
        "name": name,
        "title": f"drafted from {script.name}",
        "status": "draft",
        "scheduler": "slurm",
        "node_classes": {"node": _given(node)},
        "queues": {(request.get("partition") or "default").partition(",")[0]: _given(queue)},
        "network": {"master": {"suffix": job.suffix}} if job.suffix else None,
        "containers": _given({"runtime": runtime, "pull_on_nodes": pulls}),
    }
    head = [
        f"Drafted by `hpc-launch init --from {visible(script.name)}` from that script alone.",
        "On the cluster, `hpc-launch sites learn` drafts a better one from what Slurm reports.",
    ]
    text = yaml_text(_given(data), notes, head)
    return SitePart(reference=reference, text=text, gpus=gpus, cpus=cpus, runtime=runtime)


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    """What is not empty."""
    return {key: value for key, value in data.items() if value}


def _queue_options(script: OldScript) -> dict[str, str]:
    return {key: text for key in ("partition", "qos") if (text := script.request.get(key))}


def known_site(script: OldScript, profile: SiteProfile, reference: str | None) -> SitePart:
    """The queue of a known site for the script's partition."""
    asked = _queue_options(script)
    partition, qos = asked.get("partition"), asked.get("qos")
    fitting = (name for name, one in profile.queues.items() if one.partition == partition and qos in {None, one.qos})
    queue = next(fitting, None) if asked else None
    extra: dict[str, str | bool] = {} if queue else {**asked}
    chosen = profile.queue_of(queue)
    exclusive = script.request.get("exclusive") is not None
    if exclusive and chosen in profile.queues and not profile.queues[chosen].whole_nodes:
        extra["exclusive"] = True
    return SitePart(
        reference=reference,
        queue=queue if queue != profile.default_queue else None,
        runtime=profile.containers.runtime,
        sbatch=extra,
    )


def job_text(script: OldScript, site: SitePart, prefix: str) -> str:
    """The job file, with what was not understood as comments. `prefix`: from its folder to that of the old job."""
    head = [f"Written by `hpc-launch init --from {script.name}`.", *(f"Note: {one}." for one in script.remarks)]
    keys = {key: value for key, value in _Draft(script, site, prefix).keys().items() if value not in (None, "", [], {})}
    lines = [yaml_text(keys, {("memory",): "per node"}, [visible(line) for line in head]).rstrip("\n")]
    if doubts := script.of("not_understood"):
        lines += ["", f"# Not understood in {visible(script.name)}; decide about these lines:"]
        for account in doubts:
            text = visible(account.text.strip())
            lines.append(f"#   {account.line}: {text if len(text) <= 100 else text[:99] + '…'}")
            lines.append(f"#      {visible(account.why)}")
    return "\n".join(lines) + "\n"


_OF_ROLE = frozenset("processes_per_node launcher script module command args env container".split())


def job_name(text: str) -> str:
    """A name that a run can have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "train"


class _Draft:
    """The keys of the job file, in the order of the reference page."""

    def __init__(self, script: OldScript, site: SitePart, prefix: str) -> None:
        self.script, self.site, self.prefix = script, site, prefix

    def keys(self) -> dict[str, Any]:
        """All keys; what is empty stays at its default."""
        request, launch, job, site = self.script.request, self.script.launch, self.script.job, self.site
        container = dict(launch.container or {}) if launch is not None else {}
        workdir = job.workdir or request.get("chdir")
        keys = {
            "name": job_name(request.get("job-name") or os.path.splitext(self.script.name)[0]),
            "site": site.reference,
            "queue": site.queue,
            "account": request.get("account"),
            "constraint": request.get("constraint"),
            **self._launch(),
            "env": self._variables(launch),
            "environment": self._software(launch),
            "secrets": job.secrets,
            "container": self._container(container) if container else None,
            "workdir": self._from_start(workdir) if workdir and workdir != self.script.folder else self.prefix,
            "checkpoint": {"signal_before": f"{request.signal_before}s"} if request.signal_before else None,
            "exclude": [request.get("exclude")] if request.get("exclude") else None,
            "sbatch": {**request.passed_on, **site.sbatch},
        }
        if not self.script.roles:
            return keys
        roles = self.script.roles.values()
        shared = {name: one for name, one in job.env.items() if all(role.job_env.get(name) == one for role in roles)}
        found = {role.role: _given(self._role(role, shared)) for role in roles}
        variables = {name: value.text for name, (value, _) in shared.items()}
        return {key: value for key, value in keys.items() if key not in _OF_ROLE} | {"env": variables, "roles": found}

    def _role(self, launch: OldLaunch, shared: Mapping[str, Any]) -> dict[str, Any]:
        """One of several programs. `shared`: variables that all of them have."""
        env = {name: value for name, value in launch.job_env.items() if name not in shared}
        job = dataclasses.replace(self.script.job, env=env, workdir=launch.workdir)
        size, request = launch_size(launch, self.script.request), self.script.request
        own = replace(self.script, launch=launch, job=job, size=size, roles={})
        keys = {key: value for key, value in _Draft(own, self.site, self.prefix).keys().items() if key in _OF_ROLE}
        if launch.launcher in {"ray", "none"}:
            keys.pop("processes_per_node")
        return {
            "nodes": None if launch.beside or launch.nodes == 1 else launch.nodes or "rest",
            "beside": launch.beside,
            "gpus": launch.gpus_per_node if launch.gpus_per_node != request.gpus_per_node else None,
            **(keys if launch.launcher != "none" else {**keys, "launcher": None}),
            "ends": "job" if launch.role == "train" else None,
        }

    def _launch(self) -> dict[str, Any]:
        """Its size, launcher and program."""
        request, launch, size, site = self.script.request, self.script.launch, self.script.size, self.site
        if launch is None or size is None:
            return {}
        usual, restarts = None if launch.launcher == "torchrun" else launch.launcher, launch.max_restarts
        time = request.get("time") or ""
        own = launch.launcher != "none" and size.processes_per_node != max(size.gpus_per_node, 1)
        return {
            "nodes": size.nodes if size.nodes > 1 else None,
            "gpus_per_node": size.gpus_per_node if size.gpus_per_node != site.gpus else None,
            "processes_per_node": size.processes_per_node if own else None,
            "cpus_per_node": size.cpus_per_node if size.cpus_per_node != site.cpus else None,
            "memory": request.memory,
            "time": None if time.upper() in {"UNLIMITED", "INFINITE", "-1"} else time,
            "launcher": {"name": launch.launcher, "max_restarts": restarts} if restarts else usual,
            **self._program(launch),
        }

    def _program(self, launch: OldLaunch) -> dict[str, Any]:
        words, rest = ([word.text for word in part] for part in (launch.words, launch.arguments))
        arguments = written_arguments(rest)
        first = words[0] if words else ""
        if launch.program == "command":
            return {"command": [*words, *rest]}
        in_image = launch.container is not None and os.path.isabs(first)
        if launch.program == "script" and (in_image or "${shell." in first or "${job." in first):
            return {"command": ["python3", *words], "args": arguments}
        return {launch.program: self._here(first) if launch.program == "script" and first else first, "args": arguments}

    def _here(self, path: str) -> str:
        """A relative path of the old job, from the job file's folder."""
        return self._from_start(path if _is_rooted(path) else os.path.join(self.script.job.workdir or "", path))

    def _from_start(self, path: str) -> str:
        """A path that is relative to where the old job started."""
        path = path.removeprefix(f"{self.script.folder}/")
        return _static(os.path.normpath(path if _is_rooted(path) else os.path.join(self.prefix, path)))

    def _variables(self, launch: OldLaunch | None) -> dict[str, Any]:
        variables = {name: value.text for name, (value, _) in self.script.job.env.items()}
        for name, value in launch.env.items() if launch is not None else ():
            if value.known and name not in RENDEZVOUS:
                variables[name] = value.text
        return variables

    def _software(self, launch: OldLaunch | None) -> dict[str, Any]:
        found = self.script.job.software
        software = {
            "source": [self._from_start(path) for path in found.get("source", [])],
            "modules": found.get("modules"),
            "conda": _static(found.get("conda", "")),
            "venv": self._from_start(found["venv"]) if "venv" in found else None,
            "python": _static(launch.python or "") if launch is not None else None,
        }
        return _given(software)

    def _container(self, data: dict[str, Any]) -> dict[str, Any] | str:
        local = data["runtime"] != "pyxis" and "://" not in data["image"]
        data["image"] = _static(self._here(data["image"]) if local else data["image"])
        if self.site.runtime == data["runtime"]:
            del data["runtime"]
        if "binds" in data:
            data["binds"] = [_static(bind) for bind in data["binds"]]
        return data if len(data) > 1 else str(data["image"])


def _is_rooted(path: str) -> bool:
    """Whether a path does not depend on a working directory."""
    return path.startswith(("/", "~", "${"))


def _static(text: str) -> str:
    """Paths are known before the job starts: variables come from the submitting shell."""
    return text.replace("${shell.", "${env.")


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
