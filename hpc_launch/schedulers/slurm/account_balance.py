"""How much of an account's budget is used, as the controller counts it.

`scontrol show assoc_mgr` prints `GrpTRESMins=gres/gpu=6000(12)`: limit and use in minutes, `N` without a limit (seen
with 22.05). sacctmgr knows the limit but not its use, and sshare prints no limit. The balance is unknown where a site
keeps its budgets elsewhere or hides these records (PrivateData).
"""

from __future__ import annotations

import re

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.user_dirs import user
from hpc_launch.schedulers.queue_limits import Balance
from hpc_launch.schedulers.slurm import parse_cluster, run_command
from hpc_launch.schedulers.slurm.parse_values import optional_text
from hpc_launch.schedulers.slurm.query_limits import _PLAIN

_BUDGETED = ("gres/gpu", "billing", "node", "cpu")
"""Of several budgets the first counts: Slurm enforces each of them."""
_BUDGET = re.compile(r"([\w/]+)=(\d{1,15})\((\d{1,15})\)", re.ASCII)


def balance(account: str | None) -> Balance | None:
    """The budget of the account (None: the user's default one). None where Slurm reports none."""
    try:
        account = account or _default_account(_records(f"users={user()}"))
        if account is None or not _PLAIN.match(account):
            return None
        return parse_balance(account, _records(f"accounts={account}"))
    except Unreachable:
        return None


def _records(which: str) -> str:
    return run_command.ask(["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc", which])


def _default_account(text: str) -> str | None:
    rows = parse_cluster.records(text)
    return next((optional_text(row.get("Account")) for row in rows if row.get("DefAssoc") == "Yes"), None)


def parse_balance(account: str, text: str) -> Balance | None:
    """The budget that all users of the account share, else the user's own."""
    rows = [row for row in parse_cluster.records(text) if row.get("Account", "").lower() == account.lower()]
    shared = [row for row in rows if not row.get("UserName")]
    own = [row for row in rows if row.get("UserName", "").partition("(")[0] == user()]
    for row in (*shared, *own):
        found = {name: (int(limit), int(used)) for name, limit, used in _BUDGET.findall(row.get("GrpTRESMins", ""))}
        resource = next((name for name in _BUDGETED if name in found), None)
        if resource is not None:
            limit, used = found[resource]
            return Balance(account, resource, limit / 60, used / 60)
    return None
