"""What a profile must not say, whatever the job: steps of two minds, rows that overlap, secrets, groups of nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.sites.prelude import ACTIONS, PLACES, PreludeStep, Setting
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.queues import LimitRow
from hpc_launch.spec.document import Document, KeyPath
from hpc_launch.spec.merge import Merged

T = TypeVar("T")

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")


_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|sk-[\w-]{30,})|-----BEGIN [A-Z ]*KEY"
)


def tokens(document: Document) -> Iterator[Finding]:
    """HL317 for a text that has the form of a well-known service's token, wherever it stands."""
    for path, text in document.written.items():
        if _TOKEN.search(text):
            hint = "take it out, and make a new one: others may have seen it"
            yield Finding(
                FindingCode.SECRET_IN_PROFILE, "this looks like an access token", document.places.get(path), hint
            )


def check_profile(profile: SiteProfile, merged: Merged) -> Iterator[Finding]:
    """HL314 to HL317: what types alone do not tell."""
    for path, step in _steps(profile):
        yield from _check_step(step, path, merged)
    for path, setting in _settings(profile):
        yield from _check_secrets(setting.set, (*path, "set"), merged)
    for name, queue in profile.queues.items():
        yield from _check_rows(queue.limits, ("queues", name, "limits"), merged)
        node = profile.node_classes.get(queue.node_class)
        if node is not None:
            yield from _check_gpu_requests(profile, name, merged)
        if node is not None and node.gpu_request.endswith("-type") and node.gpu_type is None:
            message = f"`gpu_request: {node.gpu_request}` needs the type"
            place = merged.origin("node_classes", queue.node_class, "gpu_request").place
            yield Finding(FindingCode.UNKNOWN_PROFILE_NAME, message, place, "say `gpu_type`")


_ASKS_FOR_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})


def _check_gpu_requests(profile: SiteProfile, name: str, merged: Merged) -> Iterator[Finding]:
    queue = profile.queues[name]
    node = profile.node_classes[queue.node_class]
    said: tuple[tuple[KeyPath, Mapping[str, object]], ...] = (
        (("sbatch", "add"), profile.sbatch.add),
        (("node_classes", queue.node_class, "sbatch"), node.sbatch),
        (("queues", name, "sbatch"), queue.sbatch),
    )
    for path, options in said if node.gpus and node.gpu_request != "none" else ():
        for option, value in options.items():
            if option in _ASKS_FOR_GPUS or (option == "gres" and str(value).startswith("gpu")):
                message = f"`{option}` asks for GPUs, and so does `gpu_request: {node.gpu_request}`"
                hint = "keep one of them; `gpu_request: none` where the options say it all"
                yield Finding(FindingCode.UNKNOWN_PROFILE_NAME, message, merged.origin(*path, option).place, hint)


def _steps(profile: SiteProfile) -> Iterator[tuple[KeyPath, PreludeStep]]:
    yield from _numbered((), "prelude", profile.prelude)
    for name, node in profile.node_classes.items():
        yield from _numbered(("node_classes", name), "prelude", node.prelude)
    for name, option in profile.options.items():
        yield from _numbered(("options", name), "prelude", option.prelude)


def _settings(profile: SiteProfile) -> Iterator[tuple[KeyPath, Setting]]:
    yield from _numbered((), "env", profile.env)
    for name, node in profile.node_classes.items():
        yield from _numbered(("node_classes", name), "env", node.env)
    for name, queue in profile.queues.items():
        yield from _numbered(("queues", name), "env", queue.env)
    for name, option in profile.options.items():
        yield from _numbered(("options", name), "env", option.env)


def _numbered(path: KeyPath, key: str, items: Iterable[T]) -> Iterator[tuple[KeyPath, T]]:
    yield from (((*path, key, at), item) for at, item in enumerate(items))


def _check_step(step: PreludeStep, path: KeyPath, merged: Merged) -> Iterator[Finding]:
    actions = [action for action in ACTIONS if getattr(step, action) is not None]
    place = merged.origin(*path).place
    if len(actions) != 1:
        message = (
            f"a step does one thing; this one has {' and '.join(f'`{one}`' for one in actions) or 'nothing to do'}"
        )
        yield Finding(FindingCode.INVALID_PRELUDE_STEP, message, place, f"one of {', '.join(ACTIONS)}")
    elif step.where in PLACES and actions[0] not in PLACES[step.where]:
        message = f"`{actions[0]}` cannot be done with `where: {step.where}`"
        yield Finding(
            FindingCode.INVALID_PRELUDE_STEP, message, place, f"there go {', '.join(sorted(PLACES[step.where]))}"
        )
    if step.raw is not None and ("\n" in step.raw or not step.raw.isprintable()):
        yield Finding(FindingCode.INVALID_PRELUDE_STEP, "`raw` is one line", place, "write a step for each line")
    yield from _check_secrets(step.set or {}, (*path, "set"), merged)


def _check_secrets(values: Mapping[str, object], path: KeyPath, merged: Merged) -> Iterator[Finding]:
    for name, value in values.items():
        if _SECRET.search(name) and isinstance(value, str) and value and not value.startswith("${"):
            message = f"`{name}` looks like a secret, and others read this file"
            hint = f"users list it: `secrets: [{name}]`"
            yield Finding(FindingCode.SECRET_IN_PROFILE, message, merged.origin(*path, name).place, hint)


def _check_rows(rows: list[LimitRow], path: KeyPath, merged: Merged) -> Iterator[Finding]:
    for at, row in enumerate(rows):
        first, last = _ends(row.nodes)
        place = merged.origin(*path, at, "nodes").place
        if first > last:
            yield Finding(
                FindingCode.OVERLAPPING_LIMITS, f"`{row.nodes}` goes backwards", place, "the smaller number comes first"
            )
        for before in rows[:at]:
            if _meet(row.nodes, before.nodes) and (
                row.gpus is None or before.gpus is None or _meet(row.gpus, before.gpus)
            ):
                message = f"the row for {row.nodes} nodes overlaps the one for {before.nodes}"
                yield Finding(FindingCode.OVERLAPPING_LIMITS, message, place, "each count belongs to one row")
                break


def _meet(one: str, other: str) -> bool:
    (first, last), (start, end) = _ends(one), _ends(other)
    return first <= end and start <= last


def _ends(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return int(first), int(last) if last else 10**9 if dash else int(first)
