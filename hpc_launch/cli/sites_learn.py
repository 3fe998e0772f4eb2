"""`sites learn`: draft a profile of the cluster that this login node belongs to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.terminal import print_note

if TYPE_CHECKING:
    from hpc_launch.site_tools.learn import LearnedSite


@click.command("learn")
@click.argument("name", required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the profile to FILE; - is stdout."
)
@click.option(
    "--hosts",
    "hostfile",
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
    default="15m",
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
    patience: str,
    force: bool,
    as_json: bool,
) -> int:
    """Draft a site profile from Slurm and this login node; with --smoke, also from test jobs on the compute nodes. Or
    from hosts without a scheduler, with --hosts.

    The profile is written to ~/.config/hpc-launch/sites/NAME.yaml, where `submit` finds it. Exits with 1 if a --smoke
    job failed.

    \b
    hpc-launch sites learn
    hpc-launch sites learn mycluster --smoke --partition gpu -o sites/mycluster.yaml
    hpc-launch sites learn lab --hosts hostfile
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.job.units import parse_duration
    from hpc_launch.schedulers.scheduler import scheduler_for
    from hpc_launch.site_tools.learn import learn, save, target
    from hpc_launch.view.terminal import waiting_notice

    if as_json and str(output) == "-":
        raise UsageError("-o - and --json exclude each other", "name a file with -o FILE")
    if hostfile is not None:
        if smoke or partitions:
            raise UsageError("--smoke and --partition are for Slurm", "omit them with --hosts")
        return _learn_hosts(hostfile, name, output, force=force, as_json=as_json)
    if partitions and not smoke:
        raise UsageError("--partition requires --smoke", "add --smoke, or omit --partition to survey all partitions")
    try:
        seconds = parse_duration(patience)
    except ValueError as error:
        raise UsageError(f"--patience: {error}") from None
    with waiting_notice("querying Slurm about the cluster"):
        lesson = learn(name, scheduler_for("slurm"))
    path = output or target(lesson.draft.name)
    to_stdout = str(path) == "-"
    if to_stdout and smoke:
        raise UsageError("--smoke requires a file, because its jobs use the profile", "name a file with -o FILE")
    if to_stdout:
        click.echo(lesson.draft.text(), nl=False)
        return 0
    _refuse_to_overwrite(path, force=force)
    save(lesson.draft, path)
    if smoke:
        _measure(lesson, path, partitions, seconds)
        save(lesson.draft, path)
    _show(lesson, path, as_json=as_json)
    return 1 if any(one.fault for one in lesson.probe_results) else 0


def _learn_hosts(hostfile: Path, name: str | None, output: Path | None, *, force: bool, as_json: bool) -> int:
    from hpc_launch.site_tools.learn import learn_hosts, save, target
    from hpc_launch.view.site_tables import learned_lines
    from hpc_launch.view.terminal import waiting_notice

    with waiting_notice("querying the hosts"):
        lesson = learn_hosts(hostfile, name)
    path = output or target(lesson.draft.name)
    if str(path) == "-":
        click.echo(lesson.draft.text(), nl=False)
        return 0
    _refuse_to_overwrite(path, force=force)
    save(lesson.draft, path)
    if as_json:
        echo_json({**lesson.as_json(), "file": str(path)})
        return 0
    for line in learned_lines(lesson):
        click.echo(line, err=True)
    click.echo(path)
    return 0


def _refuse_to_overwrite(path: Path, *, force: bool) -> None:
    from hpc_launch.base.errors import UsageError

    if os.path.exists(path) and not force:
        raise UsageError(
            f"{path} already exists",
            "overwrite it with --force, or name another file with -o FILE",
        )


def _measure(lesson: LearnedSite, path: Path, partitions: tuple[str, ...], seconds: int) -> None:
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.schedulers.scheduler import scheduler_for
    from hpc_launch.service.poll import tracker_of
    from hpc_launch.site_tools.learn import measure
    from hpc_launch.site_tools.learning.probe_jobs import ProbeContext

    index = user_index(os.environ)
    around = ProbeContext(scheduler_for("slurm"), index, lambda run: tracker_of([run], index), print_note)
    measure(lesson, path, partitions, seconds, around)


def _show(lesson: LearnedSite, path: Path, *, as_json: bool) -> None:
    from hpc_launch.prepare.prepare import detect_site
    from hpc_launch.site_tools.learn import summary, target

    facts = summary(lesson)
    if as_json:
        echo_json({**facts, "file": str(path)})
        return
    capabilities = facts["can"]
    able = [name for name, value in capabilities.items() if value] if isinstance(capabilities, dict) else []
    print_note(f"Slurm {facts['slurm']}: {', '.join(able)}")
    for line in [*lesson.draft.data.get("unknown", []), *lesson.faults]:
        print_note(f"  {line}")
    accounts = lesson.survey.accounting.accounts if lesson.survey.accounting else ()
    if len(accounts) > 1:
        key = f"sites: {{{lesson.draft.name}: {{account: …}}}}"
        print_note(f"your accounts: {', '.join(accounts)}; set the one to use in user.yaml: {key}")
    if path == target(lesson.draft.name):
        chosen = detect_site().chosen
        if chosen is None or chosen.path != path:
            other = (
                f"{chosen.name} matches this machine better ({chosen.reason})" if chosen else "other profiles match too"
            )
            print_note(f"jobs without `site:` do not use this profile: {other}; set `site: {lesson.draft.name}`")
    click.echo(path)
