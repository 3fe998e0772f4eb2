"""The `#SBATCH` lines of a script, as sbatch reads them: the size of the job, and the key that takes over an option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hpc_launch.from_script.script_text import Ledger, OptionTable, Word, literal, old_words
from hpc_launch.job.key_hints import words

_TAKEN = {option: key for key, options in words().sbatch_keys.items() for option in options}
_UNNECESSARY, _PASSED_ON = words().needless, words().passed_on
SRUN = old_words().commands["srun"]
_SBATCH = OptionTable(SRUN.flags | {"wait"}, SRUN.short)
SRUN_KNOWN = (_TAKEN.keys() | _UNNECESSARY | _PASSED_ON | old_words().of_step) - {"constraint", "exclude"}
"""Options of srun that are read, or that a job file does not need."""
_COUNTED = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)\Z")
_GPU = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?(?:\(.*\))?\Z")


class Request:
    """What the directives request: the size of the job, and the text of each option in effect, by its long name."""

    def __init__(self, lines: Sequence[str], ledger: Ledger) -> None:
        """Read the lines of a script, with the account of each directive and of the comments around them."""
        self._ledger = ledger
        self._options = _read_options(lines, ledger)
        self.texts = {name: value.text for name, value in self._options}
        self.get = self.texts.get
        for name, value in self._options:
            self._account(name, value)
        nodes, tasks = self._number("nodes"), self._number("ntasks")
        per_node = self._number("ntasks-per-node")
        if nodes is None:
            nodes = -(-tasks // per_node) if tasks and per_node else 1
            if tasks and tasks > 1 and per_node is None:
                self._doubt("ntasks", f"{tasks} tasks, and no number of nodes: 1 taken")
        elif not self.texts["nodes"].isdecimal():
            self._doubt("nodes", f"a range of nodes: {nodes} taken; `nodes: 2..4` makes a run of torchrun elastic")
        if tasks:
            per_node = -(-tasks // nodes)  # sbatch(1): with --ntasks, --ntasks-per-node is only the maximum
            if per_node * nodes != tasks:
                self._doubt("ntasks", f"{tasks} tasks on {nodes} nodes: a job file starts as many on each")
        self.nodes = nodes
        self.gpus_per_node = 0
        self.gpu_type: str | None = None
        self.gpu_request = "gpus-per-node"
        """The style of the request, as in a site profile."""
        self._read_gpus(per_node or 1)
        gpus = self.gpus_per_node
        self.tasks_per_node: int = per_node or (self._number("ntasks-per-gpu") or 0) * gpus or 1
        cpus = (self._number("cpus-per-task") or 0) * self.tasks_per_node
        self.cpus_per_node: int | None = cpus or (self._number("cpus-per-gpu") or 0) * gpus or None
        self.memory = self._memory()
        self.passed_on = {name: text or True for name, text in self.texts.items() if name in _PASSED_ON}
        """Options that sbatch gets as they are."""
        match = re.match(r"(?:[BR]+:)?(\w+)(?:@(\d+))?\Z", self.texts.get("signal", ""))
        self.signal_before = int(match[2] or 60) if match else None
        """Seconds of `--signal=B:USR1@300`."""

    def constants(self) -> dict[str, str]:
        """The variables of Slurm that the directives decide (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
        known = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), self.nodes)
        known |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), self.nodes * self.tasks_per_node)
        known |= dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), self.tasks_per_node)
        if self.gpus_per_node:
            known |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), self.gpus_per_node)
            known["SLURM_GPUS"] = self.gpus_per_node * self.nodes
        if self.cpus_per_node:
            known["SLURM_CPUS_ON_NODE"] = self.cpus_per_node
            known["SLURM_CPUS_PER_TASK"] = max(self.cpus_per_node // self.tasks_per_node, 1)
        result = {name: str(value) for name, value in known.items()}
        return result | ({"SLURM_JOB_NAME": self.texts["job-name"]} if "job-name" in self.texts else {})

    def _account(self, name: str, value: Word) -> None:
        """The account of an option by its name."""
        lines = [value.line]
        if name in _TAKEN:
            self._ledger.taken(lines, _TAKEN[name])
        elif name in _UNNECESSARY or (name == "export" and value.text.upper() in {"ALL", "NONE", "NIL"}):
            self._ledger.unnecessary(lines, "hpc-launch does this itself, or the site profile says it")
        elif name in _PASSED_ON:
            self._ledger.taken(lines, f"sbatch.{name}")
        else:
            keys = {"export": "set these variables in `env:`", "array": "describe the points with `sweep:`"}
            self._ledger.not_understood(lines, keys.get(name, f"`--{name}` has no key in a job file"))

    def _doubt(self, name: str, why: str) -> None:
        """A value that could not be taken over as it is."""
        self._ledger.not_understood([value.line for option, value in self._options if option == name], why)

    def _number(self, name: str) -> int | None:
        """The value as a number; of a range its first."""
        match = re.match(r"(\d{1,6})(-\d+)?\Z", self.texts.get(name, ""))
        if match and int(match[1]) > 0:
            return int(match[1])
        if name in self.texts:
            self._doubt(name, f"`{self.texts[name]}` is not a number")
        return None

    def _read_gpus(self, tasks: int) -> None:
        """GPUs per node, their type, and the style of the request."""
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            pattern = _GPU if name == "gres" else _COUNTED
            parts = self.texts[name].split(",") if name in self.texts and not self.gpus_per_node else []
            found = [match for part in parts if (match := pattern.match(part.strip()))]
            if len(found) < len(parts):
                self._doubt(name, "not a number of GPUs; other resources: `sbatch.gres` of the site profile")
            if found:
                count = int(found[0][2] or 1)
                if name == "gpus" and count % self.nodes:
                    self._doubt(name, f"{count} GPUs cannot be divided evenly over {self.nodes} nodes")
                share = {"gpus": -(-count // self.nodes), "gpus-per-task": count * tasks}
                self.gpus_per_node, self.gpu_type = share.get(name, count), found[0][1]
                self.gpu_request = f"{name}-type".replace("task", "node") if self.gpu_type else name

    def _memory(self) -> str | None:
        """Memory per node."""
        cpus = self.cpus_per_node or self.tasks_per_node
        factors = {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": self.gpus_per_node}
        for name, factor in factors.items():
            match = re.match(r"(\d+)([KMGTkmgt]?)[Bb]?\Z", self.texts.get(name, ""))
            if match and factor:
                amount = int(match[1]) * factor
                return f"{amount}{match[2].upper() or 'M'}" if amount else "0"
            if name in self.texts:
                self._doubt(name, f"`{self.texts[name]}` is not an amount of memory per node")
        return None


def _read_options(lines: Sequence[str], ledger: Ledger) -> list[tuple[str, Word]]:
    """The options before the first command."""
    options: list[tuple[str, Word]] = []
    commands = component = False
    for number, line in enumerate(lines, 1):
        if not line.startswith("#"):
            commands = commands or line.strip()[:1] not in {"", "#"}
        elif number == 1 and re.match(r"#!\s*\S*/(env\s+)?(-S\s+)?(ba|z|k|da)?sh(\s+-(?!\w*l|-login).*|\s*)$", line):
            ledger.unnecessary([1], "the script gets its own first line")
        elif number == 1 and line.startswith("#!"):
            ledger.not_understood([1], "no shell, or a login shell: `login_shell: true` of the site profile")
        elif re.match(r"#(PBS|BSUB|\$|PJM|COBALT|OAR)\s+-", line):
            ledger.not_understood([number], "a directive of another scheduler")
        elif re.match(r"#(BB|DW)\s", line):
            ledger.not_understood([number], "a burst buffer: keep it in a file, and write `sbatch: {bbf: FILE}`")
        elif not re.match(r"#SBATCH(\s|$)", line):
            ledger.unnecessary([number], "a comment")
        elif commands:
            ledger.unnecessary([number], "a directive after the first command, which sbatch does not read")
        elif component or line.split()[1:2] in (["hetjob"], ["packjob"]):
            component = True
            ledger.not_understood([number], "a heterogeneous job: a job file describes one component")
        else:
            options += _line_options(line[len("#SBATCH") :], number, ledger)
    return options


def _line_options(text: str, number: int, ledger: Ledger) -> list[tuple[str, Word]]:
    """All options of a line: sbatch accepts several, and quotes."""
    try:
        words = shlex.split(re.sub(r"\s#.*", "", text).replace("\\#", "#"))
    except ValueError:
        ledger.not_understood([number], "an unclosed quote")
        return []
    split = _SBATCH.split([Word(literal(word), number) for word in words])
    if split.rest:
        ledger.not_understood([number], f"`{split.rest[0].text}` is not an option")
    aliases = {"tasks-per-node": "ntasks-per-node", "cluster-constraint": "constraint"}
    return [(aliases.get(name, name), value) for name, value in split.options]
