"""What became of each line of the script: taken over, unnecessary here, or not understood. No line is dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from hpc_launch.from_script.secret_values import without_secrets

Outcome = Literal["taken", "unnecessary", "not_understood"]
_RANK = {"unnecessary": 0, "taken": 1, "not_understood": 2}


class LineAccount(Struct, frozen=True):
    """What became of one line. `keys`: where its content is in the job file or the site profile."""

    line: int
    text: str
    outcome: Outcome
    keys: tuple[str, ...]
    why: str


class Ledger:
    """The accounts of a script while it is read. Every non-blank line ends up with exactly one."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._outcomes: dict[int, tuple[Outcome, list[str], list[str]]] = {}

    def taken(self, lines: Iterable[int], *keys: str, why: str = "") -> None:
        """The lines' content is in these keys."""
        self._note(lines, "taken", keys, why)

    def unnecessary(self, lines: Iterable[int], why: str) -> None:
        """The lines are not needed, for this reason."""
        self._note(lines, "unnecessary", (), why)

    def not_understood(self, lines: Iterable[int], why: str) -> None:
        """A person has to look at the lines."""
        self._note(lines, "not_understood", (), why)

    def _note(self, lines: Iterable[int], outcome: Outcome, keys: Iterable[str], why: str) -> None:
        """Several statements of a line share its account: the one that needs most attention decides."""
        for line in lines:
            before, old_keys, reasons = self._outcomes.get(line, ("unnecessary", [], []))
            stronger = _RANK[outcome] > _RANK[before]
            kept = [] if stronger else reasons
            if why and why not in kept and _RANK[outcome] >= _RANK[before]:
                kept = [*kept, why]
            chosen: Outcome = outcome if stronger else before
            self._outcomes[line] = (chosen, [*old_keys, *(key for key in keys if key not in old_keys)], kept)

    def adopt(self, other: Ledger, why: str) -> None:
        """The accounts of statements that have no effect on what follows, for this reason."""
        for line, (outcome, _, reasons) in other._outcomes.items():
            if outcome == "not_understood":
                self._note([line], outcome, (), "; ".join(reasons))
            else:
                self.unnecessary([line], why)

    def known(self, line: int) -> bool:
        """Whether a line has an account."""
        return line in self._outcomes

    def all_unnecessary(self, lines: Iterable[int]) -> bool:
        """Whether every line with an account is unnecessary."""
        return all(self._outcomes[line][0] == "unnecessary" for line in lines if line in self._outcomes)

    def any_not_understood(self, other_than: Iterable[int]) -> bool:
        """Whether a statement was not understood, or a line besides these not read at all."""
        unread = set(other_than) - self._outcomes.keys()
        return any(account.outcome == "not_understood" for account in self.accounts() if account.line not in unread)

    def accounts(self) -> tuple[LineAccount, ...]:
        """One account for each line that is not blank, in order."""
        result = []
        for number, line in enumerate(self._lines, 1):
            if line.strip():
                nothing: tuple[Outcome, list[str], list[str]] = ("not_understood", [], ["not read as a shell command"])
                outcome, keys, reasons = self._outcomes.get(number, nothing)
                text = without_secrets(line)
                result.append(LineAccount(number, text, outcome, tuple(keys), without_secrets("; ".join(reasons))))
        return tuple(result)
