"""`render`, `explain`, `validate` and `plan`: look at a job without submitting it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from hpc_launch.api.job_calls import explain, layouts, plan, render, validate
from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, errors
from hpc_launch.cli.shared_options import (
    complete_run,
    echo_answer,
    echo_json,
    json_option,
    json_text,
    of_a_job,
    output_option,
    set_option,
    site_option,
)
from hpc_launch.cli.terminal import TERMINAL, print_note, show_findings, write_text
from hpc_launch.job.shell_text import visible
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.units import counted
from hpc_launch.prepare.explain import ExplainedValue


@click.command("render")
@of_a_job
@output_option
@click.option("--standalone", is_flag=True, help="Put the parts of runtime.sh into the script, to start it by hand.")
@json_option
def render_command(
    job: Path, site: str | None, sets: tuple[str, ...], output: Path | None, *, standalone: bool, as_json: bool
) -> None:
    """Print the script of a job, byte for byte as submit passes it to the scheduler.

    It sources runtime.sh, the same file for all jobs: -o writes it beside FILE.

    \b
    hpc-launch render job.yaml --site mycluster | less
    hpc-launch render job.yaml --site mycluster --standalone -o script.sh
    """
    script = render(job, site=site, set=sets, standalone=standalone, listener=TERMINAL)
    write_text(output, json_text({"script": script}) if as_json else script)
    if output is not None and not standalone and os.path.isfile(output):
        from hpc_launch.script.parts import RUNTIME, runtime

        write_text(output.with_name(RUNTIME), runtime())


@click.command("explain", context_settings={"ignore_unknown_options": True})  # `--cpus-per-task` is a key
@of_a_job
@click.argument("key", required=False)
@json_option
def explain_command(job: Path, key: str | None, site: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Show where values are set: keys of the job, #SBATCH directives and variables of the script.

    A KEY that starts with `site.` is a key of the site profile. In place of JOB, the code of a finding prints what it
    means and what to do.

    \b
    hpc-launch explain job.yaml
    hpc-launch explain job.yaml env.NCCL_DEBUG
    hpc-launch explain job.yaml --cpus-per-task
    hpc-launch explain job.yaml site.queues
    hpc-launch explain HL201
    """
    if key is None and not os.path.exists(job):
        from hpc_launch.view.manual import finding_text

        if text := finding_text(str(job)):
            click.echo(text)
            return
    of_site = key is not None and key.startswith("site.")
    print_values(explain(job, site=site, set=sets, of_site=of_site, listener=TERMINAL), key, as_json=as_json)


def print_values(lines: Sequence[ExplainedValue], key: str | None, *, as_json: bool) -> None:
    """Print the values, or only those of a key and of the keys below it. Raises UsageError if there is none."""
    if key is not None:
        wanted, known = key.removeprefix("--").removeprefix("$"), [line.key for line in lines]
        lines = [line for line in lines if wanted in (line.key, line.name) or line.key.startswith(f"{wanted}.")]
        if not lines:
            near = nearest(wanted, known)
            hint = f"did you mean `{near}`?" if near else "without KEY, all keys are listed"
            raise UsageError(f"no value for the key `{key}`", hint)
    echo_answer([line.as_json() for line in lines], map(str, lines), as_json=as_json)


format_option = click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="Output format.",
)


def report(findings: Sequence[Finding], style: str, clean: str) -> int:
    """Print the findings; as text, print `clean` on stderr if there are none. Returns 3 if there are errors, else 0."""
    if style == "json":
        echo_json([finding.as_json() for finding in findings])
    elif style == "github":
        for finding in findings:
            click.echo(_github_line(finding))
    else:
        show_findings(findings, err=False)
        if not findings:
            print_note(clean)
    return 3 if errors(findings) else 0


def _github_line(finding: Finding) -> str:
    """A GitHub workflow command, escaped as GitHub's toolkit does."""
    place = finding.place
    fields = {"file": place.file, "line": place.line, "col": place.column} if place else {}
    where = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in fields.items() if value is not None)
    text = finding.message + (f" ({finding.hint})" if finding.hint else "")
    return visible(f"::{finding.severity} {where},title={finding.code}::{_escaped(text, '')}")


def _escaped(text: str, extra: str) -> str:
    for character in "%\r\n" + extra:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


@click.command("validate")
@click.argument("jobs", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="JOB...")
@site_option
@set_option
@format_option
@json_option
def validate_command(jobs: tuple[Path, ...], site: str | None, sets: tuple[str, ...], style: str, as_json: bool) -> int:
    """Check job files against their site and report all errors at once. Exits with 3 if there are errors.

    \b
    hpc-launch validate job.yaml --site mycluster
    hpc-launch validate --format github jobs/*.yaml
    """
    findings = [finding for job in jobs for finding in validate(job, site=site, set=sets)]
    clean = f"{counted(len(jobs), 'job file')} checked, no errors"
    return report(findings, "json" if as_json else style, clean)


@click.command("plan")
@of_a_job
@click.option(
    "--pace-of",
    "run",
    metavar="RUN",
    shell_complete=complete_run,
    help="Take seconds per step, checkpoint cost and failures from an earlier run.",
)
@click.option(
    "--search", "compare", is_flag=True, help="List the layouts that fit, the fastest first, by a rough estimate."
)
@json_option
def plan_command(
    job: Path,
    site: str | None,
    sets: tuple[str, ...],
    run: str | None,
    compare: bool,
    as_json: bool,
) -> int:
    """Show layout, batch, memory per GPU, walltime and cost of a job. Nothing is submitted.

    Exits with 3 if the job has errors.

    \b
    hpc-launch plan job.yaml --site mycluster
    hpc-launch plan job.yaml --set nodes=4 --pace-of @last
    hpc-launch plan job.yaml --search
    """
    from hpc_launch.api.run_calls import find
    from hpc_launch.view.layout_table import layout_lines, layouts_json
    from hpc_launch.view.plan_text import plan_json, plan_lines

    earlier = find(run, listener=TERMINAL) if run is not None else None
    if compare:
        found = layouts(job, site=site, set=sets, pace_of=earlier)
        echo_answer(layouts_json(found), layout_lines(found), as_json=as_json)
        return 0 if found.found.layouts else Refused.exit_code
    planned = plan(job, site=site, set=sets, pace_of=earlier, listener=TERMINAL)
    echo_answer(plan_json(planned), plan_lines(planned), as_json=as_json)
    if not as_json:
        if planned.detected is not None:
            TERMINAL.say(f"site {planned.site}: {planned.detected}")
        TERMINAL.warn(planned.findings)
    return Refused.exit_code if errors(planned.findings) else 0
