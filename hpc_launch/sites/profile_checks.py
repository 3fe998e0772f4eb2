"""Checks of a profile beyond its types: steps, limits, GPU requests and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.container import SECRET_NAME
from hpc_launch.job.document import Document, KeyPath
from hpc_launch.job.merge import Merged
from hpc_launch.sites.prelude import ACTIONS, ACTIONS_BY_PLACE, PreludeStep
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.queues import LimitRow

_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|sk-[\w-]{30,})|-----BEGIN [A-Z ]*KEY"
)


def find_tokens(document: Document) -> Iterator[Finding]:
    """HL317 for text in the format of a well-known service's access token."""
    for path, text in document.written.items():
        if _TOKEN.search(text):
            hint = "remove it and revoke it: others may have seen it"
            yield Finding(
                FindingCode.SECRET_IN_PROFILE, "the text looks like an access token", document.places.get(path), hint
            )


def check_profile(profile: SiteProfile, merged: Merged) -> Iterator[Finding]:
    """HL314 to HL317: errors that the types do not reveal."""
    for path, step in _entries(profile, "prelude"):
        yield from _check_step(step, path, merged)
    for path, setting in _entries(profile, "env"):
        yield from _check_secrets(setting.set, (*path, "set"), merged)
    named = [(("queues", name, "stack"), queue.stack, "stacks") for name, queue in profile.queues.items()]
    named += [(("node_classes", name, "stack"), node.stack, "stacks") for name, node in profile.node_classes.items()]
    named += [(("paths", name, "option"), folder.option, "options") for name, folder in profile.paths.items()]
    for path, wanted, table in named:
        if wanted is not None and wanted not in getattr(profile, table):
            message = f"the profile has no {path[-1]} `{wanted}`"
            hint = f"use one of `{table}:`: {', '.join(getattr(profile, table)) or 'none defined'}"
            yield Finding(FindingCode.UNKNOWN_PROFILE_NAME, message, merged.origin(*path).place, hint)
    for name, queue in profile.queues.items():
        yield from _check_limits(queue.limits, ("queues", name, "limits"), merged)
        node = profile.node_classes.get(queue.node_class)
        if node is not None:
            yield from _check_gpu_requests(profile, name, merged)
        if node is not None and node.gpu_request.endswith("-type") and node.gpu_type is None:
            message = f"`gpu_request: {node.gpu_request}` requires a GPU type"
            place = merged.origin("node_classes", queue.node_class, "gpu_request").place
            yield Finding(FindingCode.UNKNOWN_PROFILE_NAME, message, place, "set `gpu_type`")


_ASKS_FOR_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})


def _check_gpu_requests(profile: SiteProfile, name: str, merged: Merged) -> Iterator[Finding]:
    queue = profile.queues[name]
    node = profile.node_classes[queue.node_class]
    option_groups: tuple[tuple[KeyPath, Mapping[str, object]], ...] = (
        (("sbatch", "add"), profile.sbatch.add),
        (("node_classes", queue.node_class, "sbatch"), node.sbatch),
        (("queues", name, "sbatch"), queue.sbatch),
    )
    for path, options in option_groups if node.gpus and node.gpu_request != "none" else ():
        for option, value in options.items():
            if option in _ASKS_FOR_GPUS or (option == "gres" and str(value).startswith("gpu")):
                message = f"`{option}` requests GPUs, and so does `gpu_request: {node.gpu_request}`"
                hint = "remove one of them, or set `gpu_request: none` if the options are complete"
                yield Finding(FindingCode.UNKNOWN_PROFILE_NAME, message, merged.origin(*path, option).place, hint)


def _entries(profile: SiteProfile, key: str) -> Iterator[tuple[KeyPath, Any]]:
    """The entries of the lists `key` of the profile, and of each class of nodes, queue and option."""
    holders: list[tuple[KeyPath, Any]] = [((), profile)]
    for table in ("node_classes", "queues", "options"):
        holders += [((table, name), entry) for name, entry in getattr(profile, table).items()]
    for path, holder in holders:
        yield from (((*path, key, at), item) for at, item in enumerate(getattr(holder, key, ())))


def _check_step(step: PreludeStep, path: KeyPath, merged: Merged) -> Iterator[Finding]:
    actions = [action for action in ACTIONS if getattr(step, action) is not None]
    place = merged.origin(*path).place
    if len(actions) != 1:
        message = f"a step must have exactly one action, not {' and '.join(f'`{one}`' for one in actions) or 'none'}"
        yield Finding(FindingCode.INVALID_PRELUDE_STEP, message, place, f"use one of {', '.join(ACTIONS)}")
    elif step.where in ACTIONS_BY_PLACE and actions[0] not in ACTIONS_BY_PLACE[step.where]:
        message = f"`{actions[0]}` is not available with `where: {step.where}`"
        yield Finding(
            FindingCode.INVALID_PRELUDE_STEP,
            message,
            place,
            f"use one of {', '.join(sorted(ACTIONS_BY_PLACE[step.where]))}",
        )
    if step.raw is not None and ("\n" in step.raw or not step.raw.isprintable()):
        yield Finding(
            FindingCode.INVALID_PRELUDE_STEP, "`raw` must be a single printable line", place, "write one step per line"
        )
    yield from _check_secrets(step.set or {}, (*path, "set"), merged)


def _check_secrets(values: Mapping[str, object], path: KeyPath, merged: Merged) -> Iterator[Finding]:
    for name, value in values.items():
        if SECRET_NAME.search(name) and isinstance(value, str) and value and not value.startswith("${"):
            message = f"`{name}` looks like a secret, and others can read this file"
            hint = f"remove it, and list it in the job file: `secrets: [{name}]`"
            yield Finding(FindingCode.SECRET_IN_PROFILE, message, merged.origin(*path, name).place, hint)


def _check_limits(rows: list[LimitRow], path: KeyPath, merged: Merged) -> Iterator[Finding]:
    for at, row in enumerate(rows):
        first, last = _bounds(row.nodes)
        place = merged.origin(*path, at, "nodes").place
        if first > last:
            yield Finding(
                FindingCode.OVERLAPPING_LIMITS,
                f"the range `{row.nodes}` ends before it starts",
                place,
                "write the smaller number first",
            )
        for earlier in rows[:at]:
            if _overlap(row.nodes, earlier.nodes) and (
                row.gpus is None or earlier.gpus is None or _overlap(row.gpus, earlier.gpus)
            ):
                message = f"the row for {row.nodes} nodes overlaps the one for {earlier.nodes}"
                yield Finding(
                    FindingCode.OVERLAPPING_LIMITS, message, place, "change the ranges so that each count is in one row"
                )
                break


def _overlap(one: str, other: str) -> bool:
    (first, last), (start, end) = _bounds(one), _bounds(other)
    return first <= end and start <= last


def _bounds(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return int(first), int(last) if last else 10**9 if dash else int(first)
