"""The page of one shipped profile, for generate_sites.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpc_launch.sites.layers import SiteLayer
from hpc_launch.sites.node_classes import NodeClass
from hpc_launch.sites.prelude import ACTIONS, PreludeStep, Setting
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.provenance import provenance
from hpc_launch.sites.queues import LimitRow, Queue
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.merge import Path as KeyPath
from hpc_launch.spec.units import format_memory, format_time

SCRIPTS = "../../tests/golden/shipped"
MADE = "<!-- Made by docs/generate_sites.py from site_configs/{file}. Change that, then run `make docs`. -->"
GRADES = {"A": "the centre's or vendor's own", "B": "theirs, in part or dated", "C": "a third party's"}


class Shipped(NamedTuple):
    """A profile with all that it extends; parameters of a template stay as they are written."""

    profile: SiteProfile
    merged: Merged
    layers: list[SiteLayer]


def page(one: Shipped) -> str:
    """The page of one profile."""
    site = one.profile
    lines = [f"# {site.title or site.name}", "", MADE.format(file=f"{site.name}.yaml"), "", *_head(site)]
    for title, body in (
        ("Nodes", _nodes(site)),
        ("Queues", _queues(site)),
        ("Account", _account(site)),
        ("Start and network", _start(site)),
        ("Software and variables", _software(one)),
        ("Images", _images(site)),
        ("Folders", _folders(site)),
        ("Options of a job", _options(site)),
        ("Parameters", _parameters(site)),
        ("Held against the site's own example", _published(site)),
        ("Not known, and left out", [f"- {text}" for text in site.unknown]),
        ("Sources", _sources(one)),
    ):
        if body:
            lines += [f"## {title}", "", *body, ""]
    return "\n".join(lines).rstrip() + "\n"


def _head(site: SiteProfile) -> Iterator[str]:
    tried = f"last tried there on {site.verified_on}" if site.verified_on else "nobody has tried it there yet"
    words = {"documented": "made from published pages", "verified": "verified", "draft": "a draft"}[site.status]
    yield f"`--site {site.name}`: {words}, {tried}. The site's own pages: <{site.url}>. Kept by {site.contact}."
    if site.kind == "template":
        yield "\nA template: its user sets the [parameters](#parameters). What depends on them is an example here."
    life = site.lifecycle
    if life.state != "active":
        after = f" Its successor is [{life.successor}]({life.successor}.md)." if life.successor else ""
        by = f", by {life.retires_on}" if life.retires_on else ""
        yield f"\n**The system is {life.state}**{by}.{after} {life.note}"
    yield ""
    yield (
        f"The same job file as everywhere comes to these scripts here: [torchrun]({SCRIPTS}/{site.name}/torchrun.sh), "
        f"and [in an image]({SCRIPTS}/{site.name}/container.sh)."
    )
    yield ""


def request(node: NodeClass) -> str:
    """How all GPUs of a node are asked for."""
    if node.gpu_request == "none":
        return "nothing: the partition implies them"
    style, count = node.gpu_request.removesuffix("-type"), str(node.gpus)
    kind = f"{node.gpu_type}:" if node.gpu_request.endswith("-type") else ""
    if style == "gpus":
        count = f"{node.gpus} × nodes"
    return f"`--gres=gpu:{kind}{count}`" if style == "gres" else f"`--{style}={kind}{count}`"


def _nodes(site: SiteProfile) -> list[str]:
    rows = []
    for name, node in site.node_classes.items():
        threads = f", {node.threads_per_core} a core" if node.threads_per_core > 1 else ""
        gpu = f" of {format_memory(node.gpu_memory)}" if node.gpu_memory else ""
        memory = format_memory(node.memory) if node.memory else "not known"
        chosen = [f"`{text}`" for text in (node.constraint, node.account_suffix) if text]
        rows.append(
            (
                f"`{name}`",
                node.about,
                node.arch or "",
                f"{node.cpus}{threads}",
                memory,
                f"{node.gpus}{gpu}",
                request(node),
                ", ".join(chosen),
            )
        )
    return table(("class", "what", "processor", "CPUs", "memory", "GPUs", "asked for by", "feature, account"), rows)


def _queues(site: SiteProfile) -> list[str]:
    first = site.default_queue or next(iter(site.queues))
    rows = []
    for name, queue in site.queues.items():
        wanted = (("partition", queue.partition), ("QOS", queue.qos), ("feature", queue.constraint))
        rows.append(
            (
                f"`{name}`{' (default)' if name == first else ''}",
                queue.about,
                ", ".join(f"{what} `{value}`" for what, value in wanted if value),
                f"`{queue.node_class}`",
                "; ".join(map(_limit, queue.limits)) or "not known",
                "; ".join(_more(queue)),
            )
        )
    return table(("queue", "for", "asks for", "nodes", "limits", "besides"), rows)


def _limit(row: LimitRow) -> str:
    gpus = f" with {row.gpus} GPUs" if row.gpus else ""
    first, _, last = row.nodes.partition("-")
    nodes = "any number of nodes" if row.nodes == "1-" else f"{row.nodes} nodes"
    if row.nodes in ("1", "1-1"):
        nodes = "one node"
    elif not last and first != "1":
        nodes = f"from {first} nodes on" if row.nodes.endswith("-") else f"{first} nodes"
    return f"{nodes}{gpus}: {format_time(row.time)}" if row.time else f"{nodes}{gpus}"


def _more(queue: Queue) -> Iterator[str]:
    given = {True: "whole nodes by `--exclusive`", "implied": "whole nodes", "forbidden": "no `--exclusive`"}
    if queue.exclusive:
        yield given[queue.exclusive]
    yield {
        "all": "all memory",
        "share": "all memory" if queue.whole_nodes else "memory by the share of CPUs",
        "per-gpu": "memory with each GPU",
        "omit": "memory not asked for",
        "forbidden": "memory must not be asked for",
    }[queue.memory]
    for words, value in (
        ("{} GPUs in all", queue.gpus),
        ("{} node-minutes", queue.node_minutes),
        ("{} running", queue.max_jobs),
        ("{} submitted", queue.max_submitted),
        ("{} if no time is named", format_time(queue.default_time) if queue.default_time else None),
        ("{}", queue.access or None),
    ):
        if value is not None:
            yield words.format(value)
    if queue.preemption is not None:
        yield f"may be stopped for others{', and is queued again' if queue.preemption.requeued else ''}"


def _account(site: SiteProfile) -> list[str]:
    account = site.account
    words = ["A job must name one." if account.required else "A job need not name one."]
    words += [f"It has the form `{account.pattern}`, with what the queue puts behind it."] if account.pattern else []
    words += [f"To find it out: {account.find}."] if account.find else []
    return [" ".join(words)]


def launcher_of(site: SiteProfile) -> str:
    """The launcher of a job that names none."""
    said = site.defaults.get("launcher", "torchrun")
    return said if isinstance(said, str) else str(said["name"])


def _start(site: SiteProfile) -> list[str]:
    lines = [f"- launcher where a job names none: `{launcher_of(site)}`; nodes are started by `{site.launch.step}`"]
    for other, advice in site.launchers.items():
        lines.append(f"- `{other}` is {advice.use}{f': {advice.why}' if advice.why else ''}")
    for key in ("cpu_bind", "mem_bind", "gpu_bind"):
        bind = getattr(site.launch, key)
        said = [f"{what} `{value}`" for what, value in (("a node", bind.node), ("a process", bind.process)) if value]
        lines += [f"- srun's `--{key.replace('_', '-')}` for {', for '.join(said)}"] if said else []
    lines += [f"- more for srun: `{' '.join(site.launch.srun_options)}`"] if site.launch.srun_options else []
    master = site.network.master
    address = f"the name with `{master.suffix}` behind" if master.suffix else "its name"
    lines.append(f"- the first node is met by {'the IP address of ' if master.resolve == 'ip' else ''}{address}")
    fabric = site.fabric
    lines.append(f"- network: {fabric.kind or 'not known'}")
    for what, names in (("NCCL", fabric.nccl_interfaces), ("Gloo", fabric.gloo_interfaces), ("adapters", fabric.hca)):
        lines += [f"- {what}: `{','.join(names)}`"] if names else []
    reach = {None: "not known", "none": "nothing", "direct": "all of it", "proxy": f"a proxy, `{site.internet.proxy}`"}
    lines.append(f"- compute nodes reach of the internet: {reach[site.internet.compute]}")
    for command, options in (("sbatch", site.sbatch), ("srun", site.srun)):
        added = " ".join(f"--{key}" if value is True else f"--{key}={value}" for key, value in options.add.items())
        lines += [f"- always for {command}: `{added}`"] if added else []
        lines += [f"- refused of {command}: `--{name}`, {why}" for name, why in options.forbid.items()]
        lines += [f"- wanted of {command}: `--{name}`, {why}" for name, why in options.require.items()]
    return lines


def _software(one: Shipped) -> list[str]:
    site = one.profile
    lines = []
    for name, stack in site.stacks.items():
        users = [key for key, node in site.node_classes.items() if node.stack == name]
        when = "loaded unless a job says otherwise" if users else f"for `environment: {{stack: {name}}}`"
        lines.append(f"- stack `{name}`: {stack.about}: `{' '.join(stack.environment.modules)}`; {when}")
    steps: list[tuple[KeyPath, PreludeStep]] = [(("prelude", at), step) for at, step in enumerate(site.prelude)]
    for name, node in site.node_classes.items():
        steps += [(("node_classes", name, "prelude", at), step) for at, step in enumerate(node.prelude)]
    for path, step in steps:
        lines.append(f"- {_step(step)}{_when(step)}{_why(step.why)}{_from(one, path)}")
    for at, setting in enumerate(site.env):
        where = {"job": "", "node": ", on each node", "rank": ", in each process", "container": ", inside the image"}
        for words in _setting(setting):
            lines.append(f"- {words}{where[setting.scope]}{_when(setting)}{_why(setting.why)}{_from(one, ('env', at))}")
    lines += [
        f"- the cache of {name} is on storage of the {'node' if cache.per == 'node' else 'site'}"
        for name, cache in site.caches.items()
    ]
    return lines


def _step(step: PreludeStep) -> str:
    action = next(name for name in ACTIONS if getattr(step, name) is not None)
    value = getattr(step, action)
    if isinstance(value, Mapping):
        text = " ".join(f"{key}={inner}" for key, inner in value.items())
    else:
        text = " ".join(value) if isinstance(value, list) else str(value)
    place = {"job": "", "nodes": ", on every node", "container": ", inside the image"}[step.where]
    return f"{action.replace('_', ' ')} `{text}`{place}"


def _setting(setting: Setting) -> Iterator[str]:
    if setting.set:
        yield " ".join(f"`{name}={value}`" for name, value in setting.set.items())
    for name, value in setting.prepend.items():
        yield f"`{value}` before `{name}`"
    if setting.unset:
        yield "taken away: " + " ".join(f"`{name}`" for name in setting.unset)
    if setting.drop:
        yield "left alone: " + " ".join(f"`{name}`" for name in setting.drop)


def _when(part: PreludeStep | Setting) -> str:
    if part.when is None:
        return ""
    said = []
    for key in part.when.__struct_fields__:
        value = getattr(part.when, key)
        if value in (None, {}):
            continue
        words = (
            "/".join(value) if isinstance(value, list) else _versions(value) if isinstance(value, Mapping) else value
        )
        if key == "container":
            said.append("in an image" if value else "not in an image")
            continue
        said.append(f"{key.replace('_', ' ')} {words}".removeprefix("versions "))
    return f", where {' and '.join(said)}"


def _versions(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {wanted}" for name, wanted in versions.items())


def _why(why: str) -> str:
    return f": {why}" if why else ""


def _from(one: Shipped, path: tuple[Any, ...]) -> str:
    """The file that a value is from, where it is not the profile's own."""
    origin = one.merged.origin(*path)
    file = Path(origin.place.file).stem if origin.place is not None else one.profile.name
    return "" if file == one.profile.name else f" (`{file}`)"


def _images(site: SiteProfile) -> list[str]:
    containers = site.containers
    lines = [f"- run by `{containers.runtime}`"]
    for what, names in (("modules", containers.modules), ("binds", containers.binds), ("options", containers.options)):
        lines += [f"- {what}: {' '.join(f'`{name}`' for name in names)}"] if names else []
    lines += [f"- image `{name}`: `{image.path}`" for name, image in containers.images.items()]
    lines += ["- not on login nodes"] if site.hosts.login_containers is False else []
    return lines


def _folders(site: SiteProfile) -> list[str]:
    rows = []
    for name, folder in site.paths.items():
        notes = [folder.note, "each node's own" if folder.node_local else ""]
        notes += [f"files go after {folder.purge_days} days"] if folder.purge_days else []
        notes += [f"asked for by the option `{folder.option}`"] if folder.option else []
        rows.append((f"`${{paths.{name}}}`", f"`{folder.path}`", "; ".join(filter(None, notes))))
    return table(("name", "folder", "note"), rows) if rows else []


def _options(site: SiteProfile) -> list[str]:
    return [f"- `options: [{name}]`: {option.about}" for name, option in site.options.items()]


def _parameters(site: SiteProfile) -> list[str]:
    rows = [
        (f"`{name}`", one.about, f"`{one.default}`" if one.default else "**required**")
        for name, one in site.parameters.items()
    ]
    return table(("parameter", "what", "default"), rows) if rows else []


def _published(site: SiteProfile) -> list[str]:
    lines = []
    for one in site.published:
        lines += [f"Against: {one.example}", "", *(f"- {text}" for text in one.differences), ""]
    return lines[:-1]


def _sources(one: Shipped) -> list[str]:
    rows = []
    for layer in reversed(one.layers):
        name = str(layer.document.data.get("name"))
        known = provenance(layer.document)
        for group in known.groups:
            fact = known.fact(group)
            what = ".".join(map(str, group)) or "all else"
            grade = f"{fact.grade}: {GRADES[fact.grade]}" if fact.grade else ""
            rows.append((f"`{name}`", what, grade, fact.as_of or "", "; ".join(filter(None, [fact.source, fact.note]))))
    return table(("file", "facts", "grade", "as of", "source"), rows)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table."""
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
