"""Build the launch plan from the resolved values. Pure; the rules that a plan must meet are in `plan_rules`.

Texts of a job that would not do what they seem to are reported here: no shell reads them, and secrets in them reach the
script.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpc_launch.base.findings import Finding, FindingCode
from hpc_launch.base.patterns import SECRET_NAME, SECRET_OPTION, SECRET_VALUE
from hpc_launch.job.document import KeyPath, flow_yaml
from hpc_launch.job.shell_text import Text, readable
from hpc_launch.job.type_hints import label
from hpc_launch.plan.container_plan import container, copies, data, inner_steps, runtime_modules, stage
from hpc_launch.plan.continuation import continuation, stripe
from hpc_launch.plan.driver_plan import notify_plan, retry_plan
from hpc_launch.plan.environment import check_variable_names, prelude, variables, watch
from hpc_launch.plan.job_size import job_size
from hpc_launch.plan.launch_plan import LaunchPlan, Program, StrategyPlan, StrategyResult, Variable
from hpc_launch.plan.launch_step import code, master, program, rank_binding, spares, step
from hpc_launch.plan.launchers.descriptor import descriptor, launcher
from hpc_launch.plan.node_check_plan import node_check
from hpc_launch.plan.plan_draft import CONFIG, OF_ROLE, JobSize, PlanDraft, ValueFiller
from hpc_launch.plan.plan_rules import check
from hpc_launch.plan.sbatch_options import check_srun, directives, missing_variables
from hpc_launch.plan.site_environment import site_settings, site_variables
from hpc_launch.sites.queues import overlay_fabric
from hpc_launch.sites.resolved import Resolved

if TYPE_CHECKING:
    from hpc_launch.model.model_config import ModelConfig
    from hpc_launch.plan.strategy_files import UserStrategyConfig


def build(
    resolved: Resolved, user_config: UserStrategyConfig | None = None, model: ModelConfig | None = None
) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan, or None if it cannot be built, and every finding. `user_config`: the file named by `strategy.file`."""
    findings = list(_undecodable_names(resolved))
    if findings:
        return None, findings
    if resolved.job.roles:
        from hpc_launch.plan.role_jobs import build_roles

        return build_roles(resolved, build)
    filler = ValueFiller(resolved, findings)
    job, site = resolved.job, resolved.site
    size = job_size(filler)
    strategy = _strategy(filler, size, user_config, model)
    filler = ValueFiller(replace(resolved, names={**resolved.names, **strategy.names}), findings)
    job_program = program(filler, strategy.plan.flags if strategy.plan is not None else ())
    steps = (*prelude(filler), *runtime_modules(filler))
    python = filler.text(job.environment.python or "python3", ("environment", "python"))
    workdir = filler.file(job.workdir or ".", ("workdir",))
    runs_folder = _runs_folder(filler)
    if size is None or job_program is None:
        return None, findings
    if not resolved.role:
        check(filler, size)
    check_texts(filler, job_program)
    how = launcher(filler)
    site_values = site_variables(filler, size)
    settings = variables(filler, size, strategy.variables, site_values["job"])
    settings = (*settings, *missing_variables(filler, size, settings))
    continuation_plan = continuation(filler)
    container_plan = container(filler, size, workdir, (*settings, *continuation_plan.resume_variables))
    launch_step = step(filler, size, container_plan)
    if launch_step.kind == "srun":
        check_srun(filler, launch_step.options)
    copy_plan = copies(filler, runs_folder, workdir, continuation_plan.checkpoint)
    options = directives(filler, size, settings) if site.scheduler.type == "slurm" and not resolved.role else ()
    plan = LaunchPlan(
        name=job.name,
        site=site.name,
        scheduler=site.scheduler.kind,
        submitted_to=site.scheduler.type,
        nodes=job.max_nodes,
        fewest_nodes=job.min_nodes,
        spares=spares(filler, launch_step, [one.option for one in options], shared_folders=copy_plan is None),
        processes_per_node=size.processes_per_node,
        gpus_per_node=size.gpus_per_node,
        cpus_per_node=size.cpus_per_node,
        time_limit_s=size.time_s,
        signal_before_s=job.checkpoint.signal_before,
        launcher=job.launcher.name,
        launcher_options=how.options,
        launcher_origin=resolved.origin("launcher"),
        rendezvous=how.rendezvous,
        max_restarts=how.max_restarts,
        step=launch_step,
        binding=rank_binding(filler, size),
        directives=options,
        prelude=steps,
        variables=settings,
        python=python,
        program=job_program,
        workdir=workdir,
        runs_folder=runs_folder,
        master=master(filler),
        ports=site.network.ports,
        requeue=(size.queue.requeue or site.scheduler.requeue) != "never",
        progress={key: value for key in ("step", "loss") if (value := getattr(job.progress, key))},
        secrets=tuple(job.secrets),
        notify=notify_plan(filler),
        container=container_plan,
        continuation=continuation_plan,
        recovery=retry_plan(filler, size),
        code=code(filler),
        watch=watch(job),
        stage=stage(filler, launch_step, container_plan, python),
        data=data(filler, launch_step, container_plan),
        stripe=stripe(filler, runs_folder, continuation_plan.checkpoint),
        node_check=node_check(
            filler,
            size,
            python,
            job_program,
            settings,
            saved=continuation_plan.checkpoint,
            container=container_plan,
        ),
        fabric=overlay_fabric(site.fabric, size.node_class.fabric)[0].kind,
        strategy=_without_unused_file(filler, strategy.plan, job_program, settings),
        hosts=tuple(replace(host, slots=slots) for host, slots in zip(resolved.hosts, size.slots, strict=True)),
        spare_hosts=resolved.spare_hosts,
        shared_hosts=site.scheduler.shared,
        copies=copy_plan,
        around=site_settings(filler, size, site_values, settings, inner_steps(filler, settings)),
    )
    check_variable_names(filler, plan)
    return plan, findings


_UNKNOWN = {
    **dict.fromkeys(("strategy.micro_batch", "strategy.global_batch", "strategy.gradient_accumulation"), "1"),
    **dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "parallel.dp"), "1"),
}
"""Placeholders for a job of unknown size, so that the finding about the size is the only one."""


def _strategy(
    filler: ValueFiller, size: JobSize | None, user_config: UserStrategyConfig | None, model: ModelConfig | None
) -> StrategyResult:
    """The strategy for the processes of the job, with a finding for each conflict. Other jobs import none of it."""
    job = filler.resolved.job
    if size is None:
        return StrategyResult(names=_UNKNOWN)
    if job.strategy.name in {"none", "ddp"} and job.parallel is None and not filler.given("strategy") - {"name"}:
        return StrategyResult()
    from hpc_launch.plan.strategy_plan import strategy_result

    return strategy_result(filler, size, user_config, model)


def _without_unused_file(
    filler: ValueFiller, plan: StrategyPlan | None, program: Program, variables: Iterable[Variable]
) -> StrategyPlan | None:
    """The plan, without a file that nothing refers to: `strategy: zero1` alone may be only a label.

    The Trainer finds its configuration only through its arguments; warn if none of them names it.
    """
    strategy = filler.resolved.job.strategy
    texts: list[Text] = [*program.words, *(word for line in program.argument_lines for word in line)]
    texts += [variable.value for variable in variables if variable.value is not None]
    if plan is None or plan.file is None or any(CONFIG in text for text in texts):
        return plan
    if strategy.reader == "trainer":
        key = "deepspeed" if strategy.zero_stage is not None else "fsdp_config"
        message = "no argument passes the configuration to the Trainer"
        hint = f"add to `args`: `{key}: ${{strategy.config}}`"
        filler.fault(FindingCode.CONFIG_NOT_PASSED, message, ("strategy", "for"), hint, "warning")
    return plan if filler.given("strategy") - {"name"} else None


def _runs_folder(filler: ValueFiller) -> str:
    asked = filler.resolved.job.run_dir
    folder = filler.file(asked, ("run_dir",)) if asked else filler.resolved.names["runs"]
    if not folder.isprintable():
        message = f"the path of the run folders contains unprintable characters: {folder!r}"
        filler.fault(FindingCode.INVALID_RUN_DIR, message, ("run_dir",), "choose another folder")
    elif any(character in folder for character in "%\\"):
        # sbatch(1), filename pattern.
        message = f"the path of the run folders contains `%` or `\\`, which Slurm interprets in file names: {folder}"
        filler.fault(FindingCode.INVALID_RUN_DIR, message, ("run_dir",), "choose another folder")
    return os.path.normpath(folder)


def _undecodable_names(resolved: Resolved) -> Iterator[Finding]:
    """HL007 for a name that is not valid UTF-8: no script, record or log could hold it."""
    place = resolved.merged.places.get(())
    if _has_surrogates(resolved.job_folder):
        message = f"the name of the job folder is not valid UTF-8: {resolved.job_folder}"
        yield Finding(FindingCode.INVALID_CHARACTER, message, place, "rename the folder, or submit from another one")
    for name, text in resolved.names.items():
        if _has_surrogates(text):
            message = f"the value of `${{{name}}}` is not valid UTF-8: {text}"
            yield Finding(FindingCode.INVALID_CHARACTER, message, place, "set another value")


def _has_surrogates(text: str) -> bool:
    """Whether Python kept a byte of it as a lone surrogate (PEP 383)."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


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
