"""Unwrap a launch line: srun, containers and launchers, until the program is found. What their options mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.script_text import Value, Word, old_words
from hpc_launch.from_script.slurm_request import SRUN, SRUN_KNOWN, Request
from hpc_launch.job.container import outside_of

DEEPEST = 8
_PREFIXES = frozenset("exec time nohup command nice setsid env stdbuf timeout".split())
_COUNTS = frozenset({"nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "gpus-per-node"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_COMMANDS, _OURS, _MODULES = old_words().commands, old_words().needless, old_words().modules

Nested = Callable[["Unwrapper", Word, Sequence[Word], bool], bool]


class Unwrapper:
    """Unwraps a launch line.

    Args: launch: filled in. request: of the directives. folder: in which the job was submitted. nested: reads the text
    of `bash -c` (its flag is true), or a local shell file, into the launch; False to keep it as a command.
    """

    def __init__(self, launch: OldLaunch, request: Request, folder: str, nested: Nested) -> None:
        self.launch, self.request, self.folder, self.nested = launch, request, folder, nested

    def unwrap(self, words: Sequence[Word], depth: int = 0) -> None:
        """Read the words of a command."""
        launch = self.launch
        while words and depth and _ASSIGNMENT.match(words[0].text):
            self._variables([words[0]])
            words = words[1:]
        if not words or depth > DEEPEST:
            launch.doubts.append((launch.lines[0], "no program"))
            return
        name, rest = os.path.basename(words[0].text), words[1:]
        inside: Sequence[Word] | None = None
        if name in _PREFIXES and rest:
            inside = self._behind_prefix(words)
        elif name in {"srun", "ibrun"}:
            inside = self._srun(rest)
        elif name in {"mpirun", "mpiexec", "mpiexec.hydra", "orterun"}:
            inside = self._mpirun(words)
        elif name in {"apptainer", "singularity"}:
            inside = self._apptainer(rest, name)
        if inside is not None:
            self.unwrap(inside, depth + 1)
        elif name in {"torchrun", "deepspeed"}:
            self._launcher(rest, name)
        elif name == "accelerate" and rest and rest[0].text == "launch":
            self._launcher(rest[1:], "accelerate")
        elif re.fullmatch(r"python[\d.]*", name):
            self._python(words)
        elif name.endswith(".py"):
            self._program(words)
        elif not self._shell(words):
            self._command(words)

    def _behind_prefix(self, words: Sequence[Word]) -> Sequence[Word]:
        """The words behind `env`, `stdbuf`, `timeout` and the like."""
        name, rest = words[0].text, words[1:]
        while rest and (rest[0].text.startswith("-") or (name == "timeout" and re.match(r"[\d.]+\w?\Z", rest[0].text))):
            if name != "stdbuf":
                self.launch.doubt(rest[0], f"`{name} {rest[0].text}`: use `env:`, or `time:`")
            rest = rest[2 if rest[0].text in {"-u", "-C", "-S", "-n"} else 1 :]
        return rest

    def _shell(self, words: Sequence[Word]) -> bool:
        """`bash -c TEXT`, `bash FILE` and `FILE.sh`: whether the text or file could be read."""
        at = 0
        if os.path.basename(words[0].text) in {"bash", "sh"}:
            at = 1
            while at < len(words) and words[at].text.startswith("-"):
                at += 1
        elif not words[0].text.endswith(".sh"):
            return False
        if at == len(words):
            return False
        is_text = at > 1 and words[at - 1].text.endswith("c")
        if self.nested(self, words[at], words[at + 1 :], is_text):
            return True
        if is_text and re.search(r"torchrun|deepspeed|accelerate|distributed\.", words[at].text):
            self.launch.doubt(words[at], "starts a launcher: name it, and the number of its processes")
        return False

    def _srun(self, words: Sequence[Word]) -> Sequence[Word]:
        split, launch = SRUN.split(words), self.launch
        launch.by_srun, launch.launcher = True, "srun"
        launch.nodes = split.number("nodes") or launch.nodes
        launch.tasks = split.number("ntasks")
        launch.tasks_per_node = split.number("ntasks-per-node", "tasks-per-node")
        launch.cpus_per_task = split.number("cpus-per-task")
        gres = split.last("gres")
        counted = re.search(r"gpu(?::[A-Za-z]\w*)?:(\d+)", gres.text) if gres is not None else None
        none = 0 if gres is not None and gres.text == "none" else None
        launch.gpus_per_node = split.number("gpus-per-node") or (int(counted[1]) if counted else none)
        named = split.last("nodelist")
        launch.place = named.text if named is not None else None
        launch.one_node = 1 in {launch.nodes, launch.tasks} and split.last("nodelist", "relative") is not None
        folder, image = split.last("chdir"), split.last("container-image")
        if folder is not None and folder.value.known:
            launch.workdir = os.path.normpath(os.path.join(launch.workdir or self.folder, folder.text))
        for name, value in split.options:
            if name == "export":
                self._variables(value.with_text(part) for part in value.text.split(","))
            elif name not in SRUN_KNOWN or (name in _COUNTS and value.number() is None):
                launch.doubt(value, f"`--{name}` of srun")
        if image is not None:
            mounts = split.last("container-mounts")
            launch.container = {"image": image.text, "runtime": "pyxis"}
            launch.container |= {"binds": mounts.text.split(",")} if mounts is not None else {}
        return split.rest

    def _mpirun(self, words: Sequence[Word]) -> Sequence[Word]:
        """The words of the Python program that mpirun starts: its options are not read."""
        found = (at for at, word in enumerate(words) if re.search(r"(^|/)python[\d.]*$|\.py$", word.text))
        start = next(found, len(words))
        for word in words[:start]:
            self.launch.doubt(word, "options of mpirun: check `processes_per_node:` (one for each GPU here) and `env:`")
        self.launch.by_srun, self.launch.launcher = True, "srun"
        self.launch.tasks_per_node = max(self.request.gpus_per_node, self.request.tasks_per_node)
        return words[start:]

    def _apptainer(self, words: Sequence[Word], runtime: str) -> Sequence[Word] | None:
        """The words of the command in the image; None if this starts none."""
        table, launch = _COMMANDS["apptainer"], self.launch
        before = table.split(words)
        split = table.split(before.rest[1:])
        if not split.rest or before.rest[0].text not in {"exec", "run"}:
            return None
        if before.rest[0].text == "run" and (len(split.rest) == 1 or split.rest[1].text.startswith("-")):
            launch.doubt(before.rest[0], f"`{runtime} run` starts the image's own program: name it")
        found: dict[str, Any] = {"image": split.rest[0].text, "runtime": runtime}
        for name, value in split.options:
            if name == "bind":
                found.setdefault("binds", []).extend(value.text.split(","))
            elif name == "env":
                self._variables(value.with_text(part) for part in value.text.split(","))
            elif name not in {"pwd", "cwd", "nv", "rocm", "quiet", "silent", "debug", "verbose"}:
                found.setdefault("options", []).append(f"--{name}" + (f"={value.text}" if value.text else ""))
        launch.container, inside = found, split.last("pwd", "cwd")
        if inside is not None and (outside := outside_of(inside.text, found.get("binds", ()))):
            launch.workdir = os.path.normpath(os.path.join(launch.workdir or self.folder, outside))
        elif inside is not None:
            launch.doubt(inside, "a working directory inside the image: give absolute paths there, or `workdir:`")
        return split.rest[1:]

    def _launcher(self, words: Sequence[Word], name: str) -> None:
        """`torchrun …`, `deepspeed …`, and `accelerate launch …`, which starts torchrun's processes."""
        split, launch = _COMMANDS[name].split(words), self.launch
        launch.launcher = "deepspeed" if name == "deepspeed" else "torchrun"
        nodes = split.last("nnodes", "num-nodes", "num-machines")
        processes = split.last("nproc-per-node", "num-gpus", "num-processes")
        launch.nodes = nodes.number() or launch.nodes if nodes is not None else launch.nodes
        launch.max_restarts = split.number("max-restarts")
        for count in (nodes, processes):
            if count is not None and not (count.number() or count.text in {"gpu", "auto", "1:1"} or count.value.hosts):
                launch.doubt(count, f"`{count.text}` is not a number; an elastic number of nodes: `nodes: 2..4`")
        number = processes.number() if processes is not None else None
        if name == "accelerate" and number:
            number = max(number // (launch.nodes or self.request.nodes), 1)
        gpus = self.request.gpus_per_node or 1
        launch.processes_per_node = 1 if processes is None and name == "torchrun" else number or gpus
        for option, value in split.options:
            if option not in _OURS and value.text.lower() not in {"pdsh", "slurm"}:
                launch.doubt(value, f"`--{option}` of {name}: use `strategy:`, `env:` or `launcher:`")
        given = {option for option, _ in split.options}
        self._program(split.rest, module="module" in given, plain="no-python" in given)

    def _python(self, words: Sequence[Word]) -> None:
        """`python …`: a file, a module that is a launcher, or another module."""
        rest = words[2:] if len(words) > 1 and words[1].text == "-u" else words[1:]
        name = rest[1].text if len(rest) > 1 and rest[0].text == "-m" else ""
        if not name and rest and rest[0].text.startswith("-"):
            self._command([words[0], *rest])
            return
        if name in _MODULES:
            if name.endswith("distributed.launch") and not any(word.text == "--use_env" for word in rest):
                # torch/distributed/launch.py: without --use_env each process gets --local-rank.
                self.launch.doubt(rest[1], "torch.distributed.launch passed --local_rank; read LOCAL_RANK instead")
            self._launcher(rest[2:], _MODULES[name])
        else:
            self._program(rest[1:] if name else rest, module=bool(name))
        if os.path.basename(words[0].text) != words[0].text:
            self.launch.python = words[0].text

    def _program(self, words: Sequence[Word], *, module: bool = False, plain: bool = False) -> None:
        """What a launcher starts, and its arguments."""
        launch = self.launch
        if not words:
            launch.doubts.append((launch.lines[0], "no program"))
        launch.program = "module" if module else "command" if plain else "script"
        launch.words, launch.arguments = list(words[:1]), list(words[1:])
        if launch.program == "script" and words and not words[0].value.known:
            launch.program, launch.words = "command", [Word(Value("python3"), words[0].line), words[0]]

    def _command(self, words: Sequence[Word]) -> None:
        self.launch.program, self.launch.words, self.launch.arguments = "command", list(words), []

    def _variables(self, words: Iterable[Word]) -> None:
        """`NAME=VALUE`; a name alone passes on what the job has."""
        for word in words:
            name, equals, text = word.text.partition("=")
            if equals:
                self.launch.env[name] = word.with_text(text).value
