"""Lines that set something up: variables, modules, environments, folders and limits."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from hpc_launch.base.patterns import SECRET_NAME
from hpc_launch.from_script.old_job import OldJob
from hpc_launch.from_script.script_text import NOT_KNOWN, Ledger, Node, Value, Word, find_all, text_of, unknown
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.variables import RENDEZVOUS, Variables

_MASTER = re.compile(
    r"(?i)((MASTER|HEAD|MAIN|LEADER|RDZV|FIRST|CHIEF)\w*?_?(ADDR|ADDRESS|HOST|HOSTNAME|NODE|IP|ENDPOINT|PROCESS_IP)\w*"
    r"|MASTER|RDZV_ENDPOINT|INIT_HOST)\Z"
)
_PORT = re.compile(r"(?i)((MASTER|HEAD|MAIN|LEADER|RDZV|DIST|INIT)\w*PORT|PORT|FREE_PORT|JOB_PORT)\Z")
_LOADS = frozenset({"load", "add", "try-load"})
_OTHERS = frozenset("purge use unuse swap switch unload rm del reset restore save".split())
_LISTS = frozenset("list avail av spider show display whatis help".split())
REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")


class Settings:
    """Reads the lines that set something up into the job."""

    def __init__(self, request: Request, variables: Variables, ledger: Ledger) -> None:
        self.request, self.variables, self.job, self.ledger = request, variables, OldJob(), ledger

    def words(self, node: Node | None) -> list[Word]:
        """The words of a command."""
        if node is None:
            return []
        skipped = {"variable_assignment", *REDIRECTS}
        children = [child for child in node.named_children if child.type not in skipped]
        named = [(child.named_children or [child])[0] if child.type == "command_name" else child for child in children]
        return [word for child in named for word in self.variables.words(child)]

    def forget(self, node: Node) -> None:
        """What may be assigned in a node is not known any more."""
        for assignment in find_all(node, "variable_assignment"):
            name = text_of(assignment.child_by_field_name("name"))
            value = unknown(f"${name}", hosts=self.variables.shown(text_of(assignment)).hosts)
            self.variables.assign(name, self._replaced(name, value))

    def declaration(self, node: Node, lines: range) -> None:
        """`export A=1 B=2`, `declare -x A=1`, `readonly A=1`, `local A=1`."""
        exported = bool(re.match(r"export\b|\w+\s+-\w*x", text_of(node)))
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child, range(child.start_point[0] + 1, child.end_point[0] + 2), exported=exported)
            elif child.type == "variable_name" and exported:
                value = self.variables.values.get(text_of(child))
                if isinstance(value, Value):
                    self._set(text_of(child), value, lines, exported=True)
            elif child.type not in {"word", "variable_name", "comment"} and exported:
                self.ledger.not_understood(lines, "exports what is known only in the job: write `export NAME=VALUE`")
        self.ledger.unnecessary([line for line in lines if line not in self.ledger.notes], "declares only")

    def pair(self, node: Node) -> tuple[str, Value | tuple[Value, ...]]:
        """The name and value of an assignment; of an array, its items."""
        name, value = text_of(node.child_by_field_name("name")), node.child_by_field_name("value")
        if value is None or value.type != "array":
            return name, self.variables.value(value) if value is not None else Value("")
        children = [child for child in value.named_children if child.type != "comment"]
        items = tuple(word.value for child in children for word in self.variables.words(child))
        if all(item.known for item in items):
            return name, items
        return name, self.variables.shown(text_of(value))

    def assign(self, node: Node, lines: range, *, exported: bool) -> None:
        """`NAME=VALUE`."""
        name, value = self.pair(node)
        if "[" in name:
            self.variables.assign(name.partition("[")[0], unknown(f"${name}"))
            self.ledger.not_understood(lines, "sets an item of an array")
            return
        if text_of(node)[len(name) :].startswith("+="):
            empty = () if isinstance(value, tuple) else self.variables.variable(name)
            before = self.variables.values.get(name) or empty
            if isinstance(before, tuple):
                value = before + value if isinstance(value, tuple) else unknown(f"${name}")
            else:
                value = before + value if isinstance(value, Value) else unknown(f"${name}")
        self._set(name, value, lines, exported=exported or name in self.variables.exported)

    def _set(self, name: str, value: Value | tuple[Value, ...], lines: range, *, exported: bool) -> None:
        if isinstance(value, tuple):
            self.variables.assign(name, value)
            self.ledger.unnecessary(lines, "its words are used below")
            return
        value = self._replaced(name, value)
        if not value.known and value.text.startswith("$("):  # its text is for people, and no list of words
            value = unknown(f"${name}", hosts=value.hosts)
        self.variables.assign(name, value)
        own = rf"\$\{{(?:env|shell)\.{re.escape(name)}\}}"
        why = _left_out(name, value, exported=exported)
        if exported:
            self.variables.exported.add(name)
            self.job.env.pop(name, None)
        if why:
            self.ledger.unnecessary(lines, why)
            self.job.left_out |= {name: why} if exported else {}
        elif exported and SECRET_NAME.search(name):
            self.job.secrets += [name] if name not in self.job.secrets else []
            self.ledger.taken(lines, "secrets", why="its value is not copied: set it in your shell or in secrets.env")
        elif not value.known:
            self.ledger.not_understood(lines, f"{name} {NOT_KNOWN}")
        elif (exported or name.endswith("PATH")) and re.search(own, value.text):
            self.ledger.not_understood(lines, f"extends {name}: use `prepend:` in the site profile's `env:`")
        elif not exported:
            self.ledger.unnecessary(lines, "its value is used where the script uses it")
        else:
            self.job.env[name] = (value, lines[0])
            self.ledger.taken(lines, f"env.{name}")

    def _replaced(self, name: str, value: Value) -> Value:
        """Secrets come from the job's environment; the master's address and port are ours, whatever is computed."""
        if SECRET_NAME.search(name):
            return Value(f"${{shell.{name}}}")
        if name == "MASTER_ADDR" or (_MASTER.match(name) and value.hosts):
            if value.hosts and value.text != "${shell.MASTER_ADDR}":
                found = re.search(r"[})]([A-Za-z0-9.-]+)\Z", value.text)
                self.job.suffix = found[1] if found else None
            return Value("${shell.MASTER_ADDR}", True, hosts=True)
        if name == "MASTER_PORT" or (_PORT.match(name) and not value.known):
            return Value("${shell.MASTER_PORT}", True, hosts=True)
        return value

    def unset(self, node: Node, lines: range) -> None:
        """`unset NAME`."""
        for name in map(text_of, find_all(node, "variable_name")):
            self.variables.values.pop(name, None)
            self.job.env.pop(name, None)
        self.ledger.not_understood(lines, "`NAME: null` in `env:` unsets a variable")

    def module(self, words: Sequence[Word], lines: range) -> None:
        """`module …` and Lmod's `ml …`."""
        verb, *names = [word.text for word in words[1:] if not word.text.startswith("--")] or ["list"]
        if words[0].text == "ml" and verb not in {*_LOADS, *_LISTS, *_OTHERS}:
            verb, names = "load", [verb, *names]
        if not all(word.value.known for word in words) or any(name.startswith("-") for name in names):
            self.ledger.not_understood(lines, "list the modules that are loaded after it")
        elif verb in _LOADS:
            self._software("modules", [*self.job.software.get("modules", []), *names], lines)
        elif verb in _LISTS:
            self.ledger.unnecessary(lines, "prints only")
        else:
            self.ledger.not_understood(lines, f"`module {verb}`: a step of the site profile's `prelude:`")

    def _software(self, key: str, value: Any, lines: range) -> None:
        self.job.software[key] = value
        self.ledger.taken(lines, f"environment.{key}")

    def source(self, words: Sequence[Word], lines: range) -> None:
        """`source FILE` and `. FILE`."""
        path = words[1].text if len(words) > 1 and words[1].value.known else ""
        moved = self.job.workdir is not None and not path.startswith(("/", "$", "~"))
        if path == "activate" and len(words) == 3 and words[2].value.known:
            self._software("conda", words[2].text, lines)
        elif moved or len(words) > 2 or re.search(r"\A\Z|/\.\w+\Z|conda|mamba|miniforge|\Aactivate\Z", path):
            self.ledger.not_understood(lines, "a file that is not read here: `environment.source` names such files")
        elif path.endswith("/bin/activate"):
            self._software("venv", path.removesuffix("/bin/activate"), lines)
        else:
            self._software("source", [*self.job.software.get("source", []), path], lines)

    def conda(self, words: Sequence[Word], lines: range) -> None:
        """`conda activate NAME`, and the same of mamba."""
        if len(words) == 3 and words[1].text == "activate" and words[2].value.known:
            self._software("conda", words[2].text, lines)
        else:
            self.ledger.not_understood(lines, f"`{words[0].text}`: name the environment, or run it before submitting")

    def change_folder(self, words: Sequence[Word], lines: range) -> None:
        """`cd FOLDER`."""
        start, job = self.variables.folder, self.job
        text = words[1].text if len(words) == 2 and words[1].value.known else ""
        before = self.variables.lookup("OLDPWD")
        if text == "-":
            text = before.text if before is not None and before.known else ""
        rooted = text.startswith(("${", "~"))
        folder = text if rooted else os.path.normpath(os.path.join(job.workdir or start, text))
        self.variables.assign("OLDPWD", self.variables.variable("PWD"))
        if not text:
            self.variables.assign("PWD", unknown("$PWD"))
            self.ledger.not_understood(lines, "a folder that is known only in the job")
            return
        self.variables.assign("PWD", Value(folder))
        job.workdir = None if folder == start else folder
        if folder == start:
            self.ledger.unnecessary(lines, "the training starts in the job file's folder")
        else:
            self.ledger.taken(lines, "workdir")


def _left_out(name: str, value: Value, *, exported: bool) -> str:
    """Why neither the job nor a value in it needs a variable; empty if one does."""
    if name in {"IFS", "PS4", "OLDPWD"} or value.text in {"$!", "$?", "$$"}:
        return "a setting of the old shell"
    if name in RENDEZVOUS or value.hosts:
        return "the rendezvous: hpc-launch finds the nodes and chooses the address and a free port"
    if exported and name.startswith(("SLURM_", "SBATCH_")):
        return "Slurm's own variables are set by Slurm"
    return ""
