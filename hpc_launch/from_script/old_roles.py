"""Which launch lines of an old script are programs that run side by side: the roles of the job, or a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from hpc_launch.from_script.old_job import OldJob, OldLaunch, account_of, launch_size
from hpc_launch.from_script.script_text import Ledger, Value, old_words
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.variables import is_known

_OF_RAY = re.compile(
    r"(.+-)?port|head|block|address|node-ip-address|num-[cg]pus|temp-dir|.*dashboard.*|disable-usage-stats"
)
"""Options of `ray start` that `launcher: ray` decides."""


def role_name(launch: OldLaunch, taken: Collection[str]) -> str:
    """A name after the program: `vllm_serve` of `trl vllm-serve`."""
    first, *others = [word.text if word.value.known else "" for word in launch.words[:2]] or [""]
    text = others[0] if others and re.fullmatch(r"[a-z][\w-]*", others[0]) else re.sub(r".*/|\.\w+$", "", first)
    name = re.sub(r"\W+", "_", text.lower()).strip("_")[:24]
    name = name if re.match(r"[a-z]", name) and name != "train" else "server"
    return next(one for one in (name, *(f"{name}_{at}" for at in range(2, 10_000))) if one not in taken)


def with_roles(text: str, places: Mapping[str, str]) -> str:
    """A text in which roles are named instead of their hosts."""
    for place, name in places.items():
        text = text.replace(place, f"${{role.{name}.host}}")
    return text


def find_roles(job: OldJob, request: Request, ledger: Ledger) -> dict[str, OldLaunch]:
    """The roles by their names, the one that ends the job last; none for a script that starts one program, or several
    one after another. With the account of every launch line."""
    ray, steps = ([one for one in job.launches if one.of_ray is wanted] for wanted in (True, False))
    front, behind = ([one for one in steps if one.background is wanted] for wanted in (False, True))
    head = any(word.text == "--head" for one in ray for word in one.words)
    if len(front) != 1 or not (head or behind) or any(one.started == front[0].started for one in behind):
        return {}
    roles: dict[str, OldLaunch] = {}
    for launch in behind:
        same = next((name for name, one in roles.items() if one.started == launch.started), launch.role)
        if roles.setdefault(same, launch) is not launch:
            ledger.not_understood(launch.lines, f"`{same}` once more: use `replicas:`")
    roles["train"] = main = front[0]
    main.role = "train"
    if head:
        main.launcher, main.one_node, main.place, main.nodes, main.tasks = "ray", False, None, None, None
    for launch in ray:
        ledger.unnecessary(launch.lines, "`launcher: ray` starts the cluster")
        for option, value in old_words().commands["ray"].split(launch.words[2:]).options:
            if not _OF_RAY.fullmatch(option):
                ledger.not_understood([value.line], f"`--{option}` of ray start")
    for launch in roles.values():
        _name_hosts(launch, {place: name for place, name in job.places.items() if name != launch.role})
        single = "nodes" in request.texts and request.nodes == 1
        first = next(iter(roles)) if single else job.places.get(launch.place or "")
        launch.beside = first if first != launch.role else None
        launch.nodes = launch.nodes or (1 if launch.tasks == 1 else None)
        if launch.beside and request.gpus_per_node and launch.gpus_per_node is None:
            ledger.not_understood(launch.lines, "which GPUs of its node: give both roles there `gpus:`")
        elif not (single or launch.place or launch.launcher == "ray"):
            ledger.not_understood(launch.lines, "on which nodes: `nodes:` or `beside:`")
        size = launch_size(launch, request)
        if (launch.launcher, launch.program, size.starts_per_node) == ("srun", "command", 1):
            launch.launcher = "none"
        account_of(launch, size, ledger, launch.role)
    return roles


def _name_hosts(launch: OldLaunch, places: Mapping[str, str]) -> None:
    """Let a role name the others instead of their hosts."""

    def named(value: Value) -> Value:
        text = with_roles(value.text, places)
        return value if text == value.text else Value(text, value.known or is_known(text))

    launch.words = [replace(word, value=named(word.value)) for word in launch.words]
    launch.arguments = [replace(word, value=named(word.value)) for word in launch.arguments]
    launch.env = {name: named(value) for name, value in launch.env.items()}
