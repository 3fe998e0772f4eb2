"""The job file of an old script, as keys with the reason of each. Only values that differ from the defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hpc_launch.from_script import plain_commands
from hpc_launch.from_script.draft_site import SitePart
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.from_script.values import Word

NotePath = tuple[str, ...]
_OPTION = re.compile(r"--[A-Za-z][\w.-]*\Z")
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class JobDraft(Struct, frozen=True):
    """The keys of the job file, and the comment of some."""

    data: dict[str, Any]
    notes: dict[NotePath, str]


def job_name(text: str) -> str:
    """A name that a run can have."""
    return _UNSAFE_NAME.sub("-", text).strip("-._")[:64] or "train"


def draft_job(script: OldScript, site: SitePart, prefix: str) -> JobDraft:
    """The job file. `prefix`: from the job file's folder to the folder of the old job."""
    return _Draft(script, site, prefix).draft()


class _Draft:
    """Fills in the keys in the order of the reference page."""

    def __init__(self, script: OldScript, site: SitePart, prefix: str) -> None:
        self.script = script
        self.site = site
        self.prefix = prefix
        self.data: dict[str, Any] = {}
        self.notes: dict[NotePath, str] = {}

    def put(self, key: str, value: Any, note: str = "") -> None:
        """Set a key unless the value is empty."""
        if value is None or value in ("", [], {}):
            return
        self.data[key] = value
        if note:
            self.notes[key,] = note

    def draft(self) -> JobDraft:
        request, launch, size = self.script.request, self.script.launch, self.script.size
        self.put("name", job_name(request.name or os.path.splitext(self.script.name)[0]))
        self.put("site", self.site.reference)
        self.put("queue", self.site.queue, self.site.queue_note)
        self.put("account", request.account)
        self.put("constraint", request.constraint)
        if size is not None and launch is not None:
            self.put("nodes", size.nodes if size.nodes > 1 else None)
            self._gpus(size.gpus_per_node)
            per_node = size.processes_per_node
            if launch.launcher != "none" and per_node != max(size.gpus_per_node, 1):
                self.put("processes_per_node", per_node, "not one per GPU")
            if size.cpus_per_node != self.site.cpus or self.site.profile is not None:
                self.put("cpus_per_node", size.cpus_per_node)
            self.put("memory", request.memory, "per node" if request.memory else "")
            self.put("time", None if _unlimited(request.time) else request.time)
            self._launcher(launch)
            self._program(launch)
        self._environment(launch)
        self._container(launch)
        self.put("workdir", self._folder())
        if request.signal_before:
            self.data["checkpoint"] = {"signal_before": f"{request.signal_before}s"}
            self.notes["checkpoint",] = "the training is warned this long before the time limit"
        self.put("exclude", [request.exclude] if request.exclude else None)
        self.put("sbatch", {**request.sbatch, **self.site.sbatch})
        return JobDraft(self.data, self.notes)

    def _gpus(self, gpus: int) -> None:
        if gpus != self.site.gpus or self.site.profile is not None:
            self.data["gpus_per_node"] = gpus

    def _launcher(self, launch: OldLaunch) -> None:
        options: dict[str, Any] = {"name": launch.launcher}
        if launch.options:
            options["options"] = launch.options
        if launch.max_restarts:
            options["max_restarts"] = launch.max_restarts
        if len(options) > 1:
            self.put("launcher", options)
        elif launch.launcher != "torchrun":
            note = "the program starts once, on the first node" if launch.launcher == "none" else ""
            self.put("launcher", launch.launcher, note)

    def _program(self, launch: OldLaunch) -> None:
        words = [word.text for word in launch.words]
        if launch.program == "command":
            arguments = [word.text for word in launch.arguments]
            self.put("command", [*words, *arguments], "started without a shell")
            return
        in_image = launch.container is not None and os.path.isabs(words[0] if words else "")
        if launch.program == "script" and words and (in_image or "${shell." in words[0] or "${job." in words[0]):
            self.put("command", ["python3", *words], "inside the image" if in_image else "known only in the job")
        elif words:
            path = words[0]
            self.put(launch.program, self._here(path) if launch.program == "script" else path)
        self.put("args", arguments_of(launch.arguments))

    def _here(self, path: str) -> str:
        """A relative path of the old job, from the job file's folder."""
        return self._from_start(path if _is_rooted(path) else os.path.join(self.script.job.workdir or "", path))

    def _folder(self) -> str | None:
        asked = self.script.job.workdir or self.script.request.workdir
        launch = self.script.launch
        if launch is not None and launch.container is not None and launch.container.workdir:
            asked = launch.container.workdir
        if asked is None:
            return None if self.prefix in {"", "."} else self.prefix
        return self._from_start(asked)

    def _environment(self, launch: OldLaunch | None) -> None:
        job = self.script.job
        software: dict[str, Any] = {}
        if job.sources:
            software["source"] = [self._from_start(path) for path in job.sources]
        if job.modules:
            software["modules"] = job.modules
        if job.conda:
            software["conda"] = _static(job.conda)
        if job.venv:
            software["venv"] = self._from_start(job.venv)
        if launch is not None and launch.python:
            software["python"] = _static(launch.python)
        variables: dict[str, Any] = {}
        for name, (value, _) in job.env.items():
            if name not in self.site.variables:
                variables[name] = value.text
                if plain_commands.NETWORK.match(name):
                    self.notes["env", name] = "for the site profile, if all its jobs need it"
        for name, value in (launch.env if launch is not None else {}).items():
            if name in plain_commands.DEBUGGING or name in plain_commands.RENDEZVOUS or not value.known:
                continue
            variables[name] = value.text
        for name in job.unset:
            variables[name] = None
        self.put("env", variables)
        self.put("environment", software)
        self.put("secrets", job.secrets, "set them in your shell or in secrets.env" if job.secrets else "")

    def _from_start(self, path: str) -> str:
        """A path that is relative to where the old job started."""
        path = path.removeprefix(f"{self.script.folder}/")
        return _static(os.path.normpath(path if _is_rooted(path) else os.path.join(self.prefix, path)))

    def _container(self, launch: OldLaunch | None) -> None:
        if launch is None or launch.container is None:
            return
        found = launch.container
        image = found.image
        if found.runtime != "pyxis" and "://" not in image:
            image = self._here(image)
        data: dict[str, Any] = {"image": _static(image)}
        if self.site.runtime != found.runtime:
            data["runtime"] = found.runtime
        if found.binds:
            data["binds"] = [_static(bind) for bind in found.binds]
        if found.home is not None:
            data["home"] = found.home
        if found.writable:
            data["writable"] = True
        if found.options:
            data["options"] = found.options
        self.put("container", data if len(data) > 1 else data["image"])


def _is_rooted(path: str) -> bool:
    """Whether a path does not depend on a working directory."""
    return path.startswith(("/", "~", "${"))


def _static(text: str) -> str:
    """Paths are known before the job starts: variables come from the submitting shell."""
    return text.replace("${shell.", "${env.")


def _unlimited(time: str | None) -> bool:
    return (time or "").upper() in {"UNLIMITED", "INFINITE", "-1"}


def arguments_of(words: Sequence[Word]) -> dict[str, Any] | list[str]:
    """The arguments: `key: value` where that means the same words in the same order, else a list."""
    texts = [word.text for word in words]
    result: dict[str, Any] = {}
    at = 0
    while at < len(texts):
        option = texts[at]
        if not _OPTION.match(option) or option[2:] in result:
            return texts
        values = []
        at += 1
        while at < len(texts) and not re.match(r"-(?!\d)", texts[at]):
            values.append(_number(texts[at]))
            at += 1
        result[option[2:]] = True if not values else values[0] if len(values) == 1 else values
    return result


def _number(text: str) -> str | int:
    return int(text) if re.fullmatch(r"0|-?[1-9]\d{0,15}", text) else text
