"""The script's variables and the values of its words: plain assignments, defaults, products, quotes. Nothing is run.

Whatever else stands in a word keeps the script's own text and is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hpc_launch.from_script.script_text import Node, Value, Word, literal, old_words, text_of, unknown

LONGEST_VALUE = 100_000
"""A value that doubles itself line by line stops growing here."""

RENDEZVOUS = old_words().rendezvous
"""Variables that hpc-launch or the launcher sets."""
_OF_JOB = {
    "SLURM_JOB_ID": Value("${job.id}"), "SLURM_JOBID": Value("${job.id}"),
    "HOME": Value("${home}"), "USER": Value("${user}"), "LOGNAME": Value("${user}"),
}  # fmt: skip
_PER_PROCESS = re.compile(r"(SLURM_(PROCID|LOCALID|NODEID)|OMPI_COMM_WORLD_\w*RANK|PMI_\w*RANK|PMIX_RANK|RANDOM)\Z")
HOSTS = re.compile(
    r"scontrol\s+show\s+hostnames?\b|\bnodeset\b|hostlist\b|SLURM_(JOB_)?NODELIST|SLURMD_NODENAME|HOSTNAME\b|"
    r"SLURM_LAUNCH_NODE_IPADDR|\bhostname\b|\bgetent\s+a?hosts|\bip\s+(-\S+\s+)*addr"
)
"""What finds out the nodes of the job, or the name of one."""
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})
_PLAIN = frozenset("word number test_operator regex extglob_pattern variable_name".split())


_ARITHMETIC = re.compile(r"(([+-]|^)(0|[1-9]\d{0,8})(\*(0|[1-9]\d{0,8}))*)+")


class Variables:
    """The script's variables while it is read: values are followed where the text decides them.

    Args: constants: what the directives decide, such as SLURM_NNODES. environment: of the shell that runs hpc-launch,
    for the names only. folder: in which the job was submitted.
    """

    def __init__(self, constants: Mapping[str, str], environment: Mapping[str, str], folder: str) -> None:
        self.environment = environment
        self.folder = folder
        self.values: dict[str, Value | tuple[Value, ...]] = {name: Value(text) for name, text in constants.items()}
        """Of an array, its items."""
        self.exported: set[str] = set()
        self.parameters: tuple[Value, ...] | None = None
        """Of a function, or of a script that the launch line starts; those of the script itself are not known."""

    def assign(self, name: str, value: Value | tuple[Value, ...]) -> None:
        """Set a variable."""
        size = len(value.text) if isinstance(value, Value) else sum(len(item.text) + 1 for item in value)
        self.values[name] = unknown(f"${name}") if size > LONGEST_VALUE else value

    def lookup(self, name: str) -> Value | None:
        """The value of a variable; None if nothing is known of it."""
        if name.isdecimal() and name != "0" and self.parameters is not None:
            return self.parameters[int(name) - 1] if int(name) <= len(self.parameters) else None
        own = self.values.get(name)
        if own is not None:
            return own if isinstance(own, Value) else own[0] if own else Value("")
        if name == "SLURM_SUBMIT_DIR":
            return Value(self.folder)
        if name.startswith("SLURM_ARRAY_") or _PER_PROCESS.match(name):
            return unknown(f"${name}")
        return unknown(f"${name}", hosts=True) if HOSTS.search(name) else _OF_JOB.get(name)

    def variable(self, name: str) -> Value:
        """The value of `$name` in a word."""
        found = self.lookup(name)
        if found is None and not re.match(r"[A-Za-z_]", name):
            found = Value("") if name.isdecimal() and self.parameters is not None else unknown(f"${name}")
        return found or Value(f"${{{'env' if name in self.environment else 'shell'}.{name}}}")

    def shown(self, text: str) -> Value:
        """A part of the script that is not understood."""
        found = map(self.lookup, re.findall(r"[A-Za-z_]\w*", text))
        hosts = HOSTS.search(text) is not None or any(value is not None and value.hosts for value in found)
        return unknown(text, hosts=hosts)

    def words(self, node: Node) -> list[Word]:
        """A word of a command: several where an array or an unquoted list of words stands in it."""
        line, text = node.start_point[0] + 1, text_of(node)
        if (items := self._items(text)) is not None:
            return [Word(item, line) for item in items]
        value = self.value(node)
        parts = value.text.split()
        if node.type in _EXPANSIONS and (value.known or (len(parts) > 1 and not re.search(r"[()`'\"]", value.text))):
            # bash splits what stands unquoted; quotes inside have no meaning there
            return [Word(Value(part, value.known or is_known(part), value.hosts), line) for part in parts]
        if node.type == "concatenation":
            bare = (self.value(child).text for child in node.named_children if child.type in _EXPANSIONS)
            if any(len(part.split()) > 1 for part in bare):  # bash makes several words of it
                value = self.shown(text)
        return [Word(value, line)]

    def _items(self, text: str) -> tuple[Value, ...] | None:
        """The items of `"${NAME[@]}"` and `"$@"`, where they are known."""
        if text.strip('"') == "$@":
            items: Value | tuple[Value, ...] | None = self.parameters
        else:
            match = re.fullmatch(r"\$\{(\w+)\[@\]\}", text.strip('"'))
            items = self.values.get(match[1]) if match is not None else None
        split = not text.startswith('"') and isinstance(items, tuple) and any(" " in item.text for item in items)
        return items if isinstance(items, tuple) and not split else None

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
        return self.shown(text)

    def _pieces(self, node: Node, at: int, end: int) -> Value:
        """The parts of a word, with the text between them that the grammar gives no node."""
        result = Value("")
        for child in [*node.named_children, None]:
            start = child.start_byte - node.start_byte if child is not None else end
            result = result + literal(node.text[at:start].decode("utf-8", "replace").replace("\\\n", ""))
            if child is not None:
                result = result + self.value(child)
                at = child.end_byte - node.start_byte
        return result

    def _expanded(self, node: Node, text: str) -> Value:
        """`$NAME`, `${NAME}`, `${NAME:-DEFAULT}`, `$(pwd)`, `$((A * B))`; all else is not understood."""
        inside = re.fullmatch(r"\$\{?(\w+|[@*#?!$-])\}?", text)
        if inside is not None:
            return self.variable(inside[1])
        if node.type == "expansion" and (default := re.match(r"\$\{(\w+)(:?)[-=]", text)):
            found = self.lookup(default[1])
            if found is not None and (found.text or not default[2]):
                return found
            if len(node.named_children) <= 2:
                return self.value(node.named_children[1]) if len(node.named_children) == 2 else Value("")
        if counted := re.fullmatch(r"\$\{#(\w+)\[[@*]\]\}", text):
            items = self.values.get(counted[1])
            return Value(str(len(items))) if isinstance(items, tuple) else self.shown(text)
        if text in {"$(pwd)", "`pwd`"}:
            return self.variable("PWD")
        if node.type == "arithmetic_expansion":
            plain = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda name: self.variable(name[1]).text, text[3:-2])
            if _ARITHMETIC.fullmatch(plain := re.sub(r"\s", "", plain)):
                terms = [(f"{sign}1", *term.split("*")) for sign, term in re.findall(r"([+-]?)([\d*]+)", plain)]
                return Value(str(sum(math.prod(map(int, term)) for term in terms)))
        return self.shown(text)


def is_known(text: str) -> bool:
    """Whether a text in the job file's notation has no part that only the script's run would know."""
    return "$" not in re.sub(r"(?<!\$)\$\{(env|shell|job|role|home|user)\b[\w.]*\}", "", text)


def shell_text(text: str) -> str:
    """A value as the inner bash gets it: with variables in place of what the job file names."""
    names = {"job.id": "SLURM_JOB_ID", "home": "HOME", "user": "USER"}

    def named(found: re.Match[str]) -> str:
        return f"${{{names.get(found[1], found[1].rpartition('.')[2])}}}" if found[1] else "${"

    return re.sub(r"\$\$\{|\$\{([\w.]+)\}", named, text)
