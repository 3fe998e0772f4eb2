"""Assignments and exports of a script: which variables the training gets, and which only served the old launch."""

from __future__ import annotations

import re

from hpc_launch.from_script import plain_commands
from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.old_job import OldJob
from hpc_launch.from_script.scope import Scope
from hpc_launch.from_script.secret_values import secret_variable
from hpc_launch.from_script.shell_tree import Node, find_all, text_of
from hpc_launch.from_script.values import ListValue, Value
from hpc_launch.job.secret_names import SECRET_NAME


class Assignments:
    """Follows the variables of a script."""

    def __init__(self, scope: Scope, job: OldJob, ledger: Ledger) -> None:
        self.scope = scope
        self.job = job
        self.ledger = ledger

    def declaration(self, node: Node, lines: range) -> None:
        """`export A=1 B=2`, `declare -x A=1`, `readonly A=1`, `local A=1`."""
        command = text_of(node).split(None, 1)[0]
        words = [text_of(child) for child in node.named_children if child.type in {"word", "concatenation"}]
        exported = command == "export" or any(re.match(r"-\w*x", word) for word in words) or self.scope.exports_all
        found = False
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child, self._lines(child), exported=exported)
                found = True
            elif child.type == "variable_name" and exported:
                name = text_of(child)
                value = self.scope.values.get(name)
                found = True
                if isinstance(value, Value):
                    self.export(name, value, lines)
                else:
                    self.ledger.unnecessary(lines, "exports what the environment has")
            elif child.type not in {"word", "variable_name", "comment"} and exported:
                for word in self.scope.words(child):
                    name, equals, text = word.text.partition("=")
                    if not word.value.known or not equals:
                        self.ledger.not_understood(lines, "exports what is known only in the job")
                    else:
                        value = Value(text, True, word.value.uses)
                        self.scope.assign(name, value)
                        self.export(name, value, lines)
                found = True
        if not found:
            self.ledger.unnecessary(lines, "declares only")
        for line in lines:
            if not self.ledger.known(line):
                self.ledger.unnecessary([line], "continues the line before")

    @staticmethod
    def _lines(node: Node) -> range:
        return range(node.start_point[0] + 1, node.end_point[0] + 2)

    def pair(self, node: Node) -> tuple[str, Value | ListValue]:
        """The name and value of an assignment."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = text_of(name_node)
        if value_node is None:
            return name, Value("")
        if value_node.type == "array":
            return name, self._array(value_node)
        return name, self.scope.value(value_node)

    def _array(self, node: Node) -> ListValue:
        items: list[Value] = []
        for child in node.named_children:
            if child.type == "comment":
                continue
            words = self.scope.words(child)
            hosts = [word for word in words if "hosts" in word.value.uses]
            if hosts:
                nodes = self.scope.constants.get("SLURM_NNODES", "1")
                return ListValue(count=int(nodes), uses=frozenset({"hosts"}))
            items += [word.value for word in words]
        return ListValue(tuple(items))

    def assign(self, node: Node, lines: range, *, exported: bool) -> None:
        """`NAME=VALUE`."""
        name, value = self.pair(node)
        if "[" in name:
            self.ledger.not_understood(lines, "sets an item of an array")
            return
        if isinstance(value, Value) and (node.text[len(name.encode()) :][:2] == b"+="):
            value = (self.scope.lookup(name) or Value("")) + value
        elif isinstance(value, ListValue) and node.text[len(name.encode()) :][:2] == b"+=":
            before = self.scope.values.get(name)
            value = ListValue((*before.items, *value.items)) if isinstance(before, ListValue) else value
        if isinstance(value, Value):
            value = secret_variable(name) if SECRET_NAME.search(name) else self._rendezvous(name, value)
        self.scope.assign(name, value)
        if name in {"IFS", "PS4", "OLDPWD"}:
            self.ledger.unnecessary(lines, "a setting of the old shell")
        elif exported or name in self.scope.exported:
            self.scope.exported.add(name)
            if isinstance(value, Value):
                self.export(name, value, lines)
            else:
                self.ledger.unnecessary(lines, "an array, which bash does not export")
        else:
            self._local(name, value, lines)

    def _rendezvous(self, name: str, value: Value) -> Value:
        """The master's address and port are ours, whatever the script computes."""
        if name == "MASTER_ADDR" or (plain_commands.MASTER.match(name) and value.uses & {"master", "hosts"}):
            found = re.search(r"\}([A-Za-z0-9.-]+)\Z", value.text)
            if found and "MASTER_ADDR" in value.text:
                self.job.suffix = found[1]
            elif "master" in value.uses:
                self.job.suffix = None
            return Value("${shell.MASTER_ADDR}", True, value.uses | {"master"})
        if name == "MASTER_PORT" or (plain_commands.PORT.match(name) and not value.known):
            return Value("${shell.MASTER_PORT}", True, frozenset({"port"}))
        return value

    def _local(self, name: str, value: Value | ListValue, lines: range) -> None:
        """A variable of the script alone: its value is used where the script uses it."""
        if isinstance(value, ListValue):
            why = "lists the nodes: the launcher gets them from Slurm" if value.uses else "its words are used below"
            self.ledger.unnecessary(lines, why)
        elif value.uses & {"master", "port", "hosts"}:
            self.ledger.unnecessary(lines, "the rendezvous: hpc-launch chooses the address and a free port")
        elif value.uses & {"secret"}:
            self.ledger.unnecessary(lines, "its value is not copied: the job reads it from `secrets:`")
        elif value.text in {"$!", "$?", "$$"}:
            self.ledger.unnecessary(lines, "a setting of the old shell")
        elif value.uses & {"array"}:
            self.ledger.not_understood(lines, "depends on the index in a job array")
        elif value.uses & {"rank"}:
            self.ledger.unnecessary(lines, "a process finds its rank in RANK, LOCAL_RANK and WORLD_SIZE")
        elif not value.known and not plain_commands.is_for_launch_only(name):
            self.ledger.not_understood(lines, "a value that is known only in the job")
        else:
            self.ledger.unnecessary(lines, "its value is used where the script uses it")

    def export(self, name: str, value: Value, lines: range) -> None:
        """A variable that the training gets."""
        self.scope.exported.add(name)
        why = self._left_out(name, value)
        if why is not None:
            self.job.left_out[name] = why
            self.job.env.pop(name, None)
            self.ledger.unnecessary(lines, why)
        elif SECRET_NAME.search(name):
            if name not in self.job.secrets:
                self.job.secrets.append(name)
            self.ledger.taken(lines, "secrets", why="its value is not copied: set it in your shell or in secrets.env")
        elif not value.known:
            self.ledger.not_understood(lines, "a value that is known only in the job")
        else:
            self._take(name, value, lines)

    def _take(self, name: str, value: Value, lines: range) -> None:
        front = re.fullmatch(rf"(.+):(?:\$\{{(?:env|shell)\.{re.escape(name)}\}})?", value.text, re.DOTALL)
        own = re.compile(rf"\$\{{(?:env|shell)\.{re.escape(name)}\}}")
        if own.search(value.text):
            if front and not own.search(front[1]):
                self.job.prepend[name] = front[1]
                self.ledger.taken(lines, "site: env")
            else:
                self.ledger.not_understood(lines, f"extends {name}: use `prepend:` in the site profile's `env:`")
            return
        self.job.env[name] = (value, lines[0])
        key = "site: env" if plain_commands.NETWORK.match(name) else f"env.{name}"
        self.ledger.taken(lines, key)

    @staticmethod
    def _left_out(name: str, value: Value) -> str | None:
        if name.startswith("TORCHELASTIC_"):
            return "torchrun's own variables are set by torchrun"
        if name in plain_commands.RENDEZVOUS or (value.uses & {"master", "port"}):
            return "the rendezvous: hpc-launch chooses the address and a free port"
        if name in plain_commands.DEBUGGING:
            return plain_commands.DEBUGGING[name]
        if name.startswith(("SLURM_", "SBATCH_")):
            return "Slurm's own variables are set by Slurm"
        if value.uses & {"hosts", "rank"}:
            return "the launcher gets the nodes and the ranks from Slurm"
        if plain_commands.is_for_launch_only(name):
            return "a count for the old launch line: the training reads WORLD_SIZE and LOCAL_WORLD_SIZE"
        return None

    def unset(self, node: Node, lines: range) -> None:
        """`unset NAME`."""
        for child in find_all(node, "variable_name"):
            name = text_of(child)
            self.scope.values.pop(name, None)
            self.job.env.pop(name, None)
            if name.startswith(("SLURM_", "SBATCH_", "SRUN_")):
                self.ledger.unnecessary(lines, "hpc-launch cleans the environment of the step")
            else:
                self.job.unset.append(name)
                self.ledger.taken(lines, f"env.{name}")
        if not any(find_all(node, "variable_name")):
            self.ledger.unnecessary(lines, "unsets nothing")
