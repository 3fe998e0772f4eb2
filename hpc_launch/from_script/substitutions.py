"""What a command substitution stands for, told from its text. None is ever run."""

from __future__ import annotations

import re
from collections.abc import Callable

from hpc_launch.from_script.values import MASTER, Value, unknown

_HOSTS = re.compile(r"scontrol\s+show\s+hostnames?\b|\bnodeset\b|\bhostlist\b|expand_hostlist|SLURM_(JOB_)?NODELIST")
_FIRST = re.compile(
    r"head\s+-?-?(n|lines)?[=\s]*-?1\b|sed\s+-n\s+['\"]?1p|awk\s+'?NR\s*==\s*1|cut\s+-d|\[0\]|-f\s*1\b|head\s+-1\b"
)
_COUNT = re.compile(r"wc\s+(-l|-w|--lines)")
_THIS_HOST = re.compile(r"\bhostname\b|\bgetent\s+(a?hosts\w*)|\bip\s+(-\S+\s+)*addr|\buname\s+-n")
_NAMED = re.compile(r"(?:which|command\s+-v|type\s+-p)\s+([A-Za-z0-9_.-]+)\Z")
_PORT = re.compile(r"RANDOM|\bshuf\b|SLURM_JOB_?ID|socket|\bcomm\b|\bss\s|netstat|getsockname")


def meaning(text: str, lookup: Callable[[str], Value | None], folder: str) -> Value:
    """The value of `$(text)`, if its text tells.

    Args: text: of the commands. lookup: the value of a variable. folder: in which the job was submitted.
    """
    inside = text.strip()
    shown = f"$({inside})"
    if inside in {"pwd", "pwd -P", "readlink -f .", "realpath ."}:
        return Value(folder)
    if inside in {"whoami", "id -un", "logname"}:
        return Value("${user}")
    named = _NAMED.match(inside)
    if named:
        return Value(named[1])
    if re.search(r"nvidia-smi\s+(-L|--list-gpus|--query-gpu)", inside) and (_COUNT.search(inside) or "count" in inside):
        return lookup("SLURM_GPUS_ON_NODE") or unknown(shown)
    uses_hosts = any(
        value is not None and "hosts" in value.uses for value in map(lookup, re.findall(r"\$\{?(\w+)", inside))
    )
    if _HOSTS.search(inside) or uses_hosts:
        if _COUNT.search(inside):
            return lookup("SLURM_JOB_NUM_NODES") or unknown(shown)
        return MASTER if _FIRST.search(inside) else unknown(shown, "hosts")
    if _THIS_HOST.search(inside):
        return MASTER
    if _PORT.search(inside):
        return unknown(shown, "port")
    uses = {use for value in map(lookup, re.findall(r"\$\{?(\w+)", inside)) if value for use in value.uses}
    return unknown(shown, *uses)
