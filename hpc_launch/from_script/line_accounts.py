"""What became of each line of the script: taken over, unnecessary here, or not understood. No line is dropped, and no
secret is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from hpc_launch.job.container import SECRET_NAME

Outcome = Literal["unnecessary", "taken", "not_understood"]
_RANK = {"unnecessary": 0, "taken": 1, "not_understood": 2}
_SECRET = re.compile(
    r"(\b(?:\w+_)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)=|(?i:--?[\w-]*(?:api[_-]?key|token|password|secret)(?:=|\s+)))"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)"
)
_LOGIN = re.compile(r"((?:wandb\s+login|huggingface-cli\s+login|hf\s+auth\s+login)\b[^;&|]*?)(\s)([A-Za-z0-9_]{16,})")
_CREDENTIAL = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|"
    r"glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|(?<=://)[^\s/:@]+:[^\s/@]+(?=@))"
)
"""What the services themselves mark as a key, and a password in a URL."""
_ASSIGNED = re.compile(r"\b(?P<name>\w*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))=(?!\$)(?:\"[^\"]*\"|'[^']*'|[^\s\"';&|]+)")


def without_secrets(text: str) -> str:
    """The text, with dots in place of values that look like a password or a key."""
    hidden = _SECRET.sub(lambda found: found[0] if found[2].strip("\"'")[:1] == "$" else f"{found[1]}…", text)
    return _CREDENTIAL.sub("…", _LOGIN.sub(r"\1\2…", hidden))


def take_out(text: str) -> tuple[str, list[str], bool]:
    """A value without secrets, the variables that it reads instead, and whether a value was left out for good."""
    names = [name for name in re.findall(r"(?<!\$)\$\{shell\.(\w+)\}", text) if SECRET_NAME.search(name)]

    def read_variable(found: re.Match[str]) -> str:
        name = found["name"]
        if not SECRET_NAME.search(name):
            return found[0]
        names.append(name)
        return f"{name}=${name}" if " " in text else f"{name}=${{shell.{name}}}"  # with blanks: text of `bash -c`

    kept = _ASSIGNED.sub(read_variable, text)
    hidden = _CREDENTIAL.sub("…", kept)
    return hidden, names, hidden != kept


class LineAccount(Struct, frozen=True):
    """What became of one line. `keys`: where its content is in the job file or the site profile."""

    line: int
    text: str
    outcome: Outcome
    keys: tuple[str, ...]
    why: str


class Note(Struct):
    """What is known of one line so far."""

    outcome: Outcome
    keys: list[str] = []
    reasons: list[str] = []


class Ledger:
    """The accounts of a script while it is read. Every non-blank line ends up with exactly one."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.notes: dict[int, Note] = {}

    def taken(self, lines: Iterable[int], *keys: str, why: str = "") -> None:
        """The lines' content is in these keys."""
        self._note(lines, "taken", why, keys)

    def unnecessary(self, lines: Iterable[int], why: str) -> None:
        """The lines are not needed, for this reason."""
        self._note(lines, "unnecessary", why)

    def not_understood(self, lines: Iterable[int], why: str) -> None:
        """A person has to look at the lines."""
        self._note(lines, "not_understood", why)

    def _note(self, lines: Iterable[int], outcome: Outcome, why: str, keys: Iterable[str] = ()) -> None:
        """Several statements of a line share its account: the one that needs most attention decides."""
        for line in lines:
            note = self.notes.setdefault(line, Note("unnecessary"))
            if _RANK[outcome] > _RANK[note.outcome]:
                note.outcome, note.reasons = outcome, []
            if why and why not in note.reasons and outcome == note.outcome:
                note.reasons.append(why)
            note.keys += [key for key in keys if key not in note.keys]

    def accounts(self) -> tuple[LineAccount, ...]:
        """One account for each line that is not blank, in order."""
        result = []
        nothing = Note("not_understood", reasons=["not read as a shell command"])
        for number, line in enumerate(self._lines, 1):
            if line.strip():
                note = self.notes.get(number, nothing)
                why = without_secrets("; ".join(note.reasons))
                result.append(LineAccount(number, without_secrets(line), note.outcome, tuple(note.keys), why))
        return tuple(result)
