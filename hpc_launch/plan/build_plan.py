"""From resolved values to the launch plan. Pure: what a plan must meet beyond its own arithmetic is in `rules`."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from hpc_launch.base.findings import Finding
from hpc_launch.plan.code_folder import code
from hpc_launch.plan.container_plan import container
from hpc_launch.plan.continuation import continuation
from hpc_launch.plan.environment_steps import prelude, variables
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.inside_container import inner_steps, runtime_modules
from hpc_launch.plan.job_size import shape
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.launch_step import master, step
from hpc_launch.plan.launchers import launcher
from hpc_launch.plan.plan_rules import check
from hpc_launch.plan.program import program
from hpc_launch.plan.retry_plan import recovery
from hpc_launch.plan.sbatch_options import directives
from hpc_launch.plan.site_environment import site_settings, site_variables
from hpc_launch.plan.site_sbatch_options import check_srun, missing_variables
from hpc_launch.plan.strategy_on_demand import read_by_somebody, spread
from hpc_launch.plan.text_checks import not_text
from hpc_launch.plan.watcher_plan import watch
from hpc_launch.sites.fabric import over
from hpc_launch.sites.resolved import Resolved

if TYPE_CHECKING:
    from hpc_launch.plan.user_strategy_config import OwnConfig


def build(resolved: Resolved, own: OwnConfig | None = None) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan where it can be made, and every fault met on the way. `own`: the file that `strategy.file` names."""
    findings = list(not_text(resolved))
    if findings:
        return None, findings
    words = ValueFiller(resolved, findings)
    job, site = resolved.job, resolved.site
    form = shape(words)
    laid = spread(words, form, own)
    words = laid.known_to(words)
    what = program(words, laid.plan.flags if laid.plan is not None else ())
    steps = (*prelude(words), *runtime_modules(words))
    python = words.text(job.environment.python or "python3", ("environment", "python"))
    workdir = words.file(job.workdir or ".", ("workdir",))
    runs_folder = _runs_folder(words)
    if form is None or what is None:
        return None, findings
    check(words, form)
    how = launcher(words)
    theirs = site_variables(words, form)
    settings = variables(words, form, laid.variables, theirs.job)
    settings = (*settings, *missing_variables(words, form, settings))
    going_on = continuation(words)
    boxed = container(words, form, workdir, (*settings, *going_on.resume_variables))
    started = step(words, form, boxed)
    if started.kind == "srun":
        check_srun(words, started.options)
    plan = LaunchPlan(
        name=job.name,
        site=site.name,
        scheduler=site.scheduler.type,
        nodes=job.most_nodes,
        fewest_nodes=job.fewest_nodes,
        processes_per_node=form.processes_per_node,
        gpus_per_node=form.gpus_per_node,
        cpus_per_node=form.cpus_per_node,
        time_limit_s=form.time_s,
        signal_before_s=job.checkpoint.signal_before,
        launcher=job.launcher.name,
        launcher_options=how.options,
        launcher_origin=resolved.origin("launcher"),
        rendezvous=how.rendezvous,
        max_restarts=how.max_restarts,
        step=started,
        directives=directives(words, form, settings) if site.scheduler.type == "slurm" else (),
        prelude=steps,
        variables=settings,
        python=python,
        program=what,
        workdir=workdir,
        runs_folder=runs_folder,
        master=master(words),
        ports=site.network.ports,
        requeue=(form.queue.requeue or site.scheduler.requeue) == "scheduler",
        progress={key: value for key in ("step", "loss") if (value := getattr(job.progress, key))},
        secrets=tuple(job.secrets),
        container=boxed,
        continuation=going_on,
        recovery=recovery(words, form),
        code=code(words),
        watch=watch(job),
        fabric=over(site.fabric, form.node_class.fabric)[0].kind,
        strategy=read_by_somebody(words, laid.plan, what, settings),
        around=site_settings(words, form, theirs, settings, inner_steps(words, settings)),
    )
    return plan, findings


def _runs_folder(words: ValueFiller) -> str:
    asked = words.resolved.job.run_dir
    folder = words.file(asked, ("run_dir",)) if asked else words.resolved.names["runs"]
    if not folder.isprintable():
        message = f"run folders cannot lie in {folder!r}: it holds characters that cannot be seen"
        words.fault("HL213", message, ("run_dir",), "choose another folder")
    elif any(character in folder for character in "%\\"):
        # sbatch(1), filename pattern.
        message = f"run folders cannot lie in {folder}: `%` and `\\` mean something to Slurm in file names"
        words.fault("HL213", message, ("run_dir",), "choose another folder")
    return os.path.normpath(folder)
