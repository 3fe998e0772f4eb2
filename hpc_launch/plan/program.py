"""What is started: the training's script, module or command, its arguments as words, and the folder of its code."""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.document import KeyPath
from hpc_launch.job.shell_text import Text, Var
from hpc_launch.job.type_hints import Scalar
from hpc_launch.plan.launch_plan import Entry, Line, Program
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.recorded_parts import CodePlan

CODE = Var("HPC_LAUNCH_CODE")


def code(filler: ValueFiller) -> CodePlan | None:
    """The folder of the job file, or of the script if that is elsewhere; None if nothing is copied."""
    job = filler.resolved.job
    if job.script is None or job.code.snapshot == "off":
        return None
    script = filler.file(job.script, ("script",))
    root = filler.absolute(filler.resolved.job_folder)
    if not script.startswith(f"{root}/"):
        root = os.path.dirname(script)
    if root in ("/", filler.absolute(filler.resolved.names["home"])):
        return None  # a whole home directory is never copied
    return CodePlan(root, tuple(job.code.exclude), job.code.limit)


def script_word(filler: ValueFiller, plan: CodePlan | None) -> Text:
    """The path of `script:` inside the job."""
    path = filler.file(filler.resolved.job.script or "", ("script",))
    return (path,) if plan is None else (CODE, path.removeprefix(plan.root))


def program(filler: ValueFiller, flags: Sequence[Entry] = ()) -> Program | None:
    """The program, or None with a finding where the job names none or several. `flags` go before its arguments."""
    job = filler.resolved.job
    named = [key for key in ("script", "module", "command") if getattr(job, key) is not None]
    if len(named) != 1:
        if not named:
            hint = "add `script: train.py`, or `module:`/`command:`"
            filler.fault(FindingCode.NOT_ONE_PROGRAM, "the job names nothing to run", (), hint)
        else:
            both = " and ".join(f"`{key}`" for key in named)
            filler.fault(FindingCode.NOT_ONE_PROGRAM, f"{both} both say what to run", (named[1],), "keep one of them")
        return None
    kind = named[0]
    before = (((flag.key,),) if flag.value is None else ((flag.key,), (flag.value,)) for flag in flags)
    lines = (*before, *argument_lines(filler, job.args, ("args",)))
    first: tuple[Text, ...]
    if job.script is not None:
        first = (script_word(filler, code(filler)),)
    elif job.module is not None:
        first = (filler.text(job.module, ("module",)),)
    else:
        first = _command(filler)
    return Program(
        kind=kind,  # type: ignore[arg-type]
        words=first,
        argument_lines=lines,
        resume_lines=tuple(argument_lines(filler, job.checkpoint.resume.args, ("checkpoint", "resume", "args"))),
    )


def _command(filler: ValueFiller) -> tuple[Text, ...]:
    command = filler.resolved.job.command
    if isinstance(command, str):
        try:
            split = shlex.split(command)
        except ValueError as error:
            message = f"`command` cannot be split into words: {error}"
            filler.fault(FindingCode.INVALID_COMMAND, message, ("command",), "close the quote")
            split = []
        parts = tuple(filler.text(word, ("command",)) for word in split)
    else:
        parts = tuple(filler.text(word, ("command", index)) for index, word in enumerate(command or ()))
    if not parts:
        filler.fault(FindingCode.INVALID_COMMAND, "`command` holds no word", ("command",))
    return parts


def argument_lines(filler: ValueFiller, args: dict[str, Any] | list[Scalar], where: KeyPath) -> Iterator[Line]:
    """The arguments that stand at `where` in the job file, an option with its values on a line."""
    if isinstance(args, list):
        for index, value in enumerate(args):
            yield (filler.text(value, (*where, index)),)
        return
    for key, value in args.items():
        path: KeyPath = (*where, key)
        option = key if key.startswith("-") else f"--{key}"
        if value is True:
            yield ((option,),)
        elif isinstance(value, list):
            yield ((option,), *(_value(filler, item, (*path, index)) for index, item in enumerate(value)))
        elif value is not None and value is not False:
            yield ((option,), _value(filler, value, path))


def _value(filler: ValueFiller, value: Any, path: KeyPath) -> Text:
    if isinstance(value, dict | list):
        hint = "for JSON write it in quotes"
        filler.fault(FindingCode.INVALID_ARGUMENT, "an argument's value is a word or a list of words", path, hint)
        return ("",)
    return filler.text(value, path)
