"""Checks of a profile beyond its types: steps, names, limits, GPU requests and secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.base.secret_text import SECRET_NAME, SECRET_VALUE
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.merge import Merged
from hpc_launch.sites.job_settings import ACTIONS, ACTIONS_BY_PLACE
from hpc_launch.sites.profile import SiteProfile

_ASKS_FOR_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})
Fault = tuple[FindingCode, KeyPath, str, str]
"""Code, place, message and hint."""


def find_tokens(document: Document) -> Iterator[Finding]:
    """HL317 for text in the format of a well-known service's access token."""
    message, hint = "the text looks like an access token", "remove it and revoke it: others may have seen it"
    for path, text in document.written.items():
        if SECRET_VALUE.search(text):
            yield Finding(FindingCode.SECRET_IN_PROFILE, message, document.places.get(path), hint)


def check_profile(profile: SiteProfile, merged: Merged) -> Iterator[Finding]:
    """HL314 to HL317: errors that the types do not reveal."""
    for rule in RULES:
        for code, path, message, hint in rule(profile):
            yield Finding(code, message, merged.origin(*path).place, hint)


def _entries(profile: SiteProfile, key: str) -> Iterator[tuple[KeyPath, Any]]:
    """The entries of the lists `key` of the profile, and of each class of nodes, queue and option."""
    holders: list[tuple[KeyPath, Any]] = [((), profile)]
    for table in ("node_classes", "queues", "options"):
        holders += [((table, name), entry) for name, entry in getattr(profile, table).items()]
    for path, holder in holders:
        yield from (((*path, key, at), item) for at, item in enumerate(getattr(holder, key, ())))


def _steps(profile: SiteProfile) -> Iterator[Fault]:
    code = FindingCode.INVALID_PRELUDE_STEP
    for path, step in _entries(profile, "prelude"):
        actions = [action for action in ACTIONS if getattr(step, action) is not None]
        here = ACTIONS_BY_PLACE.get(step.where, frozenset(ACTIONS))
        if len(actions) != 1:
            found = " and ".join(f"`{one}`" for one in actions) or "none"
            yield code, path, f"a step must have exactly one action, not {found}", f"use one of {', '.join(ACTIONS)}"
        elif actions[0] not in here:
            message = f"`{actions[0]}` is not available with `where: {step.where}`"
            yield code, path, message, f"use one of {', '.join(sorted(here))}"
        if step.raw is not None and ("\n" in step.raw or not step.raw.isprintable()):
            yield code, path, "`raw` must be a single printable line", "write one step per line"


def _secrets(profile: SiteProfile) -> Iterator[Fault]:
    for path, entry in (*_entries(profile, "prelude"), *_entries(profile, "env")):
        for name, value in (entry.set or {}).items():
            if SECRET_NAME.search(name) and isinstance(value, str) and value and not value.startswith("${"):
                message = f"`{name}` looks like a secret, and others can read this file"
                hint = f"remove it, and list it in the job file: `secrets: [{name}]`"
                yield FindingCode.SECRET_IN_PROFILE, (*path, "set", name), message, hint


def _names(profile: SiteProfile) -> Iterator[Fault]:
    named = [(("queues", name, "stack"), queue.stack, "stacks") for name, queue in profile.queues.items()]
    named += [(("node_classes", name, "stack"), node.stack, "stacks") for name, node in profile.node_classes.items()]
    named += [(("paths", name, "option"), folder.option, "options") for name, folder in profile.paths.items()]
    for path, wanted, table in named:
        if wanted is not None and wanted not in getattr(profile, table):
            hint = f"use one of `{table}:`: {', '.join(getattr(profile, table)) or 'none defined'}"
            yield FindingCode.UNKNOWN_PROFILE_NAME, path, f"the profile has no {path[-1]} `{wanted}`", hint


def _limits(profile: SiteProfile) -> Iterator[Fault]:
    code = FindingCode.OVERLAPPING_LIMITS
    for name, queue in profile.queues.items():
        for at, row in enumerate(queue.limits):
            path: KeyPath = ("queues", name, "limits", at, "nodes")
            first, last = _bounds(row.nodes)
            if first > last:
                yield code, path, f"the range `{row.nodes}` ends before it starts", "write the smaller number first"
            overlapping = (
                earlier
                for earlier in queue.limits[:at]
                if _overlap(row.nodes, earlier.nodes) and _overlap(row.gpus or "0-", earlier.gpus or "0-")
            )
            if (earlier := next(overlapping, None)) is not None:
                message = f"the row for {row.nodes} nodes overlaps the one for {earlier.nodes}"
                yield code, path, message, "change the ranges so that each count is in one row"


def _overlap(one: str, other: str) -> bool:
    (first, last), (start, end) = _bounds(one), _bounds(other)
    return first <= end and start <= last


def _bounds(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return int(first), int(last) if last else 10**9 if dash else int(first)


def _gpu_requests(profile: SiteProfile) -> Iterator[Fault]:
    code = FindingCode.UNKNOWN_PROFILE_NAME
    for name, queue in profile.queues.items():
        node = profile.node_classes.get(queue.node_class)
        if node is None:
            continue
        of_node: KeyPath = ("node_classes", queue.node_class)
        request = f"`gpu_request: {node.gpu_request}`"
        if node.gpu_request.endswith("-type") and node.gpu_type is None:
            yield code, (*of_node, "gpu_request"), f"{request} requires a GPU type", "set `gpu_type`"
        if not node.gpus or node.gpu_request == "none":
            continue
        options: list[tuple[KeyPath, object]] = [
            *((("sbatch", "add", option), value) for option, value in profile.sbatch.add.items()),
            *(((*of_node, "sbatch", option), value) for option, value in node.sbatch.items()),
            *((("queues", name, "sbatch", option), value) for option, value in queue.sbatch.items()),
        ]
        for path, value in options:
            if path[-1] in _ASKS_FOR_GPUS or (path[-1] == "gres" and str(value).startswith("gpu")):
                message = f"`{path[-1]}` requests GPUs, and so does {request}"
                hint = "remove one of them, or set `gpu_request: none` if the options are complete"
                yield code, path, message, hint


RULES: tuple[Callable[[SiteProfile], Iterator[Fault]], ...] = (_steps, _secrets, _names, _limits, _gpu_requests)
