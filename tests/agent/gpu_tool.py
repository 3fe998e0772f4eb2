"""A GPU vendor's tool with a fault, whose answers are kept."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

Ask = Callable[[list[str], float], tuple[int, str]]


class Tool:
    """A shell script in the place of the tool; it reads its fault from a file beside it."""

    def __init__(self, path: Path, text: str, note: str) -> None:
        self.path = path
        self.note = path.parent / f"node.{note}"
        self.known: dict[tuple[str, ...], tuple[int, str]] = {}
        path.write_text(text.replace("$(hostname)", "node"))
        path.chmod(0o755)

    def faulty(self, fault: str) -> Ask:
        """The tool with this fault."""
        return lambda words, _limit: self.answer(fault, words)

    def cut(self, size: int, fault: str = "") -> Ask:
        """The tool whose answers end after so many characters."""

        def ask(words: list[str], _limit: float) -> tuple[int, str]:
            code, text = self.answer(fault, words)
            return code, text[:size]

        return ask

    def answer(self, fault: str, words: list[str]) -> tuple[int, str]:
        """What it prints to these words, and its exit code."""
        assert words[0] == self.path.name
        key = (fault, *words)
        if key not in self.known:
            self.note.write_text(fault if self.note.suffix == ".xpu" else f"fault={fault!r}\n")
            done = subprocess.run(["bash", str(self.path), *words[1:]], check=False, capture_output=True, text=True)
            self.known[key] = (done.returncode, done.stdout)
        return self.known[key]
