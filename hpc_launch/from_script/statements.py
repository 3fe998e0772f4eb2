"""Walk through the statements of a script as bash would, without running any: what each line is for."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Sequence
from functools import partial

from hpc_launch.from_script.launch_line import Unwrapper
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.script_text import (
    Ledger,
    LineAccount,
    Node,
    Value,
    Word,
    find_all,
    lines_of,
    parse,
    small_script,
    text_of,
    unknown,
)
from hpc_launch.from_script.settings import REDIRECTS, Settings
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.variables import Variables, shell_text

DEEPEST_NESTING = 4
MOST_CALLS = 200
_LAUNCHES = re.compile(
    r"(srun|ibrun|mpirun|mpiexec(\.hydra)?|orterun|torchrun|deepspeed|accelerate|apptainer|singularity|python[\d.]*|"
    r"bash|sh|exec|time|nohup|env|stdbuf|numactl|timeout|.*\.(sh|py))\Z"
)
_PRINTS = frozenset(
    "echo clear printf date hostname pwd nvidia-smi rocm-smi xpu-smi env printenv which ls nproc free lscpu sinfo "
    "squeue sacct sstat seff true : tput id whoami df du head tail uptime uname cat type nvcc gcc ibstat "
    "ibv_devinfo basename dirname lspci ldd sprio scontrol wc grep lstopo hwloc-ls".split()
)
_READS = frozenset({"read", "mapfile", "readarray"})
_FILTERS = frozenset("tee awk sed sort cut tr uniq bc column fold paste rev egrep fgrep more less nl xxd jq".split())
_PREPARES = frozenset("mkdir cp rsync tar rm sbcast dcgmi pip".split())
_SHELL_STATE = frozenset("wait sleep exit trap shopt set return hash".split())
_HOST_FILE = re.compile(r"scontrol\s+show\s+hostname|slots=|host_?file|machine_?file|nodefile", re.IGNORECASE)


class Reader(Settings):
    """Reads statements into an OldJob, and every line's account into the ledger.

    Args: base: the folder in which local shell files are.
    """

    def __init__(self, request: Request, variables: Variables, ledger: Ledger, base: str) -> None:
        super().__init__(request, variables, ledger)
        self.base = base
        self.outer: OldLaunch | None = None
        """The launch line whose text is read."""
        self.followed: dict[str, tuple[LineAccount, ...]] = {}
        self.depth = 0
        self.functions: dict[str, Node] = {}
        self.called: list[str] = []
        self.calling: list[str] = []

    def script(self, root: Node) -> None:
        """All statements of a script."""
        self.functions = {
            text_of(node.child_by_field_name("name")): node
            for node in root.named_children
            if node.type == "function_definition"
        }
        self.statements(root.named_children)
        for name in self.functions.keys() - self.called:
            self.ledger.unnecessary(lines_of(self.functions[name]), "a function that is not called")

    def statements(self, nodes: Sequence[Node]) -> None:
        """Statements in order."""
        for node in nodes:
            self.statement(node)

    def statement(self, node: Node) -> None:
        """One statement of any kind. A kind that is not handled is not understood."""
        lines, kind = lines_of(node), node.type
        if kind == "comment":
            self.ledger.unnecessary([line for line in lines if line not in self.ledger.notes], "a comment")
        elif kind == "function_definition":
            if text_of(node.child_by_field_name("name")) not in self.functions:
                self.ledger.not_understood(lines, "a function inside a command")
        elif node.has_error:
            self.ledger.not_understood(lines, "bash would refuse this, or it is not read here")
        elif kind == "list":
            self._list(node)
        elif kind in {"pipeline", "redirected_statement"}:
            self._redirected(node, lines)
        elif kind == "command":
            self._command(node, lines, text_of(node))
        elif kind == "declaration_command":
            self.declaration(node, lines)
        elif kind in {"variable_assignment", "variable_assignments"}:
            for child in [node] if kind == "variable_assignment" else node.named_children:
                self.assign(child, lines, exported=self.variables.exports_all)
        elif kind == "unset_command":
            self.unset(node, lines)
        elif kind == "subshell":
            self._subshell(node, lines)
        elif kind in {"compound_statement", "negated_command"}:
            self.ledger.unnecessary(lines, "groups commands")
            self.statements(node.named_children)
        elif kind == "if_statement":
            condition, *rest = node.named_children
            branches = [child for child in rest if child.type in {"elif_clause", "else_clause"}]
            body = [child for child in rest if child not in branches]
            other = [child for branch in branches for child in branch.named_children]
            self.ledger.unnecessary(lines, "a condition")
            self._branch(node if branches[1:] else condition, body, other)
        elif kind in {"for_statement", "c_style_for_statement"}:
            self._loop(node, lines)
        elif kind in {"while_statement", "case_statement"}:
            for assignment in find_all(node, "variable_assignment"):
                name = text_of(assignment.child_by_field_name("name"))
                self.variables.assign(name, unknown(f"${name}"))
            self.ledger.not_understood(lines, "depends on what the job finds when it runs")
        elif kind == "test_command":
            self.ledger.unnecessary(lines, "tests only")
        else:
            self.ledger.not_understood(lines, "not read here")

    def _aside(self, nodes: Sequence[Node], text: str = "") -> Reader:
        """What statements do whose effect may not last. `text`: of another script, which they are in."""
        inner = Reader(self.request, self.variables.copy(), Ledger(text.split("\n")), self.base)
        inner.functions, inner.called, inner.calling = self.functions, self.called, self.calling
        inner.job.workdir, inner.outer, inner.depth = self.job.workdir, self.outer, self.depth
        inner.statements(nodes)
        return inner

    def _doubtful(self, nodes: Sequence[Node]) -> None:
        """Statements behind a condition that only the job knows: those that do something need a decision."""
        for node in nodes:
            inner = self._aside([node])
            for name, value in inner.variables.values.items():
                if value != self.variables.values.get(name):  # the rendezvous is ours in any case
                    ours = isinstance(value, Value) and value.uses & {"master", "port", "hosts", "rank"}
                    self.variables.assign(name, value if ours else unknown(f"${name}"))
            if inner.job.launches or any(note.outcome != "unnecessary" for note in inner.ledger.notes.values()):
                self.ledger.not_understood(lines_of(node), "depends on a condition that is known only in the job")
            else:
                self.ledger.unnecessary(lines_of(node), "prints, tests or ends only")

    def _list(self, node: Node) -> None:
        """`A && B`, `A || B`: what follows `||` is for a failure."""
        first, *others = node.named_children
        self.statement(first)
        for child in others:
            either = text_of(child.prev_sibling) == "||"
            if first.type == "test_command":
                self._branch(first, [] if either else [child], [child] if either else [])
            elif either:
                self.ledger.unnecessary(lines_of(child), "hpc-launch reports a step that fails")
            else:
                self.statement(child)

    def _branch(self, condition: Node, body: Sequence[Node], other: Sequence[Node]) -> None:
        """Statements behind a condition: the branch that the script's own text decides, else nothing is guessed."""
        truth = self.variables.truth(condition)
        if truth is None:
            self._doubtful([*body, *other])
            return
        self.statements(body if truth else other)
        for node in other if truth else body:
            self.ledger.unnecessary(lines_of(node), "the condition is decided by the script itself")

    def _subshell(self, node: Node, lines: range) -> None:
        """`( … )`: what it sets up counts if it starts the training; otherwise that ends with it."""
        inner = self._aside(node.named_children)
        self.ledger.unnecessary(lines, "groups commands")
        if inner.job.launches:
            self.statements(node.named_children)
            return
        for line, note in inner.ledger.notes.items():
            if note.outcome == "not_understood":
                self.ledger.not_understood([line], "; ".join(note.reasons))

    def _loop(self, node: Node, lines: range) -> None:
        """A loop that starts one launcher on each node is one launch on all of them; others are not understood."""
        body = next(child for child in node.named_children if child.type == "do_group")
        count = len(self.job.launches)
        if counter := re.match(r"for\s*\(*\s*(\w+)", text_of(node)):
            self.variables.assign(counter[1], unknown(f"${counter[1]}"))
        self.statements(body.named_children)
        why = "repeats the lines in it"
        for launch in self.job.launches[count:]:
            if launch.one_node or (launch.nodes == 1 and launch.by_srun and launch.launcher != "srun"):
                launch.one_node, launch.nodes, launch.tasks = True, None, None
                why = "a loop over the nodes: the step starts one launcher on each"
            else:
                launch.doubts.append((launch.lines[0], "in a loop: a job file starts one program, with `sweep:` many"))
        self.ledger.unnecessary(lines, why)

    def _redirected(self, node: Node, lines: range) -> None:
        """A command with its redirections and pipes."""
        inner, rest = node, []
        while inner.type in {"pipeline", "redirected_statement"}:
            rest += inner.named_children[1:]
            inner = inner.named_children[0]
        if inner.type != "command":
            self.statement(inner)
            self.ledger.unnecessary(lines, "redirects output")
            return
        name, text = self._name(inner), text_of(node)
        piped = [
            one for child in rest for one in find_all(child, "command") if one.parent.type != "command_substitution"
        ]
        names = [*map(self._name, piped), *(child.type for child in rest if child.type == "while_statement")]
        files = [text_of(one) for child in rest for one in find_all(child, "file_redirect")]
        if name in _PRINTS and (more := [one for one in names if one not in _PRINTS | _FILTERS]):
            self.ledger.not_understood(lines, f"pipes into `{more[0]}`")
        elif name in _PRINTS and any(map(_writes, [*files, *map(text_of, piped)])):
            if self.variables.uses(text) & {"hosts", "master"} or _HOST_FILE.search(text):
                self.ledger.unnecessary(lines, "a host file: the launcher gets the nodes from Slurm")
            else:
                self.ledger.not_understood(lines, "writes a file: write it once before submitting")
        elif name not in _READS and any(re.match(r"\d*<(?![<&(])(?!\s*/dev/null)", file) for file in files):
            self.ledger.not_understood(lines, "reads a file as its input")
        elif name.startswith("python") and any(child.type.startswith("here") for child in rest):
            self.ledger.not_understood(lines, "a program in the script: put it into a file")
        else:
            self._command(inner, lines, text)

    def _name(self, node: Node) -> str:
        """The first word of a command, without its folder."""
        words = self.words(node.child_by_field_name("name"))
        return os.path.basename(words[0].text) if words else ""

    def _command(self, node: Node, lines: range, whole: str) -> None:
        """A command. `whole`: its text with redirections and pipes."""
        words, text = self.words(node), text_of(node)
        name = os.path.basename(words[0].text) if words else ""
        handlers = {
            "module": self.module, "ml": self.module, "source": self.source, ".": self.source,
            "conda": self.conda, "mamba": self.conda, "micromamba": self.conda,
            "cd": self.change_folder, "mkdir": self.make_folder, "ulimit": self.limit,
        }  # fmt: skip
        if name in _READS or (text.startswith("printf -v") and len(words) > 2):
            self.reads(words, whole, lines)
        elif name in self.functions and name not in self.calling and len(self.called) < MOST_CALLS:
            self._call(name, words, lines)
        elif name in handlers:
            handlers[name](words, lines)
        elif name == "set" and any(word.text in {"-a", "+a", "allexport"} for word in words):
            self.variables.exports_all = any(word.text in {"-a", "-o"} for word in words)
            self.ledger.unnecessary(lines, "which variables are exported is followed here")
        elif name in _SHELL_STATE:
            self.ledger.unnecessary(lines, "for the old shell: hpc-launch waits for the training and continues the run")
        elif name == "eval" and re.search(r"(conda|mamba)['\"]?\s+(shell\.\w+\s+hook|shell\s+hook)", text):
            self.ledger.unnecessary(lines, "the job sets conda up itself")
        elif re.search(r"\b(wandb\s+login|huggingface-cli\s+login|hf\s+auth\s+login)\b", text):
            self.ledger.not_understood(lines, "a login: name the variable in `secrets:` and set it in your shell")
        elif not words or (name in _PRINTS and (name != "env" or len(words) == 1)):
            self.ledger.unnecessary(lines, "prints only")
        elif _LAUNCHES.match(name) or words[0].text.startswith(("./", "$")):
            self._launch(node, words, lines)
        else:
            self.ledger.not_understood(lines, f"`{name}`: run it once before submitting, or in the training")

    def _call(self, name: str, words: Sequence[Word], lines: range) -> None:
        """The body of a function, read where it is called."""
        self.called.append(name)
        self.calling.append(name)
        function, before = self.functions[name], self.variables.parameters
        self.ledger.unnecessary(lines, f"calls `{name}`")
        self.ledger.unnecessary(lines_of(function), f"the function `{name}`")
        self.variables.parameters = tuple(word.value for word in words[1:])
        self.statements(function.child_by_field_name("body").named_children)
        self.variables.parameters = before
        self.calling.remove(name)

    def _launch(self, node: Node, words: Sequence[Word], lines: range) -> None:
        launch = copy.deepcopy(self.outer) if self.outer is not None else OldLaunch(lines, workdir=self.job.workdir)
        launch.lines, launch.job_env = lines, dict(self.job.env)
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self.pair(child)
                if isinstance(value, Value):
                    launch.env[name] = value
                    launch.keys.append("env")
            elif child.type in REDIRECTS and text_of(child).startswith("<"):
                launch.doubts.append((child.start_point[0] + 1, "reads input: a job file gives a program none"))
        opened = [line for line in self.variables.left_open if line in lines]
        launch.doubts += [(line, "arguments of the script: add them to `args:`") for line in opened]
        Unwrapper(launch, self.request, self.variables.folder, partial(self._nested, launch)).unwrap(words)
        helper = os.path.basename(launch.words[0].text) if launch.words and launch.program == "command" else ""
        if helper in _PRINTS:
            self.ledger.unnecessary(lines, "prints only")
        elif helper in _PREPARES:
            self.ledger.not_understood(lines, f"`{helper}` on each node: a step of the site profile's `prelude:`")
        else:
            self.job.launches.append(launch)

    def _nested(self, launch: OldLaunch, word: Word, rest: Sequence[Word], is_text: bool) -> bool:
        """Read the text of `bash -c`, or a local shell file, into the launch. False if it does more than set variables
        and start one program that is the same in each process, so that the command stays."""
        text = shell_text(word.text) if is_text else None
        if not is_text and "${" not in word.text:
            text = small_script(os.path.join(self.base, self.job.workdir or "", word.text))
        root = parse(text) if text is not None and self.depth < DEEPEST_NESTING else None
        if text is None or root is None or root.has_error:
            return False
        outer, parameters = self.outer, self.variables.parameters
        self.outer = dataclasses.replace(launch, env={}, doubts=[], keys=[])
        self.variables.parameters = tuple(one.value for one in rest[is_text:])  # after a TEXT, the first is $0
        self.depth += 1
        inner = self._aside(root.named_children, text)
        self.depth -= 1
        self.outer, self.variables.parameters = outer, parameters
        job, ledger = inner.job, inner.ledger
        if len(job.launches) != 1 or job.prelude or job.prepend or job.unset or job.secrets:
            return False
        found = job.launches[0]
        values = [word.value for word in (*found.words, *found.arguments)]
        values += [*found.env.values(), *(value for value, _ in job.env.values())]
        others = [one for one in ledger.accounts() if one.line not in found.lines or one.line in ledger.notes]
        doubts = found.doubts or any(one.outcome == "not_understood" for one in others)
        if doubts or job.workdir != self.job.workdir or any("rank" in value.uses for value in values):
            return False
        if is_text and "parameter" in word.value.uses:
            found.doubt(word, "arguments of the script: add them to `args:`")
        if not is_text:
            ledger.taken(found.lines, *dict.fromkeys(found.keys))
            self.followed[word.text] = ledger.accounts()
        self.job.software |= job.software
        self.job.env |= job.env
        self.job.left_out |= job.left_out
        found.env, found.lines = launch.env | found.env, launch.lines
        found.doubts, found.keys = launch.doubts + found.doubts, launch.keys + found.keys
        vars(launch).update(vars(found) | {"job_env": launch.job_env | found.job_env})
        return True


def _writes(text: str) -> bool:
    """Whether a redirection, or a `tee`, writes a file that is no log."""
    if text.startswith("tee "):
        return not re.search(r"log|/dev/|\.(out|err|txt)\b", text.rsplit(maxsplit=1)[-1], re.IGNORECASE)
    return re.match(r"[\d&]*>>?\s*[^&\s]", text) is not None and "/dev/" not in text
