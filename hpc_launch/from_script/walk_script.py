"""Walk through the statements of a script as bash would, without running any: what each line is for."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hpc_launch.from_script import plain_commands, shell_blocks, shell_groups, shell_lines, software_lines
from hpc_launch.from_script.assignments import Assignments
from hpc_launch.from_script.launch_words import Unwrapper
from hpc_launch.from_script.line_accounts import Ledger, LineAccount
from hpc_launch.from_script.nested_text import read_nested
from hpc_launch.from_script.old_job import OldJob, OldLaunch
from hpc_launch.from_script.request import Request
from hpc_launch.from_script.scope import Scope
from hpc_launch.from_script.shell_tree import Node, depth_is_bounded, lines_of, parse, text_of
from hpc_launch.from_script.values import Value, Word, unknown

_LAUNCHES = re.compile(
    r"(srun|ibrun|mpirun|mpiexec(\.hydra)?|orterun|torchrun|deepspeed|accelerate|apptainer|singularity|python[\d.]*|"
    r"bash|sh|exec|time|nohup|env|stdbuf|numactl|timeout)\Z"
)
DEEPEST_NESTING = 4


class Walker:
    """Reads statements into an OldJob, and every line's account into the ledger."""

    def __init__(self, request: Request, scope: Scope, ledger: Ledger, job: OldJob, base: str) -> None:
        self.request = request
        self.scope = scope
        self.ledger = ledger
        self.job = job
        self.base = base
        self.assignments = Assignments(scope, job, ledger)
        self.unwrapper = Unwrapper(request, scope.folder, self._nested)
        self.followed: dict[str, tuple[LineAccount, ...]] = {}
        self.fits = True
        """Whether bash would accept the text."""
        self.in_call: set[str] = set()
        self.called: set[str] = set()

    def script(self, root: Node) -> None:
        """All statements of a script."""
        for node in root.named_children:
            if node.type == "function_definition":
                name = node.child_by_field_name("name")
                self.scope.functions[text_of(name)] = node
        self.statements(root.named_children)
        for name, node in self.scope.functions.items():
            if name not in self.called:
                self.ledger.unnecessary(lines_of(node), "a function that is not called")

    def statements(self, nodes: Sequence[Node]) -> None:
        """Statements in order."""
        for node in nodes:
            self.statement(node)

    def statement(self, node: Node) -> None:
        """One statement of any kind. A kind that is not handled is not understood."""
        lines, kind = lines_of(node), node.type
        if kind == "comment":
            for line in lines:
                if not self.ledger.known(line):
                    self.ledger.unnecessary([line], "a comment")
        elif kind == "function_definition":
            if text_of(node.child_by_field_name("name")) not in self.scope.functions:
                self.ledger.not_understood(lines, "a function inside a command")
        elif node.has_error:
            self.ledger.not_understood(lines, "bash would refuse this, or it is not read here")
        elif kind in {"list", "program"}:
            shell_groups.listed(self, node)
        elif kind in {"pipeline", "redirected_statement"}:
            shell_groups.piped(self, node)
        elif kind == "command":
            self.command(node, lines)
        elif kind == "declaration_command":
            self.assignments.declaration(node, lines)
        elif kind == "variable_assignment":
            self.assignments.assign(node, lines, exported=self.scope.exports_all)
        elif kind == "variable_assignments":
            for child in node.named_children:
                self.assignments.assign(child, lines, exported=self.scope.exports_all)
        elif kind == "unset_command":
            self.assignments.unset(node, lines)
        elif kind == "subshell":
            shell_groups.subshell(self, node, lines)
        elif kind in {"compound_statement", "do_group"}:
            self.ledger.unnecessary(lines, "groups commands")
            self.statements(node.named_children)
        elif kind == "if_statement":
            shell_blocks.condition(self, node, lines)
        elif kind in {"for_statement", "c_style_for_statement"}:
            shell_blocks.loop(self, node, lines)
        elif kind in {"while_statement", "case_statement"}:
            shell_blocks.forget(self, node)
            self.ledger.not_understood(lines, "depends on what the job finds when it runs")
        elif kind == "negated_command":
            self.statements(node.named_children)
        elif kind == "test_command":
            self.ledger.unnecessary(lines, "tests only")
        else:
            self.ledger.not_understood(lines, "not read here")

    def name(self, node: Node) -> str:
        """The first word of a command."""
        name = node.child_by_field_name("name")
        words = self.scope.words(name.named_children[0]) if name is not None and name.named_children else []
        return words[0].text if words else text_of(name) if name is not None else ""

    def _words(self, node: Node) -> list[Word]:
        words: list[Word] = []
        for child in node.named_children:
            if child.type == "command_name":
                words += self.scope.words(child.named_children[0] if child.named_children else child)
            elif child.type not in {"variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect"}:
                words += self.scope.words(child)
        return words

    def command(self, node: Node, lines: range) -> None:
        """A command without redirections."""
        words = self._words(node)
        if not words:
            self.ledger.unnecessary(lines, "an empty command")
            return
        name = os.path.basename(words[0].text)
        text = text_of(node)
        if name in {"read", "mapfile", "readarray"}:
            shell_lines.reads(self, node, node, lines)
        elif name in self.scope.functions and name not in self.in_call:
            self._call(name, words, lines)
        elif name in {"module", "ml"}:
            software_lines.module(self.job, words, lines, self.ledger)
        elif name in {"source", "."}:
            software_lines.source(self.job, words, lines, self.ledger, exports=self.scope.exports_all)
        elif name in {"conda", "mamba", "micromamba"}:
            software_lines.conda(self.job, words, lines, self.ledger)
        elif name == "eval":
            hook = re.search(r"(conda|mamba)['\"]?\s+(shell\.\w+\s+hook|shell\s+hook)", text)
            if hook:
                self.ledger.unnecessary(lines, "the job sets conda up itself")
            else:
                self.ledger.not_understood(lines, "`eval` runs text that is known only in the job")
        elif name == "set" and any(word.text in {"-a", "+a", "allexport"} for word in words[1:]):
            self.scope.exports_all = any(word.text == "-a" for word in words) or "-o" in text.split()
            self.ledger.unnecessary(lines, "which variables are exported is followed here")
        elif name in plain_commands.SHELL_STATE:
            self.ledger.unnecessary(lines, plain_commands.SHELL_STATE[name])
        elif name == "trap":
            shell_blocks.trap(self, text, lines)
        elif name in {"cd", "pushd", "popd"}:
            shell_lines.change_folder(self, words, lines)
        elif name == "mkdir":
            shell_lines.make_folder(self, words, lines)
        elif name == "ulimit":
            shell_lines.limit(self, words, lines)
        elif plain_commands.LOGIN.search(text):
            self.ledger.not_understood(lines, "a login: name the variable in `secrets:` and set it in your shell")
        elif name == "printf" and words[1:2] and words[1].text == "-v":
            self.scope.assign(words[2].text if len(words) > 2 else "", unknown(text))
            self.ledger.not_understood(lines, "a value that is known only in the job")
        elif name in plain_commands.PRINTS and (name != "env" or len(words) == 1):
            self.ledger.unnecessary(lines, "prints only")
        elif self._starts(words[0].text, name):
            self._launch(node, words, lines)
        else:
            self.ledger.not_understood(lines, f"`{name}`: run it once before submitting, or in the training")

    @staticmethod
    def _starts(path: str, name: str) -> bool:
        """Whether the command may start a training."""
        return bool(_LAUNCHES.match(name)) or name.endswith((".sh", ".py")) or path.startswith(("./", "$"))

    def _call(self, name: str, words: Sequence[Word], lines: range) -> None:
        """The body of a function, read where it is called."""
        self.called.add(name)
        self.in_call.add(name)
        body = self.scope.functions[name].child_by_field_name("body")
        before = self.scope.parameters
        self.scope.parameters = tuple(word.value for word in words[1:])
        self.ledger.unnecessary(lines, f"calls `{name}`")
        self.ledger.unnecessary(lines_of(self.scope.functions[name]), f"the function `{name}`")
        self.statements(body.named_children)
        self.scope.parameters = before
        self.in_call.discard(name)

    def _launch(self, node: Node, words: Sequence[Word], lines: range) -> None:
        launch = OldLaunch(lines, workdir=self.job.workdir, job_env=dict(self.job.env))
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self.assignments.pair(child)
                if isinstance(value, Value):
                    launch.env[name] = value
                    launch.keys.append("env")
        for child in node.named_children:
            if child.type in {"herestring_redirect", "heredoc_redirect"} or text_of(child).startswith("<"):
                launch.doubts.append((child.start_point[0] + 1, "reads input: a job file gives a program none"))
        launch.doubts += [
            (line, "arguments of the script: add them to `args:`") for line in self.scope.left_open if line in lines
        ]
        self.unwrapper.unwrap(launch, words)
        helper = os.path.basename(launch.words[0].text) if launch.words else ""
        if launch.program == "command" and helper in plain_commands.PRINTS:
            self.ledger.unnecessary(lines, "prints only")
        elif launch.program == "command" and helper in {"mkdir", "cp", "rsync", "tar", "rm", "sbcast", "dcgmi", "pip"}:
            self.ledger.not_understood(lines, f"`{helper}` on each node: a step of the site profile's `prelude:`")
        else:
            self.job.launches.append(launch)

    def child(self, text: str, scope: Scope, ledger: Ledger) -> Walker:
        """A walker through the text of `bash -c`, or of a shell file that the script starts."""
        result = Walker(self.request, scope, ledger, OldJob(), self.base)
        result.followed = dict(self.followed)
        root = parse(text)
        result.fits = not root.has_error and depth_is_bounded(root)
        if result.fits:
            result.script(root)
        return result

    def aside(self, ledger: Ledger) -> Walker:
        """A walker that tries statements out: nothing that it finds is kept."""
        result = Walker(self.request, self.scope.copy(), ledger, OldJob(), self.base)
        result.in_call = {*self.in_call, *self.scope.functions}
        return result

    def _nested(self, launch: OldLaunch, kind: str, rest: Sequence[Word], word: Word, depth: int) -> bool:
        return depth <= DEEPEST_NESTING and read_nested(self, launch, kind, rest, word)
