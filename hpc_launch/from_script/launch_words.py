"""Unwrap a command line: srun, containers, launchers, until the program is found."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from hpc_launch.from_script import launcher_words
from hpc_launch.from_script.container_words import apptainer, pyxis
from hpc_launch.from_script.mpirun_words import mpirun
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.request import Request
from hpc_launch.from_script.slurm_options import SRUN
from hpc_launch.from_script.values import Value, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_PREFIXES = frozenset("exec time nohup command nice setsid".split())
_SRUN_DROPPED = frozenset(
    "output error label unbuffered kill-on-bad-exit wait overlap exact exclusive mpi cpu-bind gpu-bind tres-bind "
    "gres-flags job-name jobid job-id input mem no-kill distribution hint threads-per-core quiet verbose partition "
    "account time nodelist relative het-group cores-per-socket resv-ports open-mode chdir propagate verbose "
    "mem-bind accel-bind gpus gres gpus-per-node gpus-per-task cpus-per-gpu ntasks-per-gpu mem-per-cpu mem-per-gpu "
    "tasks-per-node container-image container-mounts container-workdir container-name container-save container-env "
    "container-mount-home no-container-mount-home container-writable container-remap-root "
    "no-container-remap-root no-container-entrypoint container-entrypoint ntasks nodes ntasks-per-node cpus-per-task "
    "qos wait-for-children network disable-status".split()
)
DEEPEST = 8

Nested = Callable[[OldLaunch, str, Sequence[Word], Word, int], bool]
"""Reads the text of `bash -c` or a local shell file into the launch; False to keep it as a command."""


class Unwrapper:
    """Unwraps the launch lines of a script.

    Args: request: of the directives. folder: in which the job was submitted. nested: reads shell text inside a line.
    """

    def __init__(self, request: Request, folder: str, nested: Nested) -> None:
        self.request = request
        self.folder = folder
        self.nested = nested

    def unwrap(self, launch: OldLaunch, words: Sequence[Word], depth: int = 0) -> None:
        """Read the words of a command into the launch."""
        while words and (assigned := _ASSIGNMENT.match(words[0].text)) and depth:
            launch.env[assigned[1]] = words[0].after(assigned.end()).value
            launch.keys.append("env")
            words = words[1:]
        if not words or depth > DEEPEST:
            launch.doubts.append((launch.lines[0], "no program"))
            return
        name, rest = os.path.basename(words[0].text), words[1:]
        gpus, nodes = self.request.gpus_per_node, self.request.nodes
        if name in _PREFIXES:
            self.unwrap(launch, rest, depth + 1)
        elif name == "env" and rest:
            while rest and rest[0].text.startswith("-"):
                launch.doubts.append((rest[0].line, f"`env {rest[0].text}`: set or unset variables in `env:`"))
                rest = rest[2 if rest[0].text in {"-u", "-C", "-S"} else 1 :]
            self.unwrap(launch, rest, depth + 1)
        elif name == "stdbuf":
            self.unwrap(launch, [word for at, word in enumerate(rest) if at or word.text[:2] != "-o"], depth + 1)
        elif name == "timeout":
            while rest and (rest[0].text.startswith("-") or re.match(r"[\d.]+[smhd]?\Z", rest[0].text)):
                rest = rest[1:]
            launch.doubts.append((words[0].line, "`timeout`: set `time:`"))
            self.unwrap(launch, rest, depth + 1)
        elif name in {"srun", "ibrun"}:
            self._srun(launch, rest, depth)
        elif name in {"mpirun", "mpiexec", "mpiexec.hydra", "orterun"}:
            self.unwrap(launch, mpirun(launch, rest), depth + 1)
        elif name in {"apptainer", "singularity"}:
            inside = apptainer(launch, rest, "apptainer" if name == "apptainer" else "singularity", self.folder)
            if inside is None:
                self._command(launch, words)
            else:
                self.unwrap(launch, inside, depth + 1)
        elif name in {"bash", "sh"} and rest:
            self._shell(launch, words, depth)
        elif name.endswith(".sh"):
            if not self.nested(launch, "file", rest, words[0], depth + 1):
                self._command(launch, words)
        elif name in {"torchrun", "torch_distributed"}:
            launcher_words.torchrun(launch, rest, gpus)
        elif name == "deepspeed":
            launcher_words.deepspeed(launch, rest, gpus)
            launch.pdsh = not launch.by_srun
        elif name == "accelerate" and rest and rest[0].text == "launch":
            launcher_words.accelerate(launch, rest[1:], gpus, nodes)
        elif re.fullmatch(r"python[\d.]*", name):
            launcher_words.python(launch, rest, words[0].text, gpus, nodes)
        elif name.endswith(".py"):
            launcher_words.program(launch, words)
        else:
            self._command(launch, words)

    def _srun(self, launch: OldLaunch, words: Sequence[Word], depth: int) -> None:
        split = SRUN.split(words)
        launch.by_srun = True
        launch.launcher = "srun"
        launch.keys += ["launcher"]
        launch.nodes = _number(split.last("nodes")) or launch.nodes
        launch.tasks = _number(split.last("ntasks"))
        launch.tasks_per_node = _number(split.last("ntasks-per-node", "tasks-per-node"))
        launch.cpus_per_task = _number(split.last("cpus-per-task"))
        where = split.last("nodelist")
        folder = split.last("chdir")
        if folder is not None and folder.value.known:
            launch.workdir = os.path.normpath(os.path.join(launch.workdir or self.folder, folder.text))
            launch.keys += ["workdir"]
        launch.one_node = launch.nodes == 1 and (where is not None or split.has("relative"))
        if split.has("het-group"):
            launch.doubts += [(option.line, "`--het-group`") for option in split.options if option.name == "het-group"]
        gpus = _number(split.last("gpus-per-node")) or _gres(split.last("gres"))
        launch.gpus_per_node = gpus
        export = split.last("export")
        if export is not None:
            self._export(launch, export)
        pyxis(launch, split)
        launch.doubts += [
            (option.line, f"`--{option.name}` of srun")
            for option in split.options
            if option.name not in _SRUN_DROPPED | {"export"} and option.name != "het-group"
        ]
        self.unwrap(launch, split.rest, depth + 1)

    @staticmethod
    def _export(launch: OldLaunch, word: Word) -> None:
        for part in word.text.split(","):
            name, equals, value = part.partition("=")
            if equals:
                launch.env[name] = Value(value, word.value.known, word.value.uses)
                launch.keys.append("env")

    def _shell(self, launch: OldLaunch, words: Sequence[Word], depth: int) -> None:
        """`bash -c TEXT`, or a shell file."""
        at = 1
        while at < len(words) and words[at].text.startswith("-") and not words[at].text.endswith("c"):
            at += 1
        if at < len(words) and words[at].text.startswith("-"):
            at += 1
            if at < len(words) and self.nested(launch, "text", words[at + 1 :], words[at], depth + 1):
                return
        elif at < len(words) and self.nested(launch, "file", words[at + 1 :], words[at], depth + 1):
            return
        self._command(launch, words)

    @staticmethod
    def _command(launch: OldLaunch, words: Sequence[Word]) -> None:
        launch.program, launch.words, launch.arguments = "command", list(words), []
        launch.keys += ["command"]


def _number(word: Word | None) -> int | None:
    return word.number() if word is not None else None


def _gres(word: Word | None) -> int | None:
    match = re.search(r"gpu(?::[A-Za-z]\w*)?:(\d+)", word.text) if word is not None else None
    return int(match[1]) if match else None
