"""Texts of a job that would not do what they seem to: no shell reads them, and secrets in them reach the script."""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from itertools import pairwise

from hpc_launch.base.findings import FindingCode
from hpc_launch.base.patterns import SECRET_NAME, SECRET_OPTION, SECRET_VALUE
from hpc_launch.job.document import KeyPath, flow_yaml
from hpc_launch.job.shell_text import readable
from hpc_launch.job.type_hints import label
from hpc_launch.plan.launch_plan import Program
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.plan.plan_draft import OF_ROLE, PlanDraft

LAUNCHERS = frozenset({"torchrun", "srun", "mpirun", "mpiexec", "ibrun", "deepspeed", "accelerate"})
"""Programs that start processes, one of which hpc-launch itself uses."""
BUILTINS = re.compile(r"(cd|source|\.|export|module|ulimit|eval|set|if|for|while|conda activate)(\s|$)")
"""What only a shell knows. `conda activate` is a function of the shell, other commands of conda are not."""
OPERATORS = frozenset({"&&", "||", "|", ">", ">>", "<", "2>&1"})
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\{[^}]*\}", re.DOTALL)
_OPERATOR = re.compile(r"(?<!\S)(?:\d?>{1,2}(?:&\d)?|&&|\|\|?|<<?(?=\s))|(?:&&?|\|\|?|;)(?!\S)|`|\$\(")
"""With a blank on one side: no shell reads `?a=1&b=2`, and need not."""
_EXPANDED = re.compile(r"(?<![\\$])\$(?:([A-Za-z_]\w*)|\()")
_HOME = re.compile(r"(?:^|=)~(/\S*|$)")
_TWO_WORDS = re.compile(r"(--?[A-Za-z][\w-]*) +(\S.*)")


def check_texts(draft: PlanDraft, program: Program) -> None:
    """Add a finding for each text that a shell or a person is meant to read, and for each secret."""
    _check_secrets(draft, program)
    words = [readable(word) for word in program.words]
    if program.kind == "module" and (words[0].endswith(".py") or "/" in words[0]):
        message = f"`{words[0]}` is a file, and `module` names a Python module"
        draft.fault(FindingCode.INVALID_COMMAND, message, ("module",), f"write `script: {words[0]}`")
    if program.kind == "command" and words:
        _check_command(draft, words)
        if os.path.basename(words[0]) in ("sh", "bash", "dash", "ksh", "zsh"):
            return  # it expands its text itself
    for path, text in draft.resolved.merged.written.items():
        if path[0] in ("args", "env", "command") or path[:2] == ("checkpoint", "resume"):
            # What stands in single quotes of a command line is meant as it is.
            _check_expansion(draft, path, re.sub(r"'[^']*'", "", text) if path == ("command",) else text)


def _check_expansion(draft: PlanDraft, path: KeyPath, text: str) -> None:
    """HL219 for `$HOME`, `$(command)` and `~`, which only a shell expands, and for two words in one."""
    message = hint = None
    if draft.resolved.role:
        text = OF_ROLE.sub("", text)
    if (found := _EXPANDED.search(text)) is not None:
        name = found[1] or ""
        message, hint = f"`{found[0]}` is not expanded: no shell reads this text", "write what it stands for"
        if SECRET_NAME.search(name):
            hint = f"list it: `secrets: [{name}]`, and let the program read the variable itself"
        elif name:
            hint = f"write `${{env.{name}}}` for its value in this shell, or `${{shell.{name}}}` for that in the job"
    elif (found := _HOME.search(text)) is not None:
        message = "`~` is not expanded: no shell reads this text"
        hint = f"write `${{home}}{found[1]}`, unless the program expands it"
    elif path[:1] == ("args",) and isinstance(path[-1], int) and (found := _TWO_WORDS.fullmatch(text)) is not None:
        message, hint = f"`{text}` is one word of the command line", f"write two items: `{found[1]}`, `{found[2]}`"
    if message is not None:
        draft.fault(FindingCode.NOT_EXPANDED, message, path, hint, "warning")


def _check_command(draft: PlanDraft, words: Sequence[str]) -> None:
    """HL203 for a command that only a shell understands, or that starts another launcher."""
    job, first = draft.resolved.job, words[0]
    text = job.command if isinstance(job.command, str) else " ".join(words)
    operators = [word for word in words if word in OPERATORS]
    if isinstance(job.command, str):
        operators = _OPERATOR.findall(_QUOTED.sub("", text))
    module = words[2] if len(words) > 2 and words[1] == "-m" else ""
    nested = os.path.basename(first) in LAUNCHERS or module.startswith(("torch.distributed.", "accelerate."))
    message, hint = None, f"run a shell: `command: [bash, -c, {flow_yaml(text)}]`"
    if nested and descriptor(job.launcher.name).tasks == "node":
        message = f"the command starts `{first}`, and {job.launcher.name} would start it once for each process"
        hint = "name the program itself, such as `script: train.py`, or write `launcher: none`"
    elif re.match(r"[A-Za-z_]\w*=", first):
        message = f"`{first}` is not a program: no shell reads the command"
        hint = f"write `env: {{{first.replace('=', ': ', 1)}}}`"
    elif operators:
        message = f"no shell reads the command: `{operators[0]}` would be an argument"
    elif BUILTINS.match(" ".join(words)):
        message = f"`{first}` is a word of the shell, and no shell reads the command"
    if message is not None:
        draft.fault(FindingCode.INVALID_COMMAND, message, ("command",), hint)


def _check_secrets(draft: PlanDraft, program: Program) -> None:
    """HL211 for each text of the job that looks like a secret, wherever it stands."""
    found = {path: label(path) for path, text in draft.resolved.merged.written.items() if SECRET_VALUE.search(text)}
    words = [readable(word) for line in program.argument_lines for word in line]
    for word, following in pairwise([*words, ""]):
        option, _, value = word.partition("=")
        literal = (value or following)[:1] not in ("", "-", "$") and not SECRET_VALUE.search(value or following)
        if literal and option.startswith("-") and SECRET_OPTION.search(option):
            found["args",] = option
    for name, text in draft.resolved.job.env.items():
        if SECRET_NAME.search(name) and isinstance(text, str) and text:
            found["env", name] = name
    for path, name in found.items():
        hint = f"list it: `secrets: [{name if path[0] == 'env' else 'NAME'}]`, and set it in your shell"
        message = f"`{name}` looks like a secret and would be written to the script"
        draft.fault(FindingCode.SECRET_IN_SCRIPT, message, path, hint)
