"""`init`: write a job file from an existing sbatch script, or from answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.cli.shared_options import echo_answer, echo_json, json_option, set_option, site_option, yes_option
from hpc_launch.cli.terminal import TERMINAL, print_note, write_text
from hpc_launch.from_script.convert import Conversion, compare, convert, is_same
from hpc_launch.from_script.draft import Question, new_job_text, questions
from hpc_launch.images.training_source import read_training
from hpc_launch.job.job_file import override_layer
from hpc_launch.job.shell_text import visible
from hpc_launch.job.units import counted
from hpc_launch.prepare.prepare import PreparedJob, detect_site, prepare_text
from hpc_launch.sites.read_profile import load_site_profile, read_user_overlay
from hpc_launch.sites.search_path import profile_names
from hpc_launch.view.format_values import aligned, cut

WIDEST = 60
"""Columns of a line of the script, and of a value."""


@click.command("init")
@click.argument("training", required=False, type=click.Path(path_type=Path, readable=False))
@click.option("--from", "script", type=click.Path(path_type=Path), metavar="SCRIPT", help="The sbatch script to read.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The job file to write. Default: job.yaml, with --from the script's name with .yaml, in this folder.",
)
@site_option
@set_option
@yes_option("Take the default of every question that has one.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--lines", "by_line", is_flag=True, help="Show what became of each line of the script.")
@click.option(
    "--compare", "comparing", is_flag=True, help="Show both launches side by side. Writes files only with -o."
)
@json_option
def command(
    training: Path | None,
    script: Path | None,
    output: Path | None,
    site: str | None,
    sets: tuple[str, ...],
    yes: bool,
    force: bool,
    by_line: bool,
    comparing: bool,
    as_json: bool,
) -> int:
    """Write a job file: for the Python file TRAINING, or from an sbatch script, which is read and never run.

    Without --from, it finds out the site, the launcher and the options of the training, whose source is never
    imported, and asks for the rest; --set KEY=VALUE answers a question.

    With --from, run it in the folder in which you submit the script: relative paths start there. If the site is neither
    given nor detected, a site profile is drafted beside the job file. Exits with 3 if the job file has errors to
    correct.

    \b
    hpc-launch init
    hpc-launch init train.py --set nodes=2 --set time=02:00:00 --yes
    hpc-launch init --from train.sbatch --compare
    hpc-launch init --from train.sbatch -o job.yaml --site mycluster
    """
    if script is None:
        if comparing or by_line:
            raise UsageError("--compare and --lines need a script", "name it with --from")
        return _ask(training, output or Path("job.yaml"), site, sets, force=force, yes=yes, as_json=as_json)
    if training is not None or sets or yes:
        raise UsageError("TRAINING, --set and --yes do not go with --from", "the script says what to start")
    conversion = convert(script, output=output, site=site, environment=os.environ, folder=os.getcwd())
    writes = output is not None or not comparing
    if writes:
        _write(conversion.files, force=force)
    prepared: PreparedJob | None = None
    try:
        prepared = conversion.prepare()
        findings = list(prepared.warnings)
    except Refused as refused:
        findings = list(refused.findings)
    if as_json:
        _print_json(conversion, prepared, findings, writes=writes)
    else:
        _print_text(conversion, prepared, findings, comparing=comparing, by_line=by_line)
        if writes:
            click.echo(conversion.output)
    return 3 if errors(findings) else 0


def _ask(
    training: Path | None,
    output: Path,
    site: str | None,
    sets: tuple[str, ...],
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Ask, check and write."""
    if not force:
        _refuse_existing([output])
    text, name = _new_job(training, site, sets, output.parent, yes=yes)
    prepared = prepare_text(text, output, site=name)
    _write({output: text}, force=force)
    if not as_json:
        TERMINAL.warn(prepared.warnings)
    value = {"job_file": str(output), "job": text, "findings": [one.as_json() for one in prepared.warnings]}
    echo_answer(value, [str(output)], f"next: hpc-launch submit {output}", as_json=as_json)
    return 0


def _refuse_existing(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise UsageError(f"{path} exists", "name another file with -o, or replace it with --force")


def _write(files: Mapping[Path, str], *, force: bool) -> None:
    """Write files. Raises UsageError rather than replace one."""
    if not force:
        _refuse_existing(files)
    for path, text in files.items():
        write_text(path, text)


def _print_text(
    conversion: Conversion, prepared: PreparedJob | None, findings: list[Finding], *, comparing: bool, by_line: bool
) -> None:
    script = conversion.script
    if by_line:
        outcomes = {"taken": "taken over", "unnecessary": "unnecessary", "not_understood": "NOT UNDERSTOOD"}
        rows = [("LINE", "OUTCOME", "TEXT", "KEYS AND REASON")]
        for account in script.accounts:
            said = "; ".join(part for part in (", ".join(account.keys), account.why) if part)
            rows.append((str(account.line), outcomes[account.outcome], cut(account.text.strip(), WIDEST), said))
        click.echo("\n".join(aligned(rows)))
    if comparing and prepared is not None:
        table = [("", "OLD SCRIPT", "HPC-LAUNCH", "", "")]
        for row in compare(script, prepared):
            table.append((row.what, cut(row.old or "-", WIDEST), cut(row.new or "-", WIDEST), row.status, row.why))
        click.echo("\n".join(aligned(table)))
    counts = [len(script.of(outcome)) for outcome in ("taken", "unnecessary", "not_understood")]
    total = counted(sum(counts), "line")
    print_note(f"{total}: {counts[0]} taken over, {counts[1]} unnecessary here, {counts[2]} not understood")
    for remark in script.remarks:
        print_note(f"note: {remark}")
    for account in [] if by_line else script.of("not_understood"):
        print_note(f"{script.name}:{account.line}: {account.text.strip()}")
        print_note(f"  {account.why}")
    TERMINAL.warn(findings)
    if conversion.site_file is not None:
        guess = "; the CPUs per node are a guess" if script.size is None or script.size.cpus_per_node is None else ""
        name = conversion.site_path.name
        print_note(f"no matching site profile; wrote {name} from the script{guess}")


def _print_json(conversion: Conversion, prepared: PreparedJob | None, findings: list[Finding], *, writes: bool) -> None:
    script = conversion.script
    rows = compare(script, prepared) if prepared is not None else None
    echo_json(
        {
            "job_file": str(conversion.output) if writes else None,
            "site_file": str(conversion.site_path) if writes and conversion.site_file is not None else None,
            "job": conversion.job_file,
            "site": conversion.site_file,
            "remarks": list(script.remarks),
            "lines": msgspec.to_builtins(script.accounts),
            "followed": msgspec.to_builtins(dict(script.followed)),
            "compare": None if rows is None else msgspec.to_builtins(rows),
            "same": None if rows is None else is_same(rows),
            "findings": [finding.as_json() for finding in findings],
        }
    )


def _new_job(
    training: Path | None, site: str | None, sets: Sequence[str], folder: Path, *, yes: bool
) -> tuple[str, str | None]:
    """The text of a job file in `folder`, and the site to check it with; None if the file names it or it is detected.

    Raises UsageError if answers are missing and nobody can be asked.
    """
    findings: list[Finding] = []
    answers = dict(override_layer(sets, findings).data)
    if findings:
        raise Refused(findings)
    asker = _Asker(yes=yes)
    script = str(training) if training is not None else str(answers.pop("script", ""))
    if not script:
        script = asker.ask_text("TRAINING", "the training's Python file", None)
    name, written = _site(site or answers.pop("site", None), asker)
    if not script or name is None:
        raise asker.refusal()
    source = read_training(Path(script))
    profile = load_site_profile(name, Place("--site"), Path())
    overlay = read_user_overlay(findings)
    own = (overlay.data.get("defaults") or {}) if overlay is not None else {}
    account = os.environ.get("SBATCH_ACCOUNT") or own.get("account") or answers.get("account")
    for question in questions(profile, source, account):
        if not _answered(question.key, answers):
            asker.ask(question, answers)
    if asker.missing:
        raise asker.refusal()
    if not os.path.isfile(script):
        raise UsageError(f"{script} does not exist", "name the training's Python file")
    if not os.path.isabs(script):
        script = os.path.relpath(script, folder)
    return new_job_text(source, script, name if written else None, answers, os.environ), name


def _site(given: object, asker: _Asker) -> tuple[str | None, bool]:
    """The site, and whether the job file has to name it."""
    if given:
        return str(given), True
    if os.environ.get("HPC_LAUNCH_SITE"):
        return os.environ["HPC_LAUNCH_SITE"], False
    found = detect_site(Path())
    if found.chosen is not None:
        return found.chosen.name, False
    names = [match.name for match in found.matches] or profile_names()
    return asker.ask_text("--site", "site profile", None, names) or None, True


def _answered(key: str, answers: dict[str, Any]) -> bool:
    first, dot, rest = key.partition(".")
    inside = answers.get(first)
    if dot:
        return not isinstance(inside, dict) or rest in inside if first in answers else False
    return first in answers or (key == "gpus_per_node" and "gpus" in answers)


class _Asker:
    """Asks on the terminal, or collects what would have to be asked."""

    def __init__(self, *, yes: bool) -> None:
        self.yes = yes
        self.terminal = sys.stdin.isatty() and sys.stderr.isatty()
        self.missing: list[str] = []

    def ask(self, question: Question, answers: dict[str, Any]) -> None:
        """Ask until the answer is valid, and add it to the answers."""
        while True:
            flag = f"--set {question.key}=…"
            text = self.ask_text(flag, question.text, question.default, question.choices)
            if not text:
                return
            try:
                value = question.check(text)
            except ValueError as error:
                if not self.terminal:
                    raise
                click.echo(f"  {error}", err=True)
                continue
            first, dot, rest = question.key.partition(".")
            if dot:
                answers.setdefault(first, {})[rest] = value
            else:
                answers[first] = value
            return

    def ask_text(self, flag: str, text: str, default: str | None, choices: Sequence[str] = ()) -> str:
        """One answer; empty if nobody can be asked."""
        if self.yes and default is not None:
            return default
        if not self.terminal:
            self.missing.append(flag)
            return ""
        shown = visible(text) + (f" [{', '.join(map(visible, choices[:12]))}]" if choices else "")
        answer: str = click.prompt(
            shown,
            default=default,
            err=True,
            type=click.Choice(list(choices)) if 0 < len(choices) < 13 else str,
            show_choices=False,
        )
        return answer.strip()

    def refusal(self) -> Exception:
        """The error that names what was not answered."""
        return UsageError(
            f"init has questions, and this is not a terminal: {', '.join(self.missing)}",
            "answer them with these options; --yes takes the defaults of the others",
        )
