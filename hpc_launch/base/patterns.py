"""Regular expressions that others wrote, searched by RE2: its time grows with the length of the text, and no faster.

What looks like a secret: names of variables and options, and the forms that services give their keys.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

MEMORY = 1 << 18
"""Bytes of one expression's program. They bound the time of a search too: a tenth of a second for a line."""


@lru_cache(maxsize=256)
def compiled(text: str) -> re.Pattern[str]:
    """The expression, with the methods of `re.Pattern`. Raises re.error where `re` or RE2 rejects it.

    Jobs search with `re` (Python in a job has nothing else), so that both must accept it.
    """
    try:
        pattern = re.compile(text)
    except (RecursionError, OverflowError) as error:
        raise re.error(str(error)) from error
    try:
        import re2
    except ImportError:  # no build for this machine
        return pattern
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY
    found: Any
    try:
        found = re2.compile(text, options)
    except re2.error as error:
        raise re.error(f"{_words(error)} (the syntax is RE2's, without look-around and backreferences)") from error
    return found  # type: ignore[no-any-return]  # a class of its own


def matches_whole(text: str, value: str) -> bool:
    """Whether an expression matches the whole value; False if it is invalid."""
    try:
        return compiled(text).fullmatch(value) is not None
    except re.error:
        return False


def _words(error: Any) -> str:
    first = error.args[0] if error.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


SECRET_NAME = re.compile(r"(^|[_.])(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)$")
"""Searched in the name of a variable."""
SECRET_OPTION = re.compile(
    r"(?i)(^|[-_])(api[-_]?key|(auth|access|hf|hub|api|github)[-_]?token|secret([-_]key)?|password|passwd)$"
)
"""Searched in the name of an argument. `pad_token` and `sort_key` are no secrets."""
SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-(?:proj|ant|svcacct|or)-[\w-]{16,}|sk-[A-Za-z0-9]{16,}|"
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|"
    r"(?<=://)[^\s/:@$]+:[^\s/@$]+(?=@(?!sha\d)))|-----BEGIN [A-Z ]*KEY"
)
"""What the services themselves mark as a key, a private key, and a password in a URL."""
