"""What the directives request: the size of the job and the other options, each with the key that takes it over."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from hpc_launch.from_script.directives import Directives
from hpc_launch.from_script.line_accounts import Ledger

_UNNECESSARY = {
    "output": "each run keeps its logs in its own folder",
    "error": "each run keeps its logs in its own folder",
    "open-mode": "logs of several attempts never overwrite each other",
    "requeue": "hpc-launch starts the next attempt itself (`retry:`)",
    "no-requeue": "the default: hpc-launch starts the next attempt itself",
    "ntasks-per-socket": "the launcher places the processes",
    "gpu-bind": "processes choose their GPU by LOCAL_RANK; a binding would hide the others from NCCL",
    "tres-bind": "processes choose their GPU by LOCAL_RANK; a binding would hide the others from NCCL",
    "kill-on-bad-exit": "a failed process always ends the attempt",
    "wait": "a failed process always ends the attempt",
    "no-kill": "set by `spares:` and an elastic number of nodes",
    "parsable": "an option of the command line",
    "quiet": "an option of the command line",
    "verbose": "an option of the command line",
    "propagate": "limits belong to the site profile",
    "get-user-env": "the job sets up its own environment",
    "get_user_env": "the job sets up its own environment",
    "unbuffered": "output is not buffered",
    "label": "the logs name the rank of each line",
}
_PASSED_ON = frozenset(
    "mail-type mail-user reservation dependency comment licenses hint distribution nice begin deadline switches "
    "segment nodelist wckey priority prefer contiguous clusters mem-bind profile threads-per-core sockets-per-node "
    "tmp network cores-per-socket core-spec thread-spec cpu-freq gpu-freq spread-job mincpus gres-flags delay-boot "
    "time-min acctg-freq power reboot use-min-nodes bb bbf batch mcs-label oversubscribe overcommit".split()
)
_GPU = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?(?:\(.*\))?\Z")
_COUNTED = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)\Z")


class Request(Struct, frozen=True, kw_only=True):
    """The size of the old job, and its other options."""

    name: str | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    tasks_given: bool = False
    gpus_per_node: int = 0
    gpu_type: str | None = None
    gpu_request: str | None = None
    cpus_per_node: int | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    workdir: str | None = None
    signal_before: int | None = None
    exclusive: bool = False
    sbatch: Mapping[str, str | bool] = {}

    def constants(self) -> dict[str, str]:
        """The variables of Slurm that the directives decide (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
        tasks, gpus = self.nodes * self.tasks_per_node, self.gpus_per_node
        known: dict[str, object] = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NTASKS": tasks,
            "SLURM_NPROCS": tasks,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_TASKS_PER_NODE": self.tasks_per_node,
        }
        if gpus:
            known |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS": gpus * self.nodes}
        if self.cpus_per_node:
            cpus = max(self.cpus_per_node // self.tasks_per_node, 1)
            known |= {"SLURM_CPUS_PER_TASK": cpus, "SLURM_CPUS_ON_NODE": self.cpus_per_node}
        if self.name:
            known["SLURM_JOB_NAME"] = self.name
        return {name: str(value) for name, value in known.items()}


def read_request(directives: Directives, ledger: Ledger) -> Request:
    """The request, with the account of each directive."""
    reader = _Reader(directives, ledger)
    reader.account_options()
    nodes_text = directives.get("nodes")
    nodes = reader.number("nodes")
    tasks, per_node = reader.number("ntasks"), reader.number("ntasks-per-node")
    if nodes is None:
        nodes = -(-tasks // per_node) if tasks and per_node else 1
    if nodes_text and not nodes_text.isdecimal():
        reader.doubt("nodes", f"a range of nodes: {nodes} taken; `nodes: 2..4` makes a run of torchrun elastic")
    given = tasks is not None or per_node is not None
    if tasks:
        if nodes_text is None and per_node is None and tasks > 1:
            reader.doubt("ntasks", f"{tasks} tasks, and no number of nodes: 1 taken")
        per_node = -(-tasks // nodes)  # sbatch(1): with --ntasks, --ntasks-per-node is only the maximum
        if per_node * nodes != tasks:
            reader.doubt("ntasks", f"{tasks} tasks on {nodes} nodes: a job file starts as many on each")
    gpus, gpu_type, style = reader.gpus(nodes, per_node or 1)
    if per_node is None:
        per_gpu = reader.number("ntasks-per-gpu")
        per_node = per_gpu * gpus if per_gpu and gpus else 1
        given = given or bool(per_gpu and gpus)
    cpus = reader.number("cpus-per-task")
    per_gpu = reader.number("cpus-per-gpu")
    cpus_per_node = cpus * per_node if cpus else per_gpu * gpus if per_gpu and gpus else None
    return Request(
        name=directives.get("job-name"),
        nodes=nodes,
        tasks_per_node=per_node,
        tasks_given=given,
        gpus_per_node=gpus,
        gpu_type=gpu_type,
        gpu_request=style,
        cpus_per_node=cpus_per_node,
        memory=reader.memory(cpus_per_node or per_node, gpus),
        time=directives.get("time"),
        partition=directives.get("partition"),
        qos=directives.get("qos"),
        account=directives.get("account"),
        constraint=directives.get("constraint", "cluster-constraint"),
        exclude=directives.get("exclude"),
        workdir=directives.get("chdir"),
        signal_before=reader.signal(),
        exclusive=directives.get("exclusive") is not None,
        sbatch={
            option.name: (option.value.text if option.value else True)
            for option in directives.options
            if option.name in _PASSED_ON
        },
    )


class _Reader:
    """Reads values of directives and keeps their accounts."""

    def __init__(self, directives: Directives, ledger: Ledger) -> None:
        self.directives = directives
        self.ledger = ledger

    def account_options(self) -> None:
        """The account of each option by its name."""
        for option in self.directives.options:
            lines, name = [option.line], option.name
            if name in _TAKEN:
                self.ledger.taken(lines, _TAKEN[name])
            elif name in _UNNECESSARY:
                self.ledger.unnecessary(lines, _UNNECESSARY[name])
            elif name in _PASSED_ON:
                self.ledger.taken(lines, f"sbatch.{name}")
            elif name == "export":
                self._export(lines, option.value.text if option.value else "")
            elif name == "array":
                self.ledger.not_understood(
                    lines, "a job array: a job file is one run; describe its points with `sweep:`"
                )
            else:
                self.ledger.not_understood(lines, f"`--{name}` has no key in a job file")

    def _export(self, lines: list[int], value: str) -> None:
        if value.upper() in {"ALL", "NONE", "NIL"}:
            self.ledger.unnecessary(lines, "the job sets up its own environment")
        else:
            self.ledger.not_understood(lines, "set these variables in `env:`")

    def doubt(self, name: str, why: str) -> None:
        """A value that could not be taken over as it is."""
        self.ledger.not_understood(self.directives.lines(name), why)

    def number(self, name: str) -> int | None:
        """The value as a number; of a range its first."""
        text = self.directives.get(name)
        match = re.match(r"(\d{1,6})(-\d+)?\Z", text or "")
        if match and int(match[1]) > 0:
            return int(match[1])
        if text is not None:
            self.doubt(name, f"`{text}` is not a number")
        return None

    def gpus(self, nodes: int, tasks: int) -> tuple[int, str | None, str | None]:
        """GPUs per node, their type, and the style of the request (`gpu_request` of a site profile)."""
        readings: dict[str, Callable[[int], int]] = {
            "gpus-per-node": lambda count: count,
            "gres": lambda count: count,
            "gpus": lambda count: -(-count // nodes),
            "gpus-per-task": lambda count: count * tasks,
        }
        for name, per_node in readings.items():
            text = self.directives.get(name)
            if text is None:
                continue
            if name == "gres":
                parts = text.split(",")
                found = [match for part in parts if (match := _GPU.match(part.strip()))]
                if len(found) < len(parts):
                    self.doubt(name, "a resource other than a GPU: add it to `sbatch.gres` of the site profile")
                if not found:
                    continue
                kind, count = found[0][1], int(found[0][2] or 1)
            else:
                match = _COUNTED.match(text)
                if match is None:
                    self.doubt(name, f"`{text}` is not a number of GPUs")
                    continue
                kind, count = match[1], int(match[2])
                if name == "gpus" and count % nodes:
                    self.doubt(name, f"{count} GPUs cannot be divided evenly over {nodes} nodes")
            return per_node(count), kind, f"{name}-type" if kind else name
        return 0, None, None

    def memory(self, cpus: int, gpus: int) -> str | None:
        """Memory per node."""
        for name, factor in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
            text = self.directives.get(name)
            if text is None:
                continue
            match = re.match(r"(\d+)([KMGTkmgt]?)[Bb]?\Z", text)
            if match is None or not factor:
                self.doubt(name, f"`{text}` is not an amount of memory per node")
                continue
            amount = int(match[1]) * factor
            return f"{amount}{match[2].upper() or 'M'}" if amount else "0"
        return None

    def signal(self) -> int | None:
        """Seconds of `--signal=B:USR1@300`."""
        text = self.directives.get("signal")
        match = re.match(r"(?:[BR]+:)?(\w+)(?:@(\d+))?\Z", text or "")
        return int(match[2] or 60) if match else None


_TAKEN = {
    "job-name": "name", "nodes": "nodes", "ntasks": "processes_per_node", "ntasks-per-node": "processes_per_node",
    "ntasks-per-gpu": "processes_per_node", "cpus-per-task": "cpus_per_node", "cpus-per-gpu": "cpus_per_node",
    "gres": "gpus_per_node", "gpus": "gpus_per_node", "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_node", "mem": "memory", "mem-per-cpu": "memory", "mem-per-gpu": "memory",
    "time": "time", "partition": "queue", "qos": "queue", "account": "account", "constraint": "constraint",
    "cluster-constraint": "constraint", "exclude": "exclude", "chdir": "workdir",
    "signal": "checkpoint.signal_before", "exclusive": "site: exclusive",
}  # fmt: skip
