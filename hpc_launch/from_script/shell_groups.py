"""Commands that belong together: lists, pipelines with their redirections, and subshells."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hpc_launch.from_script import plain_commands, shell_blocks, shell_lines
from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.shell_tests import truth
from hpc_launch.from_script.shell_tree import Node, find_all, lines_of, text_of

if TYPE_CHECKING:
    from hpc_launch.from_script.walk_script import Walker

_PYTHON = re.compile(r"python[\d.]*\Z")
_FILTERS = frozenset("tee awk sed sort cut tr uniq bc column fold paste rev egrep fgrep more less nl xxd jq".split())
_LOG = re.compile(r"log|/dev/|\.(out|err|txt)\b", re.IGNORECASE)


def listed(walker: Walker, node: Node) -> None:
    """`A && B`, `A || B`: what follows `||` is for a failure."""
    children = node.named_children
    for at, child in enumerate(children):
        between = node.text[children[at - 1].end_byte - node.start_byte : child.start_byte - node.start_byte]
        if at and b"||" in between and children[0].type != "test_command":
            walker.ledger.unnecessary(lines_of(child), "hpc-launch reports a step that fails")
        elif at and children[0].type == "test_command":
            shell_blocks.doubtful(walker, [child], truth(children[0], walker.scope) if b"&&" in between else None)
        else:
            walker.statement(child)


def subshell(walker: Walker, node: Node, lines: range) -> None:
    """`( … )`: its folder and variables end with it, unless it starts the training."""
    inside = Ledger([])
    other = walker.aside(inside)
    other.statements(node.named_children)
    if not other.job.launches:
        walker.ledger.adopt(inside, "its effect ends with the subshell")
        walker.ledger.unnecessary(lines, "groups commands")
        return
    before, workdir = walker.scope.copy(), walker.job.workdir
    walker.ledger.unnecessary(lines, "groups commands")
    walker.statements(node.named_children)
    walker.scope.values, walker.scope.exported = before.values, before.exported
    walker.job.workdir = workdir


def _more(node: Node) -> str | None:
    """What a pipe leads into, if it does more than change the text."""
    for pipeline in find_all(node, "pipeline"):
        for child in pipeline.named_children:
            first = next(find_all(child, "command_name"), None)
            name = os.path.basename(text_of(first)) if first is not None else ""
            if child.type.endswith("_statement") and child.type != "redirected_statement":
                return text_of(child).split()[0]
            if name and name not in plain_commands.PRINTS | _FILTERS:
                return name
    return None


def piped(walker: Walker, node: Node) -> None:
    """A command with its redirections and pipes."""
    lines = lines_of(node)
    inner = node
    target = ""
    stdin: Node | None = None
    while inner.type in {"pipeline", "redirected_statement"}:
        for child in inner.named_children[1:]:
            if child.type in {"herestring_redirect", "heredoc_redirect"}:
                stdin = child
            for redirect in find_all(child, "file_redirect"):
                target = text_of(redirect)
            for command in find_all(child, "command"):
                words = text_of(command).split()
                if words[0] != "tee":
                    target = target or text_of(command)
                elif not _LOG.search(words[-1]):
                    target = f"> {words[-1]}"
        inner = inner.named_children[0]
    if inner.type != "command":
        walker.statement(inner)
        walker.ledger.unnecessary(lines, "redirects output")
        return
    name = walker.name(inner)
    if name in {"read", "mapfile", "readarray"}:
        shell_lines.reads(walker, inner, node, lines)
    elif name in plain_commands.PRINTS and (more := _more(node)):
        walker.ledger.not_understood(lines, f"pipes into `{more}`")
    elif name in plain_commands.PRINTS and re.search(r">\s*[^&\s]", target) and "/dev/" not in target:
        shell_lines.writes(walker, node, lines)
    elif re.match(r"\d*<(?![<&(])", target) and "/dev/null" not in target:
        walker.ledger.not_understood(lines, "reads a file as its input")
    elif stdin is not None and _PYTHON.match(os.path.basename(name)):
        walker.ledger.not_understood(lines, "a program in the script: put it into a file")
    else:
        walker.command(inner, lines)
