"""Run a page: write the files that it shows, run its commands, and look for the output that it shows.

A fenced block with a title is a file: ```` ```yaml title="job.yaml" ````. A block `console` has commands, each after
`$ `, and some of the lines that they print. In those lines, `…` stands for any text; names of runs, job ids, spans of
time, shares and the width of columns may differ.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.forked import hpc_launch_text

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)

VARIABLE = {
    "…": ".*",
    r"\d{6}-\d{6}-[0-9a-f]{4}": r"\d{6}-\d{6}-[0-9a-f]{4}",
    r"local-\d+": r"local-\d+",
    r"^\d\d:\d\d:\d\d|(?<=started )\d\d:\d\d:\d\d": r"\d\d:\d\d:\d\d",
    r"\d[\d.]* [smhd] ago|just now": r"(?:\d[\d.]* [smhd] ago|just now)",
    r"\d[\d.]* [smhd]\b(?: \d\d? [smhd]\b)*": r"\d[\d.]* [smhd](?: \d\d? [smhd])*",
    r"\d[\d.]*%": r"\d[\d.]*%",
    r" +": " +",
}
"""What may differ in a line of output, and what is then allowed."""


@dataclass(frozen=True)
class Command:
    """A command of a page, and the lines that it shows below it."""

    words: str
    shown: tuple[str, ...]

    def missing(self, printed: str) -> list[str]:
        """The shown lines that were not printed."""
        lines = printed.splitlines()
        return [line for line in self.shown if line != "…" and not any(_pattern(line).fullmatch(one) for one in lines)]


class Reader(Protocol):
    """Somebody who does what a page says. `names`: what is called otherwise here than on the pages."""

    @property
    def names(self) -> Mapping[str, str]: ...

    def write(self, name: str, text: str) -> None: ...

    def run(self, words: str) -> tuple[int, str]:
        """The exit code of a command, and all that it printed."""


@dataclass(frozen=True)
class LocalReader:
    """A reader on this machine, in the folder `project` of a fresh home."""

    home: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def names(self) -> Mapping[str, str]:
        """The home and the host are those of the test."""
        return {"/home/alice": str(self.home), "laptop": socket.gethostname()}

    @property
    def folder(self) -> Path:
        """Where the reader works."""
        folder = self.home / "project"
        folder.mkdir(exist_ok=True)
        return folder

    def write(self, name: str, text: str) -> None:
        """Write a file of the page."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, words: str) -> tuple[int, str]:
        """Run a command; those of hpc-launch alone without the time that its imports take."""
        environment = {**self.environment, "HOME": str(self.home)}
        if words.startswith("hpc-launch ") and not re.search(r"[|>;&$]", words):
            done = hpc_launch_text(shlex.split(words)[1:], cwd=self.folder, env=environment)
        else:
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
            command = ["bash", "-c", words]
            done = subprocess.run(
                command, check=False, cwd=self.folder, env=environment, capture_output=True, text=True
            )
        return done.returncode, done.stdout + done.stderr


def steps(page: str) -> Iterator[tuple[str, str] | Command]:
    """What a reader does, in order: files to write, as name and text, and commands to run."""
    for match in FENCE.finditer((DOCS / page).read_text(encoding="utf-8")):
        if match["title"]:
            yield match["title"], match["text"]
        elif match["language"] == "console":
            yield from _commands(match["text"])


def follow(page: str, reader: Reader, *, without: str | None = None) -> list[str]:
    """Do what a page of docs/ says; returns the commands that were run. `without`: leave out those that begin so.

    Raises AssertionError with what a command printed, where a line that the page shows is missing.
    """
    ran = []
    for step in steps(page):
        if not isinstance(step, Command):
            reader.write(*step)
            continue
        if without is not None and step.words.startswith(without):
            continue
        code, printed = reader.run(_renamed(step.words, reader.names))
        for name, here in reader.names.items():
            printed = printed.replace(here, name)
        report = f"$ {step.words}\n{printed}\n(exit code {code})"
        missing = step.missing(printed)
        assert not missing, f"{report}\nnot printed:\n" + "\n".join(missing)
        assert code == 0 or (step.shown and code in (1, 3)), report
        ran.append(step.words)
    return ran


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for name, here in names.items():
        text = text.replace(name, here)
    return text


def _commands(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        first, *shown = part.splitlines()
        yield Command(first, tuple(line for line in shown if line.strip()))


def _pattern(line: str) -> re.Pattern[str]:
    either = re.compile("|".join(f"(?P<v{at}>{pattern})" for at, pattern in enumerate(VARIABLE)))
    allowed, found, position = list(VARIABLE.values()), "", 0
    for match in either.finditer(line):
        found += re.escape(line[position : match.start()]) + allowed[int((match.lastgroup or "v0")[1:])]
        position = match.end()
    return re.compile(found + re.escape(line[position:]) + " *")
