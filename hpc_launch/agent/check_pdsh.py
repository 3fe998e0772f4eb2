"""Whether pdsh starts programs by ssh, for check.py. Standard library of Python 3.6 or later."""

import os
import re

from hpc_launch.agent.check_host import CHECK_S, Result, answer, result, text_of

RCMD_DEFAULT = "/etc/pdsh/rcmd_default"
"""The site's choice, if PDSH_RCMD_TYPE is not set (pdsh(1))."""


def pdsh(first: bool, kind: str) -> Result:
    """What pdsh uses on the first node, or by `kind` what the launcher lets it use."""
    if not first:
        return result(True, "only the first node starts others")
    try:
        _, text = answer(["pdsh", "-V"], CHECK_S)
    except OSError:
        return result(False, "no pdsh: install it, or use another launcher")
    found = re.search(r"rcmd modules: (\S+) \(default: (\S+)\)", text)
    modules, default = (found.group(1).split(","), found.group(2)) if found else ([], "")
    if modules and "ssh" not in modules:
        return result(False, "pdsh has no module for ssh: install it (pdsh-rcmd-ssh)")
    kind = kind or os.environ.get("PDSH_RCMD_TYPE", "") or text_of(RCMD_DEFAULT).strip() or default
    if kind and kind != "ssh":
        return result(False, "pdsh uses %s: set `env: {PDSH_RCMD_TYPE: ssh}`" % kind)
    return result(True, "pdsh uses ssh")
