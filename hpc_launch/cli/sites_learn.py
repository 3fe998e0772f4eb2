"""`sites learn`: a profile of the cluster whose login node this is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.warn import say

if TYPE_CHECKING:
    from hpc_launch.site_tools.learn import Lesson


@click.command("learn")
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it to FILE; - is stdout.")
@click.option("--smoke", is_flag=True, help="Run a job of two nodes in each partition, and take over what it measures.")
@click.option("--partition", "partitions", multiple=True, metavar="NAME", help="With --smoke only here; repeatable.")
@click.option(
    "--patience", default="15m", show_default=True, metavar="TIME", help="How long the jobs may take, and wait before."
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@json_option
def command(
    name: str | None,
    output: Path | None,
    smoke: bool,
    partitions: tuple[str, ...],
    patience: str,
    force: bool,
    as_json: bool,
) -> int:
    """Draft a profile from what Slurm and this login node say; with --smoke from what its nodes show, too.

    The profile goes to ~/.config/hpc-launch/sites/NAME.yaml, where `submit` finds it. Exit code 1 if a job of --smoke
    failed.

    \b
    hpc-launch sites learn
    hpc-launch sites learn mycluster --smoke --partition gpu -o sites/mycluster.yaml
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.site_tools.learn import learn, save, target
    from hpc_launch.spec.units import parse_duration
    from hpc_launch.view.terminal import patience as waiting

    if partitions and not smoke:
        raise UsageError("--partition goes with --smoke", "without it every partition is looked at")
    try:
        seconds = parse_duration(patience)
    except ValueError as error:
        raise UsageError(f"--patience: {error}") from None
    with waiting("asking Slurm about the cluster"):
        lesson = learn(name, scheduler_for("slurm"))
    path = output or target(lesson.draft.name)
    to_stdout = str(path) == "-"
    if to_stdout and smoke:
        raise UsageError("--smoke needs a file: its jobs are submitted by the profile", "name one with -o FILE")
    if to_stdout:
        click.echo(lesson.draft.text(), nl=False)
        return 0
    if path.exists() and not force:
        raise UsageError(
            f"{path} is there already", "--force replaces it, -o FILE names another; see `sites check --live`"
        )
    save(lesson, path)
    if smoke:
        _measure(lesson, path, partitions, seconds)
        save(lesson, path)
    _show(lesson, path, as_json=as_json)
    return 1 if any(one.fault for one in lesson.smoked) else 0


def _measure(lesson: Lesson, path: Path, partitions: tuple[str, ...], seconds: int) -> None:
    from hpc_launch.cli.follow import tracker_of
    from hpc_launch.run.run_index import user_index
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.site_tools.learn import measure
    from hpc_launch.site_tools.learning.probe_jobs import Around

    index = user_index(os.environ)
    around = Around(scheduler_for("slurm"), index, lambda run: tracker_of([run], index), say)
    measure(lesson, path, partitions, seconds, around)


def _show(lesson: Lesson, path: Path, *, as_json: bool) -> None:
    from hpc_launch.drive.detect_site import detect_site
    from hpc_launch.site_tools.learn import summary, target

    found = summary(lesson)
    if as_json:
        echo_json({**found, "file": str(path)})
        return
    able = [what for what, yes in lesson_can(found) if yes]
    say(f"Slurm {found['slurm']}: {', '.join(able)}")
    for line in [*lesson.draft.data.get("unknown", []), *lesson.faults]:
        say(f"  {line}")
    accounts = lesson.survey.accounting.accounts if lesson.survey.accounting else ()
    if len(accounts) > 1:
        where = f"sites: {{{lesson.draft.name}: {{account: …}}}}"
        say(f"your accounts: {', '.join(accounts)}; say yours in user.yaml: {where}")
    if path == target(lesson.draft.name):
        chosen = detect_site().chosen
        if chosen is None or chosen.path != path:
            other = f"{chosen.name} fits this machine better ({chosen.reason})" if chosen else "others fit as well"
            say(f"a job that names no site does not get this profile: {other}; say `site: {lesson.draft.name}`")
    click.echo(path)


def lesson_can(found: dict[str, object]) -> list[tuple[str, bool]]:
    """What this Slurm can do, as pairs."""
    can = found["can"]
    return list(can.items()) if isinstance(can, dict) else []
