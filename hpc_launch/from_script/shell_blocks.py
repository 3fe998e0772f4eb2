"""Conditions, loops and traps of a script: what they mean for a job file, which has none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.shell_tests import truth
from hpc_launch.from_script.shell_tree import Node, find_all, lines_of, text_of
from hpc_launch.from_script.values import unknown

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
        if result is None:
            _merge_values(walker, other)
        if result is False:
            walker.ledger.unnecessary(lines, "the condition is never true")
        elif inside.all_unnecessary(lines) and not other.job.launches:
            walker.ledger.unnecessary(lines, "prints, tests or ends only")
        else:
            walker.ledger.not_understood(lines, "depends on a condition that is known only in the job")


def forget(walker: Walker, node: Node) -> None:
    """The variables that a block sets, perhaps, are known only in the job."""
    for assignment in find_all(node, "variable_assignment"):
        name = text_of(assignment.child_by_field_name("name"))
        walker.scope.assign(name, unknown(f"${name}"))


def _merge_values(walker: Walker, other: Walker) -> None:
    """What a condition may have set: the rendezvous is ours in any case, other values are known only in the job."""
    for name, value in other.scope.values.items():
        if value != walker.scope.values.get(name):
            ours = value.uses & {"master", "port", "hosts", "rank"}
            walker.scope.assign(name, value if ours else unknown(f"${name}"))


def loop(walker: Walker, node: Node, lines: range) -> None:
    """A loop over the nodes is one launch on all of them; others are not understood."""
    body = next(child for child in node.named_children if child.type == "do_group")
    count = len(walker.job.launches)
    variable = node.child_by_field_name("variable")
    head = text_of(node)[: body.start_byte - node.start_byte]
    counter = re.match(r"for\s*\(\(\s*(\w+)", head)
    name = text_of(variable) if variable is not None else counter[1] if counter is not None else "i"
    over_nodes = _over_nodes(walker, head) and re.search(rf"\$\{{?{name}\b|\b{name}\b", text_of(body)) is not None
    if not over_nodes:
        other = walker.aside(Ledger([]))
        other.scope.assign(name, unknown(f"${name}"))
        other.statements(body.named_children)
        over_nodes = any(launch.one_node for launch in other.job.launches)
    uses = ("hosts", "rank") if over_nodes else ()
    walker.scope.assign(name, unknown(f"${name}", *uses))
    walker.statements(body.named_children)
    launches = walker.job.launches[count:]
    why = "a loop over the nodes: the step starts one launcher on each" if over_nodes else "repeats the lines in it"
    walker.ledger.unnecessary(lines, why)
    for launch in launches:
        if over_nodes:
            launch.one_node, launch.nodes, launch.tasks = True, None, None
        else:
            launch.doubts.append((launch.lines[0], "in a loop: a job file starts one program, with `sweep:` many"))


def _over_nodes(walker: Walker, head: str) -> bool:
    """Whether the head of a loop lists the nodes, or counts as many."""
    values = walker.scope.values
    found = [(walker.scope.lookup(name), values.get(name)) for name in re.findall(r"\$\{?[!#]?(\w+)", head)]
    if "scontrol show hostname" in head or any(v is not None and "hosts" in v.uses for pair in found for v in pair):
        return True
    nodes = walker.request.nodes
    counts = f"{nodes}|{nodes - 1}|" if nodes > 1 else ""
    size = rf"\$?\{{?\(*\s*({counts}SLURM_\w*NNODES|SLURM_JOB_NUM_NODES)\b(?!\s+\d)"
    if re.search(rf"(<=?\s*|\{{\d+\.\.|\bseq\s[^;)]*?){size}", head):
        return True
    known = {value.text for value, _ in found if value is not None and value.known}
    return str(nodes) in known and re.search(r"<|\.\.|\bseq\b", head) is not None
