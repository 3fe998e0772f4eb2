"""Values of secrets in a script: the job file and every message leave them out."""

from __future__ import annotations

import re

from hpc_launch.from_script.values import Value
from hpc_launch.job.secret_names import SECRET_NAME

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


def secret_variable(name: str) -> Value:
    """The value of a secret variable: the job reads it from its environment."""
    return Value(f"${{shell.{name}}}", True, frozenset({"secret"}))


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
