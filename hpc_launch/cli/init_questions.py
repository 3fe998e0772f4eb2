"""`init` without a script: ask what cannot be found out. Every question can be answered with an option instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hpc_launch.from_script.new_job import Question


def new_job(
    training: Path | None, site: str | None, sets: Sequence[str], folder: Path, *, defaults: bool
) -> tuple[str, str | None]:
    """The text of a job file in `folder`, and the site to check it with; None if the file names it or it is detected.

    Raises UsageError if answers are missing and nobody can be asked.
    """
    from hpc_launch.base.errors import Refused, UsageError
    from hpc_launch.base.findings import Finding, Place
    from hpc_launch.from_script.new_job import likely_trainings, new_job_text, questions, read_training
    from hpc_launch.job.job_file import override_layer
    from hpc_launch.sites.read_profile import load_site_profile, read_user_overlay

    findings: list[Finding] = []
    answers = dict(override_layer(sets, findings).data)
    if findings:
        raise Refused(findings)
    asker = _Asker(defaults=defaults)
    script = str(training) if training is not None else str(answers.pop("script", ""))
    if not script:
        found = likely_trainings(Path())
        script = asker.ask_text("TRAINING", "the training's Python file", found[0] if len(found) == 1 else None, found)
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
    from hpc_launch.prepare.prepare import detect_site
    from hpc_launch.sites.search_path import profile_names

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

    def __init__(self, *, defaults: bool) -> None:
        self.defaults = defaults
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
        from hpc_launch.job.shell_text import visible

        if self.defaults and default is not None:
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
        from hpc_launch.base.errors import UsageError

        return UsageError(
            f"init has questions, and this is not a terminal: {', '.join(self.missing)}",
            "answer them with these options; --yes takes the defaults of the others",
        )
