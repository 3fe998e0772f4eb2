"""Lines that set something up: variables, modules, environments, folders and limits."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from hpc_launch.from_script.old_job import OldJob
from hpc_launch.from_script.script_text import Ledger, Node, Value, Word, find_all, text_of, unknown
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.variables import Variables
from hpc_launch.job.container import SECRET_NAME

DEBUGGING = frozenset(
    "NCCL_DEBUG NCCL_DEBUG_SUBSYS TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL CUDA_LAUNCH_BLOCKING PYTHONFAULTHANDLER "
    "NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT TORCH_NCCL_BLOCKING_WAIT "
    "PYTHONUNBUFFERED SRUN_CPUS_PER_TASK SLURM_CPU_BIND PDSH_RCMD_TYPE DSHPATH DLTS_HOSTFILE".split()
)
"""Variables for debugging, with today's default, or that hpc-launch sets: a job of hpc-launch does without."""
NOT_NEEDED = "not needed: for debugging, a default today, or set by hpc-launch"
RENDEZVOUS = frozenset(
    "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK NODE_RANK LOCAL_WORLD_SIZE GROUP_RANK SLURM_EXPORT_ENV "
    "TORCHELASTIC_ERROR_FILE TORCHELASTIC_RUN_ID".split()
)
NETWORK = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|FI|MPICH|PSM2?|OMPI_MCA|UCC|IBV|HCCL|CXI|OFI|TP)_|CUDA_DEVICE_MAX_CONNECTIONS\Z|HSA_"
)
"""Variables of the fabric: they are the same for every job of a site."""
_MASTER = re.compile(
    r"(?i)((MASTER|HEAD|MAIN|LEADER|RDZV|FIRST|CHIEF)\w*?_?(ADDR|ADDRESS|HOST|HOSTNAME|NODE|IP|ENDPOINT|PROCESS_IP)\w*"
    r"|MASTER|RDZV_ENDPOINT|INIT_HOST)\Z"
)
_PORT = re.compile(r"(?i)((MASTER|HEAD|MAIN|LEADER|RDZV|DIST|INIT)\w*PORT|PORT|FREE_PORT|RDZV_ID|JOB_PORT)\Z")
_LAUNCH_ONLY = re.compile(
    r"(?i)((NUM_?|N_?|TOTAL_?|COUNT_?)?(NODES?|N?NODES|GPUS?|PROCS?|NPROC\w*|NNODES|NPROCS|TASKS|WORKERS|DEVICES)"
    r"(_COUNT|_PER_NODE|_NUM|_TOTAL)?|COUNT_NODE|HOSTNAMES?|NODELIST|NODES_ARRAY|NODE_LIST|HOST_?FILE|NODEFILE|HOSTS|"
    r"WORLDSIZE|LAUNCHER|JOB_?ID|GPU_ARRAY|RDZV_(HOST|PORT|ID|ENDPOINT|BACKEND)|DISTRIBUTED_ARGS)\Z"
)
"""Variables that only serve the old launch line: counts and lists of nodes, GPUs and processes."""
_SHELL_FILES = re.compile(
    r"/\.?(bashrc|bash_profile|profile|zshrc)\Z|"
    r"\A(/etc/|/usr/share/|/opt/cray|/opt/lmod).*(/profile|/lmod/|/modules/|modules?\.sh|/init/(ba)?sh\Z|z00_lmod)"
)
"""Files that set up a shell or its module command."""
_MODULE_VERBS = {
    **dict.fromkeys("load add try-load switch swap unload rm del".split(), "loads"),
    **dict.fromkeys("list avail av spider show display whatis help".split(), "prints"),
    **dict.fromkeys("purge reset use restore".split(), "other"),
}
REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")
_LIMITS = {"s": "stack", "l": "locked-memory", "n": "open-files", "u": "processes", "c": "core"}


class Settings:
    """Reads the lines that set something up into the job."""

    def __init__(self, request: Request, variables: Variables, ledger: Ledger) -> None:
        self.request, self.variables, self.job, self.ledger = request, variables, OldJob(), ledger

    def words(self, node: Node | None) -> list[Word]:
        """The words of a command."""
        if node is None:
            return []
        skipped = {"variable_assignment", *REDIRECTS}
        children = [child for child in node.named_children if child.type not in skipped]
        named = [(child.named_children or [child])[0] if child.type == "command_name" else child for child in children]
        return [word for child in named for word in self.variables.words(child)]

    def reads(self, words: Sequence[Word], text: str, lines: range) -> None:
        """`read -ra NAME <<< "$SLURM_JOB_GPUS"`, `mapfile -t NAME < <(scontrol …)`, `printf -v NAME …`."""
        name = words[2].text if words[0].text == "printf" else words[-1].text
        if re.search(r"SLURM_(JOB|STEP)_GPUS|CUDA_VISIBLE_DEVICES", text) and self.request.gpus_per_node:
            self.variables.assign(name, (unknown("$GPU"),) * self.request.gpus_per_node)
            self.ledger.unnecessary(lines, "counts the GPUs of a node")
        elif re.search(r"scontrol\s+show\s+hostname|SLURM_(JOB_)?NODELIST", text):
            self.variables.assign(name, self.variables.hosts())
            self.ledger.unnecessary(lines, "lists the nodes: the launcher gets them from Slurm")
        else:
            self.variables.assign(name, unknown(f"${name}"))
            self.ledger.not_understood(lines, "a value that is known only in the job")

    def declaration(self, node: Node, lines: range) -> None:
        """`export A=1 B=2`, `declare -x A=1`, `readonly A=1`, `local A=1`."""
        exported = bool(re.match(r"export\b|\w+\s+-\w*x", text_of(node))) or self.variables.exports_all
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child, range(child.start_point[0] + 1, child.end_point[0] + 2), exported=exported)
            elif child.type == "variable_name" and exported:
                value = self.variables.values.get(text_of(child))
                if isinstance(value, Value):
                    self._set(text_of(child), value, lines, exported=True)
            elif child.type not in {"word", "variable_name", "comment"} and exported:
                self.ledger.not_understood(lines, "exports what is known only in the job: write `export NAME=VALUE`")
        self.ledger.unnecessary([line for line in lines if line not in self.ledger.notes], "declares only")

    def pair(self, node: Node) -> tuple[str, Value | tuple[Value, ...]]:
        """The name and value of an assignment; of an array, its items."""
        name, value = text_of(node.child_by_field_name("name")), node.child_by_field_name("value")
        if value is None or value.type != "array":
            return name, self.variables.value(value) if value is not None else Value("")
        children = [child for child in value.named_children if child.type != "comment"]
        words = [word.value for child in children for word in self.variables.words(child)]
        return name, self.variables.hosts() if any("hosts" in word.uses for word in words) else tuple(words)

    def assign(self, node: Node, lines: range, *, exported: bool) -> None:
        """`NAME=VALUE`."""
        name, value = self.pair(node)
        if "[" in name:
            self.ledger.not_understood(lines, "sets an item of an array")
            return
        if text_of(node)[len(name) :].startswith("+="):
            before = self.variables.values.get(name, () if isinstance(value, tuple) else Value(""))
            if isinstance(value, Value) and isinstance(before, Value):
                value = before + value
            elif isinstance(value, tuple):
                value = (*(before if isinstance(before, tuple) else (before,)), *value)
        self._set(name, value, lines, exported=exported or name in self.variables.exported)

    def _set(self, name: str, value: Value | tuple[Value, ...], lines: range, *, exported: bool) -> None:
        if isinstance(value, tuple):
            self.variables.assign(name, value)
            self.ledger.unnecessary(lines, "its words are used below")
            return
        value = self._replaced(name, value)
        self.variables.assign(name, value)
        own = rf"\$\{{(?:env|shell)\.{re.escape(name)}\}}"
        why = _left_out(name, value, exported=exported)
        if exported:
            self.variables.exported.add(name)
            self.job.env.pop(name, None)
        if why:
            self.ledger.unnecessary(lines, why)
            self.job.left_out |= {name: why} if exported else {}
        elif exported and SECRET_NAME.search(name):
            self.job.add_secret(name)
            self.ledger.taken(lines, "secrets", why="its value is not copied: set it in your shell or in secrets.env")
        elif not value.known:
            self.ledger.not_understood(lines, f"{name} {value.why}")
        elif not exported:
            self.ledger.unnecessary(lines, "its value is used where the script uses it")
        elif front := re.fullmatch(rf"((?:(?!{own}).)+):{own}", value.text, re.DOTALL):
            self.job.prepend[name] = front[1]
            self.ledger.taken(lines, "site: env")
        elif re.search(own, value.text):
            self.ledger.not_understood(lines, f"extends {name}: use `prepend:` in the site profile's `env:`")
        else:
            self.job.env[name] = (value, lines[0])
            self.ledger.taken(lines, "site: env" if NETWORK.match(name) else f"env.{name}")

    def _replaced(self, name: str, value: Value) -> Value:
        """Secrets come from the job's environment; the master's address and port are ours, whatever is computed."""
        if SECRET_NAME.search(name):
            return Value(f"${{shell.{name}}}")
        if name == "MASTER_ADDR" or (_MASTER.match(name) and value.uses & {"master", "hosts"}):
            found = re.search(r"\}([A-Za-z0-9.-]+)\Z", value.text)
            if "master" in value.uses:
                self.job.suffix = found[1] if found else None
            return Value("${shell.MASTER_ADDR}", True, value.uses | {"master"})
        if name == "MASTER_PORT" or (_PORT.match(name) and not value.known):
            return Value("${shell.MASTER_PORT}", True, frozenset({"port"}))
        return value

    def unset(self, node: Node, lines: range) -> None:
        """`unset NAME`."""
        self.ledger.unnecessary(lines, "hpc-launch cleans the environment of the step")
        for child in find_all(node, "variable_name"):
            name = text_of(child)
            self.variables.values.pop(name, None)
            self.job.env.pop(name, None)
            if not name.startswith(("SLURM_", "SBATCH_", "SRUN_")):
                self.job.unset.append(name)
                self.ledger.taken(lines, f"env.{name}")

    def module(self, words: Sequence[Word], lines: range) -> None:
        """`module …` and Lmod's `ml …`."""
        rest = [word for word in words[1:] if not word.text.startswith("--")]
        verb, *names = [word.text for word in rest] or ["list"]
        if words[0].text == "ml" and verb not in _MODULE_VERBS:
            verb, names = "load", [verb, *names]
        removed = names if verb in {"unload", "rm", "del"} else names[:1] if verb in {"switch", "swap"} else []
        removed = [*removed, *(name[1:] for name in names if name.startswith("-"))]
        added = [name for name in names if name not in removed and not name.startswith("-")]
        if any(not word.value.known for word in rest):
            self.ledger.not_understood(lines, "a module whose name is known only in the job")
        elif verb in {"purge", "reset"}:
            force = "force-" if verb == "purge" and len(rest) < len(words) - 1 else ""
            self.job.software["modules"] = []
            self._prelude({"modules": f"{force}{verb}"}, lines)
        elif verb == "use":
            self._prelude({"module_use": added}, lines)
        elif _MODULE_VERBS.get(verb) == "loads":
            loaded = self.job.software.get("modules", [])
            kept = [name for name in loaded if verb in {"switch", "swap"} or name not in removed]
            self._software("modules", [*kept, *added], lines)
            if removed:
                self._prelude({"module_unload": removed}, lines)
        elif _MODULE_VERBS.get(verb) == "prints":
            self.ledger.unnecessary(lines, "prints only")
        else:
            self.ledger.not_understood(lines, f"`module {verb}`: list the modules that it loads")

    def _prelude(self, step: dict[str, Any], lines: range) -> None:
        self.job.prelude.append(step)
        self.ledger.taken(lines, "site: prelude")

    def _software(self, key: str, value: Any, lines: range) -> None:
        self.job.software[key] = value
        self.ledger.taken(lines, f"environment.{key}")

    def source(self, words: Sequence[Word], lines: range) -> None:
        """`source FILE` and `. FILE`."""
        path = words[1].text if len(words) > 1 and words[1].value.known else ""
        if os.path.basename(path) == "activate" and len(words) > 2:
            self._software("conda", words[2].text, lines)
        elif path in {"", "activate"}:
            self.ledger.not_understood(lines, "a file whose name is known only in the job")
        elif path.endswith("/bin/activate"):
            self._software("venv", path.removesuffix("/bin/activate"), lines)
        elif _SHELL_FILES.search(path):
            self.ledger.unnecessary(lines, "the job sets up its own shell: `environment.source` has what it needs")
        else:
            self._software("source", [*self.job.software.get("source", []), path], lines)
            if self.variables.exports_all:
                why = "`set -a` exports the file's variables: put `set -a` into the file, or use `env:`"
                self.ledger.not_understood(lines, why)

    def conda(self, words: Sequence[Word], lines: range) -> None:
        """`conda activate NAME`, and the same of mamba."""
        verb = words[1].text if len(words) > 1 else ""
        if verb == "activate" and len(words) > 2 and words[-1].value.known:
            self._software("conda", words[-1].text, lines)
        elif verb in {"activate", "init", "deactivate", "list", "info", "env"}:
            self.ledger.unnecessary(lines, "the job activates its own environment")
        else:
            self.ledger.not_understood(lines, f"`{words[0].text}`: run it once before submitting")

    def change_folder(self, words: Sequence[Word], lines: range) -> None:
        """`cd FOLDER`, `cd -`."""
        start, job = self.variables.folder, self.job
        before = job.workdir or start
        text = words[1].text if len(words) == 2 and words[1].value.known else ""
        text = job.last_folder or "" if text == "-" else text
        folder = text if text.startswith(("${", "~")) else os.path.normpath(os.path.join(before, text))
        if not text:
            self.ledger.not_understood(lines, "a folder that is known only in the job")
            return
        job.last_folder, job.workdir = before, None if folder == start else folder
        if folder == start:
            self.ledger.unnecessary(lines, "the training starts in the job file's folder")
        else:
            self.ledger.taken(lines, "workdir")

    def make_folder(self, words: Sequence[Word], lines: range) -> None:
        """`mkdir -p FOLDER`."""
        names = [word.text for word in words[1:] if not word.text.startswith("-")]
        if any(not word.value.known or "shell." in word.text for word in words):
            self.ledger.not_understood(lines, "a folder that is known only in the job")
        elif all(re.search(r"(^|/)(slurm[-_]?)?(logs?|out|err|output)/?\Z", name) for name in names):
            self.ledger.unnecessary(lines, "each run keeps its logs in its own folder")
        else:
            self._prelude({"mkdir": names}, lines)

    def limit(self, words: Sequence[Word], lines: range) -> None:
        """`ulimit -s unlimited`."""
        match = re.fullmatch(r"-[SH]?([slnuc]) (\d+|unlimited)", " ".join(word.text for word in words[1:]))
        if match:
            self._prelude({"ulimit": {_LIMITS[match[1]]: match[2]}}, lines)
        else:
            self.ledger.not_understood(lines, "a limit that is not known here")


def _left_out(name: str, value: Value, *, exported: bool) -> str:
    """Why neither the job nor a value in it needs a variable; empty if one does."""
    if name in {"IFS", "PS4", "OLDPWD"} or value.text in {"$!", "$?", "$$"}:
        return "a setting of the old shell"
    if name in RENDEZVOUS or name.startswith("TORCHELASTIC_") or (value.uses & {"master", "port"}):
        return "the rendezvous: hpc-launch chooses the address and a free port"
    if exported and name in DEBUGGING:
        return NOT_NEEDED
    if exported and name.startswith(("SLURM_", "SBATCH_")):
        return "Slurm's own variables are set by Slurm"
    if value.uses & {"hosts", "rank"}:
        return "the launcher gets the nodes and the ranks from Slurm"
    if _LAUNCH_ONLY.match(name) and (exported or not value.known):
        return "a count for the old launch line: the training reads WORLD_SIZE and LOCAL_WORLD_SIZE"
    return ""
