"""The script's variables while it is read: values are followed where the text decides them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from hpc_launch.from_script.arithmetic import evaluate
from hpc_launch.from_script.shell_tree import Node, text_of
from hpc_launch.from_script.substitutions import meaning
from hpc_launch.from_script.values import MASTER, ListValue, Value, Word, literal, unknown

_PER_PROCESS = re.compile(r"(SLURM_(PROCID|LOCALID|NODEID)|OMPI_COMM_WORLD_\w*RANK|PMI_\w*RANK|PMIX_RANK)\Z")
_OF_JOB = {
    "SLURM_JOB_ID": "${job.id}",
    "SLURM_JOBID": "${job.id}",
    "HOME": "${home}",
    "USER": "${user}",
    "LOGNAME": "${user}",
}
_ESCAPED = re.compile(r"\\(\n?)(.?)", re.DOTALL)
_BLANKS = re.compile(r"(?:\s|\\\n)+")
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})
LONGEST_VALUE = 100_000
"""A value that doubles itself line by line stops growing here."""


class Scope:
    """Variables and arrays of the script.

    Args: constants: what the directives decide, such as SLURM_NNODES. environment: of the shell that runs hpc-launch,
    for the names only. folder: in which the job was submitted.
    """

    def __init__(self, constants: Mapping[str, str], environment: Mapping[str, str], folder: str) -> None:
        self.constants = dict(constants)
        self.environment = environment
        self.folder = folder
        self.values: dict[str, Value | ListValue] = {}
        self.exported: set[str] = set()
        self.parameters: tuple[Value, ...] | None = None
        self.functions: dict[str, Node] = {}
        self.left_open: list[int] = []
        """Lines with arguments of the script, which only its caller knows."""
        self.exports_all = False
        self.nested = False
        """Whether this is the text of `bash -c`: bash reads the words of a value again there."""

    def copy(self) -> Scope:
        """The same variables, to read text whose assignments do not last."""
        result = Scope(self.constants, self.environment, self.folder)
        result.values = dict(self.values)
        result.exported = set(self.exported)
        result.parameters = self.parameters
        result.functions = dict(self.functions)
        result.exports_all = self.exports_all
        return result

    def assign(self, name: str, value: Value | ListValue) -> None:
        """Set a variable."""
        if isinstance(value, Value) and len(value.text) > LONGEST_VALUE:
            value = unknown(f"${name}")
        self.values[name] = value

    def lookup(self, name: str) -> Value | None:
        """The value of a variable; None if nothing is known of it."""
        own = self.values.get(name)
        if isinstance(own, ListValue):
            return own.items[0] if own.items else MASTER if "hosts" in own.uses else unknown(f"${{{name}}}", *own.uses)
        if own is not None:
            return own
        if name in self.constants:
            return Value(self.constants[name])
        if name in _OF_JOB:
            return Value(_OF_JOB[name])
        if name in {"SLURM_SUBMIT_DIR", "PWD"}:
            return Value(self.folder)
        if name in {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}:
            return unknown(f"${name}", "hosts")
        if name in {"HOSTNAME", "SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR"}:
            return MASTER
        if name == "RANDOM":
            return unknown("$RANDOM", "port")
        if name.startswith("SLURM_ARRAY_"):
            return unknown(f"${name}", "array")
        if _PER_PROCESS.match(name):
            return unknown(f"${name}", "rank")
        return None

    def variable(self, name: str) -> Value:
        """The value of `$name` in a word."""
        if name.isdecimal() and name != "0" and self.parameters is not None:
            return self.parameters[int(name) - 1] if int(name) <= len(self.parameters) else Value("")
        if name in "@*#0123456789$!?-_" or not name:
            return unknown(f"${name}", "parameter")
        found = self.lookup(name)
        if found is not None:
            return found
        if name in self.environment:
            return Value(f"${{env.{name}}}")
        return Value(f"${{shell.{name}}}")

    def words(self, node: Node) -> list[Word]:
        """A word of a command: several where an array or an unquoted list of words stands in it."""
        line = node.start_point[0] + 1
        items = self._array(node)
        if items is not None:
            return [Word(item, line, text_of(node)) for item in items]
        value = self.value(node)
        if node.type in {"simple_expansion", "expansion", "command_substitution"} and value.known:
            if self.nested and node.type != "command_substitution":
                return self._read_again(value, line)
            parts = value.text.split()  # bash splits what stands unquoted; quotes inside have no meaning there
            return [Word(Value(part, value.known, value.uses), line, text_of(node)) for part in parts]
        if node.type == "concatenation":
            bare = (self.value(child).text for child in node.named_children if child.type in _EXPANSIONS)
            if any(len(text.split()) > 1 for text in bare):  # bash makes several words of it
                value = unknown(text_of(node), *value.uses)
        return [Word(value, line, text_of(node))]

    def _read_again(self, value: Value, line: int) -> list[Word]:
        """The words of a value that the bash of `bash -c` splits and expands once more."""
        try:
            parts = shlex.split(value.text)
        except ValueError:
            parts = value.text.split()
        result = []
        for part in parts:
            again = Value(part, value.known, value.uses)
            if re.search(r"(?<!\$)\$[A-Za-z_]|\$\$\{", part):
                again = self.text(part.replace("$${", "${"))
            result.append(Word(again, line, part))
        return result

    def _array(self, node: Node) -> tuple[Value, ...] | None:
        text = text_of(node).strip('"')
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}|\$@|\$\*|\$\{@\}", text)
        if match is None:
            return None
        if match[1] is None:
            if self.parameters is None:
                self.left_open.append(node.start_point[0] + 1)
            return self.parameters or ()
        own = self.values.get(match[1])
        if isinstance(own, ListValue):
            if text_of(node).startswith('"') and "*" in text and own.items:
                return (sum((Value(" ") + item for item in own.items[1:]), own.items[0]),)
            return own.items or (unknown(text, *own.uses),)
        return (own,) if own is not None else (unknown(text),)

    def value(self, node: Node) -> Value:
        """The value of a word's node."""
        kind, text = node.type, text_of(node)
        blanks = _BLANKS.match(text) if kind in _EXPANSIONS else None
        if blanks is not None:  # the grammar counts blanks before it in
            return Value(" ") + self._expanded(kind, text[blanks.end() :])
        if kind in _EXPANSIONS:
            return self._expanded(kind, text)
        if kind == "raw_string":
            return literal(text[1:-1])
        if kind in {"word", "number", "test_operator", "regex", "extglob_pattern"} and not node.named_children:
            if re.search(r"(?<!\\)[*?]", text):
                return unknown(text)
            plain = literal(_ESCAPED.sub(lambda found: "" if found[1] else found[2], text))
            at_home = plain.text == "~" or plain.text.startswith("~/")
            return Value("${home}" + plain.text[1:]) if at_home else plain
        if kind == "string":
            return self._pieces(node, 1, -1)
        if kind == "string_content":
            return literal(re.sub(r"\\\n|\\([$`\"\\])", lambda found: found[1] or "", text))
        if kind == "concatenation" and re.search(r"(?<![\\$])\{[^{}\s'\"]*,[^{}\s'\"]*\}", text):
            return unknown(text)
        if kind == "concatenation" or (kind in {"word", "command_name"} and node.named_children):
            return self._pieces(node, 0, None)
        if kind == "ansi_c_string" and "\\" not in text:
            return literal(text[2:-1])
        return unknown(text, *self._uses(text))

    def _expanded(self, kind: str, text: str) -> Value:
        """`$NAME`, `${…}`, `$(…)`, `$((…))`."""
        if kind == "simple_expansion":
            return self.variable(text[1:])
        if kind == "expansion":
            return self._expansion(text[2:-1])
        if kind == "command_substitution":
            return meaning(text[2:-1] if text.startswith("$(") else text[1:-1], self.lookup, self.folder)
        inside = text[3:-2] if text.startswith("$((") else text[2:-1]
        return evaluate(inside, self.variable) or unknown(text, *self._uses(inside))

    def _uses(self, text: str) -> set[str]:
        found = map(self.lookup, re.findall(r"[A-Za-z_]\w*", text))
        return {use for value in found if value is not None for use in value.uses}

    def _pieces(self, node: Node, start: int, end: int | None) -> Value:
        """The parts of a word, with the text between them that the grammar gives no node."""
        data = node.text
        base, at = node.start_byte, start
        last = len(data) if end is None else len(data) + end
        result = Value("")
        for child in node.named_children:
            between = data[at : child.start_byte - base].decode("utf-8", "replace")
            result = result + literal(between.replace("\\\n", "")) + self.value(child)
            at = child.end_byte - base
        return result + literal(data[at:last].decode("utf-8", "replace").replace("\\\n", ""))

    def _expansion(self, inside: str) -> Value:
        """`${…}` with its operators."""
        shown = f"${{{inside}}}"
        if re.fullmatch(r"[A-Za-z_]\w*|\d", inside):
            return self.variable(inside)
        count = re.fullmatch(r"#(\w+)\[[@*]\]", inside)
        if count:
            own = self.values.get(count[1])
            if isinstance(own, ListValue):
                size = own.count if own.count is not None else len(own.items) or None
                return Value(str(size)) if size is not None else unknown(shown)
            return unknown(shown)
        item = re.fullmatch(r"(\w+)\[(\d+)\]", inside)
        if item:
            own = self.values.get(item[1])
            if isinstance(own, ListValue):
                if int(item[2]) < len(own.items):
                    return own.items[int(item[2])]
                return MASTER if item[2] == "0" and "hosts" in own.uses else unknown(shown, *own.uses)
            return own if own is not None and item[2] == "0" else unknown(shown)
        default = re.fullmatch(r"([A-Za-z_]\w*|\d+)(:?[-=])(.*)", inside, re.DOTALL)
        if default:
            known = self.parameters if default[1].isdecimal() else None
            found = self.lookup(default[1]) if not default[1].isdecimal() else None
            if known is not None and int(default[1]) <= len(known):
                return known[int(default[1]) - 1]
            if found is not None and (found.text or default[2] == "-"):
                return found
            return self.text(default[3].strip("\"'"))
        return unknown(shown, *self._uses(inside))

    def text(self, text: str) -> Value:
        """Text between double quotes, or of a here-document."""
        from hpc_launch.from_script.shell_tree import find_all, parse

        if "$" not in text and "`" not in text:
            return literal(text)
        quoted = text.replace('"', '\\"')
        node = next(find_all(parse(f'x="{quoted}"'), "string"), None)
        return self.value(node) if node is not None else unknown(text)
