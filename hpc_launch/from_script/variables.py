"""The script's variables and the values of its words, as far as its text decides them. Nothing is run."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Mapping

from hpc_launch.from_script.script_text import MASTER, Node, Value, Word, literal, text_of, unknown

LONGEST_VALUE = 100_000
"""A value that doubles itself line by line stops growing here."""

_OF_JOB = {
    "SLURM_JOB_ID": Value("${job.id}"), "SLURM_JOBID": Value("${job.id}"),
    "HOME": Value("${home}"), "USER": Value("${user}"), "LOGNAME": Value("${user}"),
    "HOSTNAME": MASTER, "SLURMD_NODENAME": MASTER, "SLURM_LAUNCH_NODE_IPADDR": MASTER,
    "SLURM_JOB_NODELIST": unknown("$SLURM_JOB_NODELIST", "hosts"),
    "SLURM_NODELIST": unknown("$SLURM_NODELIST", "hosts"), "RANDOM": unknown("$RANDOM", "port"),
}  # fmt: skip
_PER_PROCESS = re.compile(r"(SLURM_(PROCID|LOCALID|NODEID)|OMPI_COMM_WORLD_\w*RANK|PMI_\w*RANK|PMIX_RANK)\Z")
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})
_PLAIN = frozenset("word number test_operator regex extglob_pattern variable_name".split())
_HOSTS = re.compile(r"scontrol\s+show\s+hostnames?\b|\bnodeset\b|\bhostlist\b|expand_hostlist|SLURM_(JOB_)?NODELIST")
_FIRST = re.compile(
    r"head\s+-?-?(n|lines)?[=\s]*-?1\b|sed\s+-n\s+['\"]?1p|awk\s+'?NR\s*==\s*1|cut\s+-d|\[0\]|-f\s*1\b|head\s+-1\b"
)
_COUNT = re.compile(r"wc\s+(-l|-w|--lines)")
_THIS_HOST = re.compile(r"\bhostname\b|\bgetent\s+(a?hosts\w*)|\bip\s+(-\S+\s+)*addr|\buname\s+-n")
_NAMED = re.compile(r"(?:which|command\s+-v|type\s+-p)\s+([A-Za-z0-9_.-]+)\Z")
_PORT = re.compile(r"RANDOM|\bshuf\b|SLURM_JOB_?ID|socket|\bcomm\b|\bss\s|netstat|getsockname")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_COMPARISONS = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-lt": operator.lt, "-ge": operator.ge,
    "-le": operator.le, "==": operator.eq, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip


class Variables:
    """The script's variables while it is read: values are followed where the text decides them.

    Args: constants: what the directives decide, such as SLURM_NNODES. environment: of the shell that runs hpc-launch,
    for the names only. folder: in which the job was submitted.
    """

    def __init__(self, constants: Mapping[str, str], environment: Mapping[str, str], folder: str) -> None:
        self.constants = constants
        self.environment = environment
        self.folder = folder
        self.values: dict[str, Value | tuple[Value, ...]] = {}
        """Of an array, its items."""
        self.exported: set[str] = set()
        self.parameters: tuple[Value, ...] | None = None
        self.left_open: list[int] = []
        """Lines with arguments of the script, which only its caller knows."""
        self.exports_all = False

    def copy(self) -> Variables:
        """The same variables, for statements whose assignments may not last."""
        result = copy.copy(self)
        result.values, result.exported, result.left_open = dict(self.values), set(self.exported), []
        return result

    def assign(self, name: str, value: Value | tuple[Value, ...]) -> None:
        """Set a variable."""
        too_long = isinstance(value, Value) and len(value.text) > LONGEST_VALUE
        self.values[name] = unknown(f"${name}") if too_long else value

    def hosts(self) -> tuple[Value, ...]:
        """The items of an array of the nodes."""
        nodes = int(self.constants.get("SLURM_NNODES", "1"))
        return (MASTER, *[unknown("$HOST", "hosts")] * (nodes - 1))

    def lookup(self, name: str) -> Value | None:
        """The value of a variable; None if nothing is known of it."""
        own = self.values.get(name)
        if own is not None:
            return own if isinstance(own, Value) else own[0] if own else Value("")
        if name in self.constants:
            return Value(self.constants[name])
        if name in {"SLURM_SUBMIT_DIR", "PWD"}:
            return Value(self.folder)
        if name.startswith("SLURM_ARRAY_"):
            return unknown(f"${name}", "array")
        return unknown(f"${name}", "rank") if _PER_PROCESS.match(name) else _OF_JOB.get(name)

    def variable(self, name: str) -> Value:
        """The value of `$name` in a word."""
        if name.isdecimal() and name != "0" and self.parameters is not None:
            return self.parameters[int(name) - 1] if int(name) <= len(self.parameters) else Value("")
        if name in "@*#0123456789$!?-_" or not name:
            return unknown(f"${name}", "parameter")
        found = self.lookup(name)
        return found or Value(f"${{{'env' if name in self.environment else 'shell'}.{name}}}")

    def uses(self, text: str) -> set[str]:
        """What the variables in a text stand for."""
        found = map(self.lookup, re.findall(r"[A-Za-z_]\w*", text))
        return {use for value in found if value is not None for use in value.uses}

    def words(self, node: Node) -> list[Word]:
        """A word of a command: several where an array or an unquoted list of words stands in it."""
        line, text = node.start_point[0] + 1, text_of(node)
        items = self._array(text, line)
        if items is not None:
            return [Word(item, line, text) for item in items]
        value = self.value(node)
        if node.type in _EXPANSIONS and value.known:
            parts = value.text.split()  # bash splits what stands unquoted; quotes inside have no meaning there
            return [Word(Value(part, True, value.uses), line, text) for part in parts]
        if node.type == "concatenation":
            bare = (self.value(child).text for child in node.named_children if child.type in _EXPANSIONS)
            if any(len(part.split()) > 1 for part in bare):  # bash makes several words of it
                value = unknown(text, *value.uses)
        return [Word(value, line, text)]

    def _array(self, text: str, line: int) -> tuple[Value, ...] | None:
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}|\$@|\$\*|\$\{@\}", text.strip('"'))
        if match is None:
            return None
        if match[1] is None:
            if self.parameters is None:
                self.left_open.append(line)
            return self.parameters or ()
        own = self.values.get(match[1], unknown(text.strip('"')))
        items = (own,) if isinstance(own, Value) else own
        if text.startswith('"') and "*" in text and items:
            return (sum((Value(" ") + item for item in items[1:]), items[0]),)
        return items

    def value(self, node: Node) -> Value:
        """The value of a word's node."""
        kind, text = node.type, text_of(node)
        if kind in _EXPANSIONS:
            inside = text.lstrip(" \t\n\\")  # the grammar counts blanks before it in
            return Value("" if inside == text else " ") + self._expanded(node, inside)
        if kind == "raw_string":
            return literal(text[1:-1])
        if kind in _PLAIN and not node.named_children:
            if re.search(r"(?<!\\)[*?]", text):
                return unknown(text)
            plain = literal(re.sub(r"\\(\n?)(.?)", lambda found: "" if found[1] else found[2], text, flags=re.DOTALL))
            at_home = plain.text == "~" or plain.text.startswith("~/")
            return Value("${home}" + plain.text[1:]) if at_home else plain
        if kind == "string":
            return self._pieces(node, 1, len(node.text) - 1)
        if kind == "string_content":
            return literal(re.sub(r"\\\n|\\([$`\"\\])", lambda found: found[1] or "", text))
        if kind == "concatenation" and re.search(r"(?<![\\$])\{[^{}\s'\"]*,[^{}\s'\"]*\}", text):
            return unknown(text)
        if kind == "concatenation" or (kind in {"word", "command_name"} and node.named_children):
            return self._pieces(node, 0, len(node.text))
        if kind == "ansi_c_string" and "\\" not in text:
            return literal(text[2:-1])
        return unknown(text, *self.uses(text))

    def _pieces(self, node: Node, at: int, end: int) -> Value:
        """The parts of a word, with the text between them that the grammar gives no node."""
        result = Value("")
        for child in node.named_children:
            start = child.start_byte - node.start_byte
            result = result + literal(node.text[at:start].decode("utf-8", "replace").replace("\\\n", ""))
            result = result + self.value(child)
            at = child.end_byte - node.start_byte
        return result + literal(node.text[at:end].decode("utf-8", "replace").replace("\\\n", ""))

    def _expanded(self, node: Node, text: str) -> Value:
        """`$NAME`, `${…}`, `$(…)`, `$((…))`."""
        if node.type == "simple_expansion":
            return self.variable(text[1:])
        if node.type == "expansion":
            return self._expansion(node, text[2:-1])
        if node.type == "command_substitution":
            return self._substitution((text[2:-1] if text.startswith("$(") else text[1:-1]).strip())
        inside = text[3:-2] if text.startswith("$((") else text[2:-1]
        return self._arithmetic(inside) or unknown(text, *self.uses(inside))

    def _expansion(self, node: Node, inside: str) -> Value:
        """`${…}` with the operators that scripts use most."""
        shown = unknown(f"${{{inside}}}", *self.uses(inside))
        if re.fullmatch(r"[A-Za-z_]\w*|\d", inside):
            return self.variable(inside)
        if item := re.fullmatch(r"(#?)(\w+)\[([@*]|\d+)\]", inside):
            own = self.values.get(item[2])
            if isinstance(own, tuple) and item[1]:
                return Value(str(len(own)))
            if isinstance(own, tuple) and item[3].isdecimal():
                return own[int(item[3])] if int(item[3]) < len(own) else shown
            return own if isinstance(own, Value) and item[3] == "0" else shown
        default = re.match(r"(\w+)(:?)[-=]", inside)
        if default is None or len(node.named_children) > 2:
            return shown
        name = default[1]
        given = name.isdecimal() and int(name) <= len(self.parameters or ())
        found = self.variable(name) if given else None if name.isdecimal() else self.lookup(name)
        if found is not None and (found.text or not default[2]):
            return found
        return self.value(node.named_children[1]) if len(node.named_children) == 2 else Value("")

    def _substitution(self, inside: str) -> Value:
        """What `$(…)` stands for, told from its text."""
        uses = self.uses(" ".join(re.findall(r"\$\{?\w+", inside)))
        shown = unknown(f"$({inside})", *uses)
        if inside in {"pwd", "pwd -P", "readlink -f .", "realpath ."}:
            return Value(self.folder)
        if inside in {"whoami", "id -un", "logname"}:
            return Value("${user}")
        if named := _NAMED.match(inside):
            return Value(named[1])
        if re.search(r"nvidia-smi\s+(-L|--list-gpus|--query-gpu)", inside) and _COUNT.search(inside):
            return self.lookup("SLURM_GPUS_ON_NODE") or shown
        if _HOSTS.search(inside) or "hosts" in uses:
            if _COUNT.search(inside):
                return self.lookup("SLURM_JOB_NUM_NODES") or shown
            return MASTER if _FIRST.search(inside) else unknown(f"$({inside})", "hosts")
        if _THIS_HOST.search(inside):
            return MASTER
        return unknown(f"$({inside})", "port") if _PORT.search(inside) else shown

    def _arithmetic(self, inside: str) -> Value | None:
        """A sum, difference, product or quotient of two numbers that the text decides."""
        match = re.fullmatch(r"\s*\$?\{?(\w+)\}?\s*(?:([-+*/])\s*\$?\{?(\w+)\}?\s*)?", inside)
        if match is None:
            return None
        names = [match[1], match[3] or "0"]
        numbers = [name if name[0].isdigit() else self.variable(name).text for name in names]
        if not all(number.isdecimal() and len(number) < 10 for number in numbers) or (
            match[2] == "/" and not int(numbers[1])
        ):
            return None
        return Value(str(_OPERATORS[match[2] or "+"](*map(int, numbers))))

    def truth(self, node: Node) -> bool | None:
        """Whether a condition such as `[ -z "$X" ]` or `[[ $A == b ]]` holds; None if only the job knows."""
        inner = node.named_children[0] if node.type == "test_command" and len(node.named_children) == 1 else node
        parts = [child for child in inner.children if child.type not in {"[", "]", "[[", "]]"}]
        values = [self.value(part) for part in (parts[1:] if inner.type == "unary_expression" else parts[::2])]
        if any(not value.known or "${" in value.text for value in values):
            return None
        texts, operators = [value.text for value in values], [text_of(part) for part in parts]
        if inner.type == "unary_expression" and len(parts) == 2 and operators[0] in {"-z", "-n"}:
            return (operators[0] == "-z") == (texts[0] == "")
        if inner.type == "binary_expression" and len(parts) == 3 and "*" not in texts[1]:
            compare, numeric = _COMPARISONS.get(operators[1]), operators[1].startswith("-")
            if compare is not None and (not numeric or all(text.isdecimal() for text in texts)):
                return bool(compare(*map(int, texts)) if numeric else compare(*texts))
        return None


def shell_text(text: str) -> str:
    """A value as the inner bash gets it: with variables in place of what the job file names."""
    names = {"job.id": "SLURM_JOB_ID", "home": "HOME", "user": "USER"}

    def named(found: re.Match[str]) -> str:
        return f"${{{names.get(found[1], found[1].rpartition('.')[2])}}}" if found[1] else "${"

    return re.sub(r"\$\$\{|\$\{([\w.]+)\}", named, text)
