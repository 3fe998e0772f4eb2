"""`sites learn`: draft a profile of the cluster that this login node belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import echo_answer, json_option, seconds
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.job.hostlist import compress
from hpc_launch.preflight.short_run import Context
from hpc_launch.prepare.prepare import detect_site
from hpc_launch.runs.run_index import user_index
from hpc_launch.schedulers.scheduler import scheduler_for
from hpc_launch.site_tools.learn import LearnedSite, learn, measure, save, target
from hpc_launch.site_tools.learn_hosts import LearnedHosts, learn_hosts
from hpc_launch.view.format_values import aligned, clean


@click.command("learn")
@click.argument("name", required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the profile to FILE; - is stdout."
)
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Query the hosts of a host file over ssh instead: a site without Slurm. Slots may be omitted.",
)
@click.option("--smoke", is_flag=True, help="Run a two-node job in each partition and use what it measures.")
@click.option(
    "--partition", "partitions", multiple=True, metavar="NAME", help="Limit --smoke to this partition. Repeatable."
)
@click.option(
    "--patience",
    "patience_s",
    default="15m",
    callback=seconds,
    show_default=True,
    metavar="TIME",
    help="Maximum queue and run time of the --smoke jobs.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@json_option
def command(
    name: str | None,
    output: Path | None,
    hostfile: Path | None,
    smoke: bool,
    partitions: tuple[str, ...],
    patience_s: int,
    force: bool,
    as_json: bool,
) -> int:
    """Draft a site profile from Slurm and this login node; with --smoke, also from test jobs on the compute nodes. Or
    from hosts without a scheduler, with --hostfile.

    The profile is written to ~/.config/hpc-launch/sites/NAME.yaml, where `submit` finds it. Exits with 1 if a --smoke
    job failed.

    \b
    hpc-launch sites learn
    hpc-launch sites learn mycluster --smoke --partition gpu -o sites/mycluster.yaml
    hpc-launch sites learn lab --hostfile hostfile
    """
    to_stdout = str(output) == "-"
    for wrong, message, hint in (
        (as_json and to_stdout, "-o - and --json exclude each other", "name a file with -o FILE"),
        (hostfile and (smoke or partitions), "--smoke and --partition are for Slurm", "omit them with --hostfile"),
        (partitions and not smoke, "--partition requires --smoke", "add --smoke, or omit it to survey all partitions"),
        (smoke and to_stdout, "--smoke requires a file, because its jobs use the profile", "name a file with -o FILE"),
    ):
        if wrong:
            raise UsageError(message, hint)
    lesson: LearnedSite | LearnedHosts
    with TERMINAL.doing("querying the hosts" if hostfile else "querying Slurm about the cluster"):
        lesson = learn_hosts(hostfile, name) if hostfile else learn(name, scheduler_for("slurm"))
    if to_stdout:
        click.echo(lesson.draft.text(), nl=False)
        return 0
    path = output or target(lesson.draft.name)
    if os.path.exists(path) and not force:
        raise UsageError(f"{path} already exists", "overwrite it with --force, or name another file with -o FILE")
    save(lesson.draft, path)
    if smoke and isinstance(lesson, LearnedSite):
        index = user_index()
        around = Context(scheduler_for("slurm"), print_note, index)
        measure(lesson, path, partitions, patience_s, around)
        save(lesson.draft, path)
    if not as_json:
        for line in _site_notes(lesson, path) if isinstance(lesson, LearnedSite) else _learned_lines(lesson):
            print_note(line)
    echo_answer({**lesson.as_json(), "file": str(path)}, [str(path)], as_json=as_json)
    return 1 if isinstance(lesson, LearnedSite) and any(one.fault for one in lesson.probe_results) else 0


def _site_notes(lesson: LearnedSite, path: Path) -> Iterator[str]:
    """What is unknown, and what a user should add."""
    yield from (f"  {line}" for line in [*lesson.draft.data.get("unknown", []), *lesson.faults])
    accounts = lesson.survey.accounting.accounts if lesson.survey.accounting else ()
    if len(accounts) > 1:
        key = f"sites: {{{lesson.draft.name}: {{account: …}}}}"
        yield f"your accounts: {', '.join(accounts)}; set the one to use in user.yaml: {key}"
    if path == target(lesson.draft.name):
        chosen = detect_site().chosen
        if chosen is None or chosen.path != path:
            other = (
                f"{chosen.name} matches this machine better ({chosen.reason})" if chosen else "other profiles match too"
            )
            yield f"jobs without `site:` do not use this profile: {other}; set `site: {lesson.draft.name}`"


def _learned_lines(learned: LearnedHosts) -> Iterator[str]:
    """How many hosts answered, why others did not, and where the hosts differ."""
    count = len(learned.hosts)
    yield f"{count} of {count + len(learned.faults)} hosts answered"
    yield from (f"{clean(host)}: left out: {clean(fault)}" for host, fault in learned.faults.items())
    yield from (f"{clean(host)}: {clean(fault)}" for host, facts in learned.hosts.items() for fault in facts.faults)
    if count < 2:
        return
    found = learned.differences
    if not found:
        yield "the hosts do not differ"
        return
    rows = [("DIFFERENCE", "VALUE", "HOSTS")]
    for one in found:
        for at, (value, hosts) in enumerate(one.values.items()):
            rows.append(("" if at else one.fact, value, compress(hosts)))
    yield from aligned(rows)
