"""Unwrap a launch line: srun, mpirun, containers and launchers, until the program is found. What their options mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.script_text import Option, OptionTable, Value, Word
from hpc_launch.from_script.slurm_request import SRUN, Request

DEEPEST = 8
_PREFIXES = frozenset("exec time nohup command nice setsid env stdbuf timeout".split())
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_DOUBTED_BY_SRUN = frozenset(
    "multi-prog het-group task-prolog task-epilog prolog epilog export-file bcast container container-id "
    "constraint exclude pty container-name container-save container-env container-workdir".split()
)
_MPIRUN = OptionTable(
    "np n c npernode ppn N perhost map-by x hostfile machinefile H host hosts f bind-to rank-by launcher bootstrap "
    "rmk prefix wdir iface output-filename genvlist envlist rsh",
    "oversubscribe allow-run-as-root report-bindings tag-output genvall l prepend-rank display-map nooversubscribe "
    "bind-to-none bind-to-core display-allocation v verbose print-rank-map",
    pairs="genv env mca gmca pmca",
    single_dash=True,
)
_APPTAINER = OptionTable(
    "bind env home pwd cwd workdir overlay scratch network add-caps drop-caps app dns hostname env-file mount "
    "security no-mount fusemount blkio-weight cpus memory",
    "nv rocm nvccli containall contain cleanenv no-home writable-tmpfs writable fakeroot ipc pid uts userns compat "
    "keep-privs no-privs no-init no-umask no-eval unsquash disable-cache quiet silent debug verbose",
    {"B": "bind", "H": "home", "W": "workdir", "o": "overlay", "S": "scratch", "C": "containall", "c": "contain",
     "e": "cleanenv", "w": "writable", "f": "fakeroot", "i": "ipc", "p": "pid", "u": "userns", "q": "quiet",
     "s": "silent", "d": "debug", "v": "verbose"},
)  # fmt: skip


class _Launcher:
    """A launcher's options: those that are ours (counts and the rendezvous), kept, passed on in variables, or doubted.

    Args: name: of the launcher in the job file. flags: options without a value, of any kind. short: as `OptionTable`.
    """

    def __init__(  # noqa: PLR0917 - a table of options
        self, name: Literal["torchrun", "deepspeed"], ours: str, kept: str, doubted: str, flags: str,
        short: Mapping[str, str], variables: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        self.name, self.kept, self.doubted, self.variables = name, kept.split(), doubted.split(), variables
        self.table = OptionTable(" ".join((ours, kept, doubted, *variables)), flags, short)


_LAUNCHERS = {
    "torchrun": _Launcher(
        "torchrun",
        "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id max-restarts local-addr node-rank master-addr "
        "master-port event-log-handler log-line-prefix-template",
        "role tee redirects log-dir local-ranks-filter monitor-interval start-method numa-binding logs-specs rdzv-conf",
        "",
        "standalone module no-python run-path use-env",
        {"m": "module", "r": "redirects", "t": "tee"},
    ),
    "deepspeed": _Launcher(
        "deepspeed",
        "hostfile num-nodes num-gpus master-port master-addr node-rank launcher min-elastic-nodes max-elastic-nodes "
        "ssh-port",
        "bind-cores-to-rank bind-core-list no-local-rank enable-each-rank-log save-pid venv-script",
        "include exclude launcher-args autotuning",
        "module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank",
        {"H": "hostfile", "i": "include", "e": "exclude"},
    ),
    "accelerate": _Launcher(
        "torchrun",
        "num-processes num-machines machine-rank main-process-ip main-process-port rdzv-backend rdzv-conf "
        "deepspeed-hostfile deepspeed-multinode-launcher max-restarts monitor-interval role tee log-dir",
        "",
        "config-file use-fsdp fsdp-sharding-strategy fsdp-auto-wrap-policy fsdp-state-dict-type fsdp-offload-params "
        "fsdp-transformer-layer-cls-to-wrap fsdp-version fsdp-reshard-after-forward offload-optimizer-device "
        "offload-param-device zero3-init-flag zero3-save-16bit-model dynamo-backend gpu-ids",
        "multi-gpu use-deepspeed use-fsdp cpu module no-python same-network debug quiet",
        {"m": "module"},
        {
            "zero-stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
            "deepspeed-config-file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
            "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "gradient-clipping": "ACCELERATE_GRADIENT_CLIPPING",
            "mixed-precision": "ACCELERATE_MIXED_PRECISION",
            "num-cpu-threads-per-process": "OMP_NUM_THREADS",
        },  # accelerate/utils/launch.py, 1.15
    ),
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Modules that are launchers."""


class Unwrapper:
    """Unwraps a launch line.

    Args: launch: filled in. request: of the directives. folder: in which the job was submitted. nested: reads the text
    of `bash -c` (its flag is true), or a local shell file, into the launch; False to keep it as a command.
    """

    def __init__(
        self, launch: OldLaunch, request: Request, folder: str, nested: Callable[[Word, Sequence[Word], bool], bool]
    ) -> None:
        self.launch = launch
        self.request = request
        self.folder = folder
        self.nested = nested

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
            inside = self._mpirun(rest)
        elif name in {"apptainer", "singularity"}:
            inside = self._apptainer(rest, name)
        if inside is not None:
            self.unwrap(inside, depth + 1)
        elif name in {"torchrun", "deepspeed"}:
            launch.pdsh = name == "deepspeed" and not launch.by_srun
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
        is_text = at > 1 and words[at - 1].text.endswith("c")
        return at < len(words) and self.nested(words[at], words[at + 1 :], is_text)

    def _srun(self, words: Sequence[Word]) -> Sequence[Word]:
        split, launch = SRUN.split(words), self.launch
        launch.by_srun, launch.launcher = True, "srun"
        launch.keys.append("launcher")
        launch.nodes = split.number("nodes") or launch.nodes
        launch.tasks = split.number("ntasks")
        launch.tasks_per_node = split.number("ntasks-per-node", "tasks-per-node")
        launch.cpus_per_task = split.number("cpus-per-task")
        gres = split.last("gres")
        counted = re.search(r"gpu(?::[A-Za-z]\w*)?:(\d+)", gres.text) if gres is not None else None
        launch.gpus_per_node = split.number("gpus-per-node") or (int(counted[1]) if counted else None)
        launch.one_node = launch.nodes == 1 and split.has("nodelist", "relative")
        folder, image = split.last("chdir"), split.last("container-image")
        if folder is not None and folder.value.known:
            launch.workdir = os.path.normpath(os.path.join(launch.workdir or self.folder, folder.text))
            launch.keys.append("workdir")
        for option in split.options:
            if option.name == "export" and option.value is not None:
                self._variables(option.value.with_text(part) for part in option.text.split(","))
            elif not option.known or option.name in _DOUBTED_BY_SRUN:
                launch.doubts.append((option.line, f"`--{option.name}` of srun"))
        if image is not None:
            mounts, workdir = split.last("container-mounts"), split.last("container-workdir")
            home = split.has("container-mount-home") or (False if split.has("no-container-mount-home") else None)
            found = {"binds": mounts and mounts.text.split(","), "workdir": workdir and workdir.text, "home": home}
            found["writable"] = split.has("container-writable") or None
            given = {key: value for key, value in found.items() if value is not None}
            launch.container = {"image": image.text, "runtime": "pyxis", **given}
            launch.keys.append("container")
        return split.rest

    def _mpirun(self, words: Sequence[Word]) -> Sequence[Word]:
        """The words of the command that mpirun starts, of Open MPI or MPICH."""
        split, launch = _MPIRUN.split(words), self.launch
        launch.by_srun, launch.launcher = True, "srun"
        launch.keys += ["launcher", "processes_per_node"]
        launch.tasks = split.number("np", "n", "c")
        launch.tasks_per_node = split.number("npernode", "ppn", "N", "perhost")
        for option in split.options:
            if option.name == "map-by" and (counted := re.match(r"ppr:(\d+):node", option.text)):
                launch.tasks_per_node = int(counted[1])
            elif option.name in {"x", "genv", "env"} and option.value is not None:
                self._variables([option.value])
            elif not option.known or option.name.endswith("mca"):
                launch.doubts.append((option.line, f"`--{option.name}` of mpirun"))
        return split.rest

    def _apptainer(self, words: Sequence[Word], runtime: str) -> Sequence[Word] | None:
        """The words of the command in the image; None if this starts none."""
        before, launch = _APPTAINER.split(words), self.launch
        split = _APPTAINER.split(before.rest[1:])
        if not split.rest or before.rest[0].text not in {"exec", "run"}:
            return None
        if before.rest[0].text == "run" and (len(split.rest) == 1 or split.rest[1].text.startswith("-")):
            launch.doubt(before.rest[0], f"`{runtime} run` starts the image's own program: name it")
        binds: list[str] = []
        options: list[str] = []
        found: dict[str, Any] = {"image": split.rest[0].text, "runtime": runtime}
        for option in split.options:
            if not option.known:
                launch.doubts.append((option.line, f"`--{option.name}` of {runtime}"))
            elif option.name == "bind":
                binds += option.text.split(",")
            elif option.name == "env" and option.value is not None:
                self._variables(option.value.with_text(part) for part in option.text.split(","))
            elif option.name in {"no-home", "writable-tmpfs", "writable"}:
                found |= {"home": False} if option.name == "no-home" else {"writable": True}
            elif option.name not in {"nv", "rocm", "pwd", "cwd", "quiet", "silent", "debug", "verbose"}:
                options.append(f"--{option.name}" + (f"={option.text}" if option.value is not None else ""))
        found |= {key: value for key, value in (("binds", binds), ("options", options)) if value}
        where = split.last("pwd", "cwd")
        if where is not None:  # a folder of the host has its own path in our container, so relative paths stay right
            hosts = {bind.split(":")[1]: bind.split(":")[0] for bind in binds if ":" in bind}
            source = hosts.get(where.text.rstrip("/"), where.text if where.text == self.folder else None)
            if source is None:
                launch.doubt(where, "a working directory inside the image: give the program's absolute path")
            elif source != self.folder:
                found["workdir"] = source
        launch.container = found
        launch.keys.append("container")
        return split.rest[1:]

    def _launcher(self, words: Sequence[Word], name: str) -> None:
        """`torchrun …`, `deepspeed …`, and `accelerate launch …`, which starts torchrun's processes."""
        known, launch = _LAUNCHERS[name], self.launch
        split = known.table.split(words)
        launch.launcher = known.name
        launch.keys.append("launcher")
        nodes = split.last("nnodes", "num-nodes", "num-machines")
        if nodes is not None and ":" in nodes.text:
            launch.doubt(nodes, "an elastic number of nodes: `nodes: 2..4`")
        launch.nodes = nodes.number() if nodes is not None and nodes.number() else launch.nodes
        launch.max_restarts = split.number("max-restarts")
        gpus = self.request.gpus_per_node or 1
        processes = split.last("nproc-per-node", "num-gpus", "num-processes")
        number = processes.number() if processes is not None else None
        if name == "accelerate" and number:
            number = max(number // (launch.nodes or self.request.nodes), 1)
        elif processes is not None and number is None and re.fullmatch(r"(?!gpu|auto)\w+", processes.text):
            launch.doubt(processes, f"`{processes.text}` processes")
        launch.processes_per_node = 1 if processes is None and name == "torchrun" else number or gpus
        for option in split.options:
            self._launcher_option(option, name)
        if split.has("deepspeed-config-file", "zero-stage", "use-deepspeed"):
            launch.env["ACCELERATE_USE_DEEPSPEED"] = Value("true")
        self._program(split.rest, module=split.has("module"), plain=split.has("no-python"))

    def _launcher_option(self, option: Option, name: str) -> None:
        """An option that neither the rendezvous nor another key covers."""
        known, launch = _LAUNCHERS[name], self.launch
        other = option.name == "launcher" and option.text.lower() not in {"pdsh", "slurm"}
        if option.name in known.kept:
            text = "--" + (option.name.replace("-", "_") if name == "deepspeed" else option.name)
            launch.options.append(text if option.value is None else f"{text}={option.text}")
            launch.keys.append("launcher.options")
        elif option.name in known.variables and option.value is not None:
            launch.env[known.variables[option.name]] = option.value.value
            launch.keys.append("env")
        elif not option.known or other or option.name in known.doubted:
            launch.doubts.append((option.line, f"`--{option.name}` of {name}: use `strategy:`, `env:` or `launcher:`"))

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
            self.launch.keys.append("environment.python")

    def _program(self, words: Sequence[Word], *, module: bool = False, plain: bool = False) -> None:
        """What a launcher starts, and its arguments."""
        launch = self.launch
        if not words:
            launch.doubts.append((launch.lines[0], "no program"))
        launch.program = "module" if module else "command" if plain else "script"
        launch.words, launch.arguments = list(words[:1]), list(words[1:])
        if launch.program == "script" and words and not words[0].value.known:
            launch.program, launch.words = "command", [Word(Value("python3"), words[0].line), words[0]]
        launch.keys += [launch.program, "args"] if launch.arguments else [launch.program]

    def _command(self, words: Sequence[Word]) -> None:
        self.launch.program, self.launch.words, self.launch.arguments = "command", list(words), []
        self.launch.keys.append("command")

    def _variables(self, words: Iterable[Word]) -> None:
        """`NAME=VALUE`; a name alone passes on what the job has."""
        for word in words:
            name, equals, text = word.text.partition("=")
            if equals:
                self.launch.env[name] = word.with_text(text).value
                self.launch.keys.append("env")
