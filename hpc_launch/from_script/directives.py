"""The `#SBATCH` lines of a script, as sbatch reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.option_words import Option
from hpc_launch.from_script.slurm_options import SBATCH
from hpc_launch.from_script.values import Word, literal

_DIRECTIVE = re.compile(r"#SBATCH(\s|$)")
_ALIASES = {"tasks-per-node": "ntasks-per-node"}
_LATER_COMMENT = re.compile(r"\s#.*")


class Directives(Struct, frozen=True):
    """The options in effect; a later one replaces an earlier one of the same name."""

    options: tuple[Option, ...]

    def get(self, *names: str) -> str | None:
        """The value of the option in effect."""
        found = [option for option in self.options if option.name in names]
        return (found[-1].value.text if found[-1].value else "") if found else None

    def lines(self, *names: str) -> list[int]:
        """The lines of these options."""
        return [option.line for option in self.options if option.name in names]


def read_directives(lines: Sequence[str], ledger: Ledger) -> Directives:
    """The directives before the first command, with the account of every other comment and of lines that sbatch
    does not read."""
    options: list[Option] = []
    commands = component = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if number == 1 and text.startswith("#!"):
            _shebang(text, ledger)
        elif not line.startswith("#"):
            commands = commands or not text.startswith("#")
            if text.startswith("#SBATCH"):
                ledger.unnecessary([number], "an indented directive, which sbatch does not read")
        elif not _DIRECTIVE.match(line):
            if not commands:
                _comment(line, number, ledger, alone=not any(map(_DIRECTIVE.match, lines)))
        elif commands:
            ledger.unnecessary([number], "a directive after the first command, which sbatch does not read")
        elif component:
            ledger.not_understood([number], "a heterogeneous job: a job file describes one component")
        elif text.split()[1:2] in (["hetjob"], ["packjob"]):
            component = True
            ledger.not_understood([number], "a heterogeneous job: only its first component was taken over")
        else:
            options += _options(line[len("#SBATCH") :], number, ledger)
    return Directives(tuple(options))


def _comment(line: str, number: int, ledger: Ledger, *, alone: bool) -> None:
    """A comment. sbatch reads `#PBS` and `#BSUB` too; where no `#SBATCH` says more, they are the request."""
    if not re.match(r"#(PBS|BSUB|\$|PJM|COBALT|OAR)\s+-", line):
        ledger.unnecessary([number], "a comment")
    elif alone:
        ledger.not_understood([number], "a directive of another scheduler")
    else:
        ledger.unnecessary([number], "a directive of another scheduler")


def _shebang(text: str, ledger: Ledger) -> None:
    if re.match(r"#!\s*(/usr)?(/local)?/bin/(env\s+)?(-S\s+)?(ba|z|k|da)?sh\b", text):
        login = re.search(r"\s-\w*l|--login", text)
        if login:
            ledger.taken([1], "site: login_shell", why="a login shell")
        else:
            ledger.unnecessary([1], "the script gets its own first line")
    else:
        ledger.not_understood([1], "another interpreter than a shell")


def _options(text: str, number: int, ledger: Ledger) -> list[Option]:
    """All options of a line: sbatch accepts several, and quotes."""
    try:
        words = shlex.split(_LATER_COMMENT.sub("", text).replace("\\#", "#"))
    except ValueError:
        ledger.not_understood([number], "an unclosed quote")
        return []
    split = SBATCH.split([Word(literal(word), number, word) for word in words])
    result = []
    for option in split.options:
        if option.known:
            result.append(replace(option, name=_ALIASES.get(option.name, option.name)))
        else:
            ledger.not_understood([number], f"`--{option.name}` is not an option of sbatch that is known here")
    if split.rest:
        ledger.not_understood([number], f"`{split.rest[0].raw}` is not an option")
    if not words:
        ledger.unnecessary([number], "a directive without options")
    return result
