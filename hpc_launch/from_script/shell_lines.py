"""Lines around the training: folders, limits, files that the script reads and writes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_launch.from_script.shell_tree import Node, find_all, text_of
from hpc_launch.from_script.values import ListValue, Word

if TYPE_CHECKING:
    from hpc_launch.from_script.walk_script import Walker


def writes(walker: Walker, node: Node, lines: range) -> None:
    """A file that the script writes."""
    uses = [walker.scope.lookup(text_of(name)) for name in find_all(node, "variable_name")]
    hosts = any(value is not None and value.uses & {"hosts", "master"} for value in uses)
    text = text_of(node)
    if hosts or re.search(r"scontrol\s+show\s+hostname|slots=|host_?file|machine_?file|nodefile", text, re.IGNORECASE):
        walker.ledger.unnecessary(lines, "a host file: the launcher gets the nodes from Slurm")
    else:
        walker.ledger.not_understood(lines, "writes a file: write it once before submitting")


def reads(walker: Walker, node: Node, whole: Node, lines: range) -> None:
    """`read -ra NAME <<< "$SLURM_JOB_GPUS"`, `mapfile -t NAME < <(scontrol show hostnames …)`."""
    names = [text_of(child) for child in node.named_children[1:] if re.fullmatch(r"[A-Za-z_]\w*", text_of(child))]
    text = text_of(whole)
    if not names:
        walker.ledger.not_understood(lines, "reads input")
    elif re.search(r"SLURM_(JOB|STEP)_GPUS|CUDA_VISIBLE_DEVICES", text) and walker.request.gpus_per_node:
        walker.scope.assign(names[-1], ListValue(count=walker.request.gpus_per_node))
        walker.ledger.unnecessary(lines, "counts the GPUs of a node")
    elif re.search(r"scontrol\s+show\s+hostname|SLURM_(JOB_)?NODELIST", text):
        walker.scope.assign(names[-1], ListValue(count=walker.request.nodes, uses=frozenset({"hosts"})))
        walker.ledger.unnecessary(lines, "lists the nodes: the launcher gets them from Slurm")
    else:
        walker.ledger.not_understood(lines, "reads input")


def change_folder(walker: Walker, words: Sequence[Word], lines: range) -> None:
    """`cd FOLDER`, `cd -`, `pushd FOLDER`, `popd`."""
    job, text = walker.job, words[1].text if len(words) == 2 else ""
    before = job.workdir or walker.scope.folder
    if words[0].text == "popd" and job.folders:
        folder = job.folders.pop()
    elif text == "-" and job.last_folder is not None:
        folder = job.last_folder
    elif text in {"", "-"} or not words[1].value.known:
        walker.ledger.not_understood(lines, "a folder that is known only in the job")
        return
    elif text.startswith(("${", "~")):
        folder = text
    else:
        folder = os.path.normpath(os.path.join(before, text))
    job.last_folder = before
    if words[0].text == "pushd":
        job.folders.append(before)
    if folder == walker.scope.folder:
        walker.ledger.unnecessary(lines, "the training starts in the job file's folder")
    else:
        walker.ledger.taken(lines, "workdir")
    job.workdir = None if folder == walker.scope.folder else folder


def make_folder(walker: Walker, words: Sequence[Word], lines: range) -> None:
    """`mkdir -p FOLDER`."""
    names = [word for word in words[1:] if not word.text.startswith("-")]
    known = [word.text for word in names if word.value.known and "shell." not in word.text]
    if len(known) < len(names):
        walker.ledger.not_understood(lines, "a folder that is known only in the job")
    elif all(re.search(r"(^|/)(slurm[-_]?)?(logs?|out|err|output)/?\Z", name) for name in known):
        walker.ledger.unnecessary(lines, "each run keeps its logs in its own folder")
    else:
        walker.job.mkdir += known
        walker.ledger.taken(lines, "site: prelude")


def limit(walker: Walker, words: Sequence[Word], lines: range) -> None:
    """`ulimit -s unlimited`."""
    named = {"s": "stack", "l": "locked-memory", "n": "open-files", "u": "processes", "c": "core"}
    match = re.fullmatch(r"-[SH]?([slnuc])", words[1].text) if len(words) == 3 else None
    if match and re.fullmatch(r"\d+|unlimited", words[2].text):
        walker.job.ulimit[named[match[1]]] = words[2].text
        walker.ledger.taken(lines, "site: prelude")
    elif len(words) < 3:
        walker.ledger.unnecessary(lines, "prints only")
    else:
        walker.ledger.not_understood(lines, "a limit that is not known here")
