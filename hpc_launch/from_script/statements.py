"""Walk through the statements of a script as bash would, without running any: what each line is for."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.from_script.launch_line import Unwrapper
from hpc_launch.from_script.old_job import OldLaunch, role_name, with_roles
from hpc_launch.from_script.script_text import (
    NOT_KNOWN,
    Ledger,
    LineAccount,
    Node,
    Value,
    Word,
    find_all,
    lines_of,
    old_words,
    parse,
    read_script,
    text_of,
    unknown,
)
from hpc_launch.from_script.settings import REDIRECTS, Settings
from hpc_launch.from_script.variables import HOSTS, RENDEZVOUS, is_known, shell_text

_LAUNCHES = re.compile(
    r"(srun|ibrun|mpirun|mpiexec(\.hydra)?|orterun|torchrun|deepspeed|accelerate|apptainer|singularity|python[\d.]*|"
    r"bash|sh|exec|time|nohup|env|stdbuf|numactl|timeout|.*\.(sh|py))\Z"
)
_PRINTS = old_words().prints
_GPUS = re.compile(r"\$\{?(SLURM_(JOB|STEP)_GPUS|CUDA_VISIBLE_DEVICES)\b")
_READS = frozenset({"read", "mapfile", "readarray"})
_FILTERS = frozenset("tee awk sed sort cut tr uniq bc column fold paste rev egrep fgrep more less nl xxd jq".split())
_SHELL_STATE = frozenset("wait sleep exit trap shopt set return hash".split())
_LOG_FOLDER = re.compile(r"^-|(^|/)(slurm[-_]?)?(logs?|out|err|output)/?$")
_STARTS = re.compile(r"(srun|ibrun|mpirun|mpiexec(\.hydra)?|orterun|torchrun|deepspeed|accelerate|python[\d.]*)\Z")


class Reader(Settings):
    """Reads statements into an OldJob, and every line's account into the ledger."""

    def script(self, root: Node) -> None:
        """All statements of a script."""
        functions = [node for node in root.named_children if node.type == "function_definition"]
        self.followed: dict[str, tuple[LineAccount, ...]] = {}
        self.functions = {text_of(node.child_by_field_name("name")): node for node in functions}
        self.uncalled = {*self.functions}
        self.statements(root.named_children)
        for name in self.uncalled:
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
        elif kind == "function_definition" and text_of(node.child_by_field_name("name")) in self.functions:
            pass  # its account is that of its call
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
                self.assign(child, lines, exported=False)
        elif kind == "unset_command":
            self.unset(node, lines)
        elif kind in {"compound_statement", "negated_command"} or (kind == "subshell" and self._starts(node)):
            self.ledger.unnecessary(lines, "groups commands")
            self.statements(node.named_children)
        elif kind in {"for_statement", "c_style_for_statement"}:
            self._loop(node, lines)
        elif kind == "if_statement" and any(map(_is_server, find_all(node, "command"))):
            self.ledger.unnecessary(lines, "groups commands")
            condition, *body = node.named_children
            self.statements(body)
            self.ledger.not_understood(
                lines_of(condition), "read as if it held; remove the role below where it does not"
            )
        elif kind in {"if_statement", "subshell"}:
            self.ledger.unnecessary(lines, "groups commands")
            for child in node.named_children:
                self._uncertain(child, lasts=kind == "if_statement")
        else:
            self._uncertain(node)

    def _starts(self, node: Node) -> bool:
        return any(_STARTS.match(self._name(command)) for command in find_all(node, "command"))

    def _uncertain(self, node: Node, *, lasts: bool = True) -> None:
        """A statement behind a condition, which only the job can decide: unless it only prints, tests or ends, a person
        has to. `lasts`: whether what it assigns does."""
        if node.type in {"if_statement", "elif_clause", "else_clause"}:
            for child in node.named_children:
                self._uncertain(child, lasts=lasts)
            return
        names = {self._name(command) for command in find_all(node, "command")}
        for name in names & self.functions.keys():
            self.ledger.not_understood(lines_of(self.functions[name]), "called behind a condition")
        quiet = names <= _PRINTS | _SHELL_STATE | {"[", "test"} and not any(map(_writes, _redirects(node)))
        assigned = {text_of(one.child_by_field_name("name")) for one in find_all(node, "variable_assignment")} - {"IFS"}
        hosts = all((value := self.variables.lookup(name)) and value.hosts for name in assigned)
        hosts = hosts and bool(assigned or names & _READS) and self.variables.shown(text_of(node)).hosts
        if lasts:
            self.forget(node)
        if quiet and not ((assigned or any(find_all(node, "unset_command"))) and lasts):
            self.ledger.unnecessary(lines_of(node), "prints, tests or ends only")
        elif hosts and names <= _PRINTS | _READS | {"[", "test"}:
            self.ledger.unnecessary(lines_of(node), "looks for the address of a node")
        else:
            self.ledger.not_understood(lines_of(node), "depends on what is known only in the job")

    def _list(self, node: Node) -> None:
        """`A && B`, `A || B`: what follows a test or `||` depends on it."""
        first, *others = node.named_children
        self.statement(first)
        tests = any(find_all(node, "test_command"))
        for child in others:
            if tests or text_of(child.prev_sibling) == "||":
                self._uncertain(child)
            else:
                self.statement(child)

    def _loop(self, node: Node, lines: range) -> None:
        """A loop that starts one launcher on each node is one launch on all of them; others are not understood."""
        body = next(child for child in node.named_children if child.type == "do_group")
        count = len(self.job.launches)
        if counter := re.match(r"for\s*\(*\s*(\w+)", text_of(node)):
            self.variables.assign(counter[1], unknown(f"${counter[1]}"))
        self.forget(node)
        self.statements(body.named_children)
        for launch in self.job.launches[count:]:
            if launch.of_ray:
                continue
            if launch.one_node or (launch.nodes == 1 and launch.by_srun and launch.launcher != "srun"):
                launch.one_node, launch.nodes, launch.tasks = True, None, None
            else:
                launch.doubts.append((launch.lines[0], "in a loop: a job file starts one program, with `sweep:` many"))
        self.ledger.unnecessary(lines, "a loop over the nodes, or over lines that have their own account")

    def _redirected(self, node: Node, lines: range) -> None:
        """A command with its redirections and pipes, of which the first may start the training."""
        inner, text = node, text_of(node)
        while inner.type in {"pipeline", "redirected_statement"}:
            inner = inner.named_children[0]
        commands = [one for one in find_all(node, "command") if one.parent.type != "command_substitution"]
        names = [self._name(command) for command in commands]
        written = [*_redirects(node), *map(text_of, commands)]
        if inner.type != "command" or names[0] not in _PRINTS:
            self._command(inner, lines, text) if inner.type == "command" else self.statement(inner)
            self.ledger.unnecessary(lines, "redirects output")
            given = any(re.match(r"\d*<(?!&|\s*/dev/null)", one) for one in written)
            if given and not _READS & {*names}:
                self.ledger.not_understood(lines, "reads a file or text as its input")
        elif all(name in _PRINTS | _FILTERS for name in names) and (
            not any(map(_writes, written)) or HOSTS.search(text)
        ):
            self.ledger.unnecessary(lines, "prints only, or lists the nodes")
        else:
            self.forget(node)
            self.ledger.not_understood(lines, "writes a file, or pipes into a command: do it once before submitting")

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
            "cd": self.change_folder,
        }  # fmt: skip
        if name in _READS and _GPUS.search(whole) and self.request.gpus_per_node:
            self.variables.assign(words[-1].text, (unknown("a GPU"),) * self.request.gpus_per_node)
            self.ledger.unnecessary(lines, "lists the GPUs: their number is that of the request")
        elif name in _READS or "printf -v" in text:
            for word in words[1:]:
                self.variables.assign(word.text, unknown(f"${word.text}", hosts=HOSTS.search(whole) is not None))
            if HOSTS.search(whole):
                self.ledger.unnecessary(lines, "lists the nodes: the launcher gets them from Slurm")
            else:
                self.ledger.not_understood(lines, f"`{words[-1].text}` {NOT_KNOWN}")
        elif name in self.uncalled:  # the body is read where it is called first; a second call is not understood
            self.uncalled.remove(name)
            before, self.variables.parameters = self.variables.parameters, tuple(word.value for word in words[1:])
            self.ledger.unnecessary([*lines, *lines_of(self.functions[name])], f"the function `{name}`")
            self.statements(self.functions[name].child_by_field_name("body").named_children)
            self.variables.parameters = before
        elif name in handlers and name not in self.functions:
            handlers[name](words, lines)
        elif name == "set" and any(word.text in {"-a", "allexport"} for word in words):
            self.ledger.not_understood(lines, "exports what follows: write `export` before each variable")
        elif name == "mkdir" and all(_LOG_FOLDER.search(word.text) for word in words[1:]):
            self.ledger.unnecessary(lines, "each run keeps its logs in its own folder")
        elif name in _SHELL_STATE:
            self.ledger.unnecessary(lines, "for the old shell: hpc-launch waits for the training and continues the run")
        elif not words or (name in _PRINTS and (name != "env" or len(words) == 1)):
            self.ledger.unnecessary(lines, "prints only")
        elif name not in self.functions and (_LAUNCHES.match(name) or words[0].text.startswith(("./", "$"))):
            self._launch(node, lines)
        else:
            if name in self.functions:
                self.forget(self.functions[name])
            self.ledger.not_understood(lines, f"`{name}`: run it before submitting, or in the training")

    def _launch(self, node: Node, lines: range) -> None:
        launch = OldLaunch(lines, workdir=self.job.workdir, job_env=dict(self.job.env))
        launch.background = _in_background(node)
        self._unwrap(node, Unwrapper(launch, self.request, self.variables.folder, self._nested))
        helper = os.path.basename(launch.words[0].text) if launch.words and launch.program == "command" else ""
        if helper in _PRINTS:
            self.ledger.unnecessary(lines, "prints only")
        else:
            self.job.launches.append(launch)
            launch.role = role_name(launch, [one.role for one in self.job.launches])
            if launch.background and launch.one_node and launch.place and not launch.of_ray:
                self.job.places.setdefault(launch.place, launch.role)

    def _unwrap(self, node: Node, unwrapper: Unwrapper) -> None:
        """A launch line with the assignments before it."""
        launch = unwrapper.launch
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self.pair(child)
                launch.env[name] = value if isinstance(value, Value) else unknown(f"${name}")
            elif child.type in REDIRECTS and text_of(child).startswith("<"):
                launch.doubts.append((child.start_point[0] + 1, "reads input: a job file gives a program none"))
        words = self.words(node)
        given = [word for word in words if word.text in {"$@", "$${@}", "$*"} and not word.value.known]
        launch.doubts += [(word.line, "arguments of the script: add them to `args:`") for word in given]
        unwrapper.unwrap([word for word in words if word not in given])

    def _nested(self, outer: Unwrapper, word: Word, rest: Sequence[Word], is_text: bool) -> bool:
        """Read the text of `bash -c`, or a local shell file, into the launch. False if it does more than set variables
        and start one program that is the same in each process, so that the command stays."""
        file = Path(self.variables.variable("PWD").text, word.text)
        try:
            text = shell_text(word.text) if is_text else read_script(file)
        except UsageError:
            return False
        root = parse(text)
        nodes = [one for one in root.named_children if one.type != "comment"]
        kinds = {node.type for node in nodes[:-1]} - {"declaration_command", "variable_assignment"}
        if root.has_error or not nodes or nodes[-1].type != "command" or kinds or not self._starts(nodes[-1]):
            return False
        before, launch = self.variables, copy.deepcopy(outer.launch)
        self.variables = copy.copy(before)
        self.variables.values = dict(before.values)
        if word.value.known:  # after a TEXT, the first is $0
            self.variables.parameters = tuple(one.value for one in rest[is_text:])
        for assignment in (one for node in nodes[:-1] for one in find_all(node, "variable_assignment")):
            name, value = self.pair(assignment)
            self.variables.assign(name, value)
            if assignment.parent.type == "declaration_command" and isinstance(value, Value) and name not in RENDEZVOUS:
                launch.env[name] = value
        self._unwrap(nodes[-1], Unwrapper(launch, self.request, self.variables.folder, lambda *_: False))
        self.variables = before
        values = [*(word.value for word in (*launch.words, *launch.arguments)), *launch.env.values()]
        if not all(value.known or is_known(with_roles(value.text, self.job.places)) for value in values):
            return False
        launch.doubts = [(line if line in launch.lines else word.line, why) for line, why in launch.doubts]
        if not is_text:
            ledger = Ledger(text.split("\n"))
            ledger.taken(range(1, text.count("\n") + 2), *launch.keys)
            self.followed[word.text] = ledger.accounts()
        vars(outer.launch).update(vars(launch))
        return True


def _in_background(node: Node) -> bool:
    """Whether `&` follows a command, with its redirections and pipes."""
    while node.parent is not None and node.parent.type in {"pipeline", "redirected_statement"}:
        node = node.parent
    return text_of(node.next_sibling) == "&"


def _is_server(command: Node) -> bool:
    """Whether a step on nodes of its own goes on in the background."""
    return re.match(r"(?s)srun\b.*\s(-w|--nodelist)\b", text_of(command)) is not None and _in_background(command)


def _redirects(node: Node) -> list[str]:
    return [text_of(one) for kind in REDIRECTS for one in find_all(node, kind)]


def _writes(text: str) -> bool:
    """Whether a redirection, or a `tee`, writes a file that is no log."""
    if text.startswith("tee "):
        return not re.search(r"log|/dev/|\.(out|err|txt)\b", text.rsplit(maxsplit=1)[-1], re.IGNORECASE)
    return re.match(r"[\d&]*>>?\s*[^&\s]", text) is not None and "/dev/" not in text
