"""Conditions, loops and traps of a script: what they mean for a job file, which has none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.shell_tests import truth
from hpc_launch.from_script.shell_tree import Node, lines_of, text_of
from hpc_launch.from_script.values import Value

if TYPE_CHECKING:
    from hpc_launch.from_script.walk_script import Walker


def trap(walker: Walker, text: str, lines: range) -> None:
    """`trap COMMANDS SIGNAL`."""
    for name, node in walker.scope.functions.items():
        if re.search(rf"\b{re.escape(name)}\b", text):
            walker.called.add(name)
            walker.ledger.unnecessary(lines_of(node), "hpc-launch warns the training and continues the run")
    walker.ledger.unnecessary(lines, "hpc-launch warns the training and continues the run (`checkpoint:`)")


def condition(walker: Walker, node: Node, lines: range) -> None:
    """`if`: the branch that the script's own text decides, else nothing that matters is guessed."""
    condition = node.named_children[0]
    branches = [child for child in node.named_children if child.type in {"elif_clause", "else_clause"}]
    body = [child for child in node.named_children[1:] if child not in branches]
    result = truth(condition, walker.scope)
    if result is not None and not any(child.type == "elif_clause" for child in branches):
        walker.ledger.unnecessary(lines, "the condition is decided by the script itself")
        walker.statements(body if result else [child for one in branches for child in one.named_children])
        return
    walker.ledger.unnecessary(lines, "a condition around lines that are unnecessary")
    doubtful(walker, [*body, *(child for one in branches for child in one.named_children)], None)


def doubtful(walker: Walker, nodes: Sequence[Node], result: bool | None) -> None:
    """Statements behind a condition: harmless ones are unnecessary, others need a decision."""
    if result is True:
        walker.statements(nodes)
        return
    for node in nodes:
        inside = Ledger([])
        other = walker.aside(inside)
        other.statement(node)
        lines = lines_of(node)
        if result is False:
            walker.ledger.unnecessary(lines, "the condition is never true")
        elif inside.all_unnecessary(lines) and not other.job.launches:
            walker.ledger.unnecessary(lines, "prints, tests or ends only")
        else:
            walker.ledger.not_understood(lines, "depends on a condition that is known only in the job")


def loop(walker: Walker, node: Node, lines: range) -> None:
    """A loop over the nodes is one launch on all of them; others are not understood."""
    body = next(child for child in node.named_children if child.type == "do_group")
    count = len(walker.job.launches)
    variable = node.child_by_field_name("variable")
    text = text_of(node)[: body.start_byte - node.start_byte]
    used = [walker.scope.lookup(name) for name in re.findall(r"\$\{?#?(\w+)", text)]
    lists = [walker.scope.values.get(name) for name in re.findall(r"\$\{?[!#]?(\w+)", text)]
    over_hosts = "scontrol show hostname" in text or any(v is not None and "hosts" in v.uses for v in [*used, *lists])
    size = rf"({walker.request.nodes}|SLURM_\w*NNODES|SLURM_JOB_NUM_NODES)\b"
    counted = re.search(rf"[<={{.\s]\s*\$?\{{?\(*\s*{size}", text) is not None
    counted = counted or any(v is not None and v.known and v.text == str(walker.request.nodes) for v in used)
    head = re.match(r"for\s*\(\(\s*(\w+)", text)
    name = text_of(variable) if variable is not None else head[1] if head is not None else "i"
    walker.scope.assign(name, Value(f"${name}", False, frozenset({"hosts", "rank"})))
    walker.ledger.unnecessary(lines, "a loop over the nodes: the step starts one launcher on each")
    walker.statements(body.named_children)
    for launch in walker.job.launches[count:]:
        if over_hosts or counted or launch.one_node:
            launch.one_node, launch.nodes, launch.tasks = True, None, None
        else:
            launch.doubts.append((launch.lines[0], "in a loop: a job file starts one program"))
