"""The job file of an old script: keys with the reason of some, only where they differ from the defaults, and what was
not understood as comments."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from hpc_launch.from_script.draft_site import SitePart
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.read_job import OldScript
from hpc_launch.from_script.settings import DEBUGGING, NETWORK, RENDEZVOUS
from hpc_launch.from_script.words import Word
from hpc_launch.job.shell_text import visible
from hpc_launch.site_tools.learning.profile_yaml import yaml_text


def job_name(text: str) -> str:
    """A name that a run can have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "train"


def job_text(script: OldScript, site: SitePart, prefix: str) -> str:
    """The text of the job file. `prefix`: from its folder to the folder of the old job."""
    draft = _Draft(script, site, prefix)
    head = [f"Written by `hpc-launch init --from {script.name}`."]
    head += [f"Note: {remark}." for remark in script.remarks]
    lines = [yaml_text(draft.data, draft.notes, [visible(line) for line in head]).rstrip("\n")]
    if doubts := script.of("not_understood"):
        lines += ["", f"# Not understood in {visible(script.name)}; decide about these lines:"]
        for account in doubts:
            text = visible(account.text.strip())
            lines.append(f"#   {account.line}: {text if len(text) <= 100 else text[:99] + '…'}")
            lines.append(f"#      {visible(account.why)}")
    if site.profile is not None and site.data:
        lines += ["", f"# For the profile of {site.profile.name}, if it lacks them:"]
        lines += [f"#   {line}" for line in yaml_text(site.data, {}, []).splitlines()]
    return "\n".join(lines) + "\n"


class _Draft:
    """The keys of the job file in the order of the reference page, and the comment of some."""

    def __init__(self, script: OldScript, site: SitePart, prefix: str) -> None:
        self.script, self.site, self.prefix = script, site, prefix
        self.data: dict[str, Any] = {}
        self.notes: dict[tuple[str, ...], str] = {}
        request, launch = script.request, script.launch
        self.put("name", job_name(request.get("job-name") or os.path.splitext(script.name)[0]))
        self.put("site", site.reference)
        self.put("queue", site.queue, site.queue_note)
        self.put("account", request.get("account"))
        self.put("constraint", request.get("constraint"))
        if launch is not None:
            self._size()
            self._launcher(launch)
            self._program(launch)
        self._environment(launch)
        self._container(launch)
        inside = (launch.container or {}).get("workdir") if launch is not None else None
        workdir = inside or script.job.workdir or request.get("chdir")
        self.put("workdir", self._from_start(workdir) if workdir else self.prefix)
        if request.signal_before:
            self.put("checkpoint", {"signal_before": f"{request.signal_before}s"})
            self.notes["checkpoint",] = "the training is warned this long before the time limit"
        self.put("exclude", [request.get("exclude")] if request.get("exclude") else None)
        self.put("sbatch", {**request.passed_on, **site.sbatch})

    def put(self, key: str, value: Any, note: str = "") -> None:
        """Set a key unless the value is empty."""
        if value not in (None, "", [], {}):
            self.data[key] = value
            if note:
                self.notes[key,] = note

    def _size(self) -> None:
        request, size, site = self.script.request, self.script.size, self.site
        if size is None:
            return
        self.put("nodes", size.nodes if size.nodes > 1 else None)
        if size.gpus_per_node != site.gpus or site.profile is not None:
            self.put("gpus_per_node", size.gpus_per_node)
        if not size.once and size.processes_per_node != max(size.gpus_per_node, 1):
            self.put("processes_per_node", size.processes_per_node, "not one per GPU")
        if size.cpus_per_node != site.cpus or site.profile is not None:
            self.put("cpus_per_node", size.cpus_per_node)
        self.put("memory", request.memory, "per node")
        time = request.get("time") or ""
        self.put("time", None if time.upper() in {"UNLIMITED", "INFINITE", "-1"} else time)

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
        first = words[0] if words else ""
        if launch.program == "command":
            self.put("command", [*words, *(word.text for word in launch.arguments)], "started without a shell")
            return
        in_image = launch.container is not None and os.path.isabs(first)
        if launch.program == "script" and (in_image or "${shell." in first or "${job." in first):
            self.put("command", ["python3", *words], "inside the image" if in_image else "known only in the job")
        else:
            self.put(launch.program, self._here(first) if launch.program == "script" and first else first)
        self.put("args", arguments_of(launch.arguments))

    def _here(self, path: str) -> str:
        """A relative path of the old job, from the job file's folder."""
        return self._from_start(path if _is_rooted(path) else os.path.join(self.script.job.workdir or "", path))

    def _from_start(self, path: str) -> str:
        """A path that is relative to where the old job started."""
        path = path.removeprefix(f"{self.script.folder}/")
        return _static(os.path.normpath(path if _is_rooted(path) else os.path.join(self.prefix, path)))

    def _environment(self, launch: OldLaunch | None) -> None:
        job = self.script.job
        variables: dict[str, Any] = {
            name: value.text for name, (value, _) in job.env.items() if name not in self.site.variables
        }
        for name in variables:
            if NETWORK.match(name):
                self.notes["env", name] = "for the site profile, if all its jobs need it"
        for name, value in launch.env.items() if launch is not None else ():
            if value.known and name not in DEBUGGING and name not in RENDEZVOUS:
                variables[name] = value.text
        self.put("env", variables | dict.fromkeys(job.unset))
        old = job.software | ({"python": launch.python} if launch is not None else {})
        software = {
            "source": [self._from_start(path) for path in old.get("source", [])],
            "modules": old.get("modules"),
            "conda": _static(old.get("conda", "")),
            "venv": self._from_start(old["venv"]) if "venv" in old else None,
            "python": _static(old.get("python") or ""),
        }
        self.put("environment", {key: value for key, value in software.items() if value})
        self.put("secrets", job.secrets, "set them in your shell or in secrets.env")

    def _container(self, launch: OldLaunch | None) -> None:
        if launch is None or launch.container is None:
            return
        data = {key: value for key, value in launch.container.items() if key != "workdir"}
        local = data["runtime"] != "pyxis" and "://" not in data["image"]
        data["image"] = _static(self._here(data["image"]) if local else data["image"])
        if self.site.runtime == data["runtime"]:
            del data["runtime"]
        if "binds" in data:
            data["binds"] = [_static(bind) for bind in data["binds"]]
        self.put("container", data if len(data) > 1 else data["image"])


def _is_rooted(path: str) -> bool:
    """Whether a path does not depend on a working directory."""
    return path.startswith(("/", "~", "${"))


def _static(text: str) -> str:
    """Paths are known before the job starts: variables come from the submitting shell."""
    return text.replace("${shell.", "${env.")


def arguments_of(words: Sequence[Word]) -> dict[str, Any] | list[str]:
    """The arguments: `key: value` where that means the same words in the same order, else a list."""
    texts = [word.text for word in words]
    result: dict[str, list[Any]] = {}
    for text in texts:
        name = text[2:]
        if re.match(r"--[A-Za-z][\w.-]*\Z", text) and name not in result:
            result[name] = []
        elif not result or re.match(r"-(?!\d)", text):
            return texts
        else:
            result[list(result)[-1]].append(int(text) if re.fullmatch(r"0|-?[1-9]\d{0,15}", text) else text)
    return {name: True if not found else found[0] if len(found) == 1 else found for name, found in result.items()}
