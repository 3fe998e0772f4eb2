"""The text of the script, from the plan and `slurm_templates/`. The same plan gives the same bytes, always."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket, BytecodeCache, FileSystemBytecodeCache
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpc_launch import __version__
from hpc_launch.base.resources import shipped
from hpc_launch.base.user_dirs import cache_folder, make_private
from hpc_launch.images.runtimes.registry import wrapped
from hpc_launch.images.wrapped import Wrapped
from hpc_launch.launch.steps import step_of
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.spec.origin import Origin
from hpc_launch.spec.shell_text import Text, Var, here_document, quote, visible

_COMMENT_COLUMN = 60


def render(plan: LaunchPlan) -> str:
    """The whole script. A name that a template misspells is an error, never an empty text (StrictUndefined)."""
    local = plan.scheduler == "local"
    container = wrapped(plan.container)
    step = step_of(plan)
    return (
        _environment()
        .get_template("job.sh.j2")
        .render(
            plan=plan,
            version=__version__,
            by_hand="bash FILE" if local else "sbatch FILE",
            node_rank=step.node_rank,
            node_address=step.node_address,
            node_functions=step.functions,
            notes=step.notes,
            grace=step.grace,
            cpus_per_task=max(plan.cpus_per_node // step.tasks_per_node, 1) if plan.cpus_per_node else None,
            tasks_per_node=step.tasks_per_node,
            local_gpus=_local_gpus(plan),
            container=container,
            inside_ranks=plan.around.rank_variables if plan.launcher == "srun" else (),
            torchrun_ranks=plan.around.rank_variables if plan.launcher == "torchrun" else (),
            into_container="".join(f"{words} \\\n        " for words in _before(plan, container)),
        )
    )


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        bytecode_cache=_bytecode(),
        loader=FileSystemLoader(shipped("slurm_templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",  # {# is bash's own: ${#array[@]}
        comment_end_string="#>",
        autoescape=False,
    )
    environment.filters.update(
        q=quote, show=_show, aligned=_aligned, oneline=visible, origin=_origin, starred=_starred, here=_here
    )
    return environment


def _bytecode() -> BytecodeCache | None:
    """Compiled templates in the user's cache folder: compiling them anew is a fifth of the time of `render`."""
    try:
        folder = make_private(cache_folder() / "templates")
        ours = folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK)
    except OSError:
        return None
    return _QuietCache(str(folder)) if ours else None


class _QuietCache(FileSystemBytecodeCache):
    """A cache that a full disk or a lost file server only makes slow."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _show(text: Text) -> str:
    """A value for a message to people."""
    return visible("".join(f"${part.name}" if isinstance(part, Var) else part for part in text))


def _origin(origin: Origin) -> str:
    return visible(origin.short())


def _aligned(line: str, origin: Origin) -> str:
    """A line with its origin as a comment, in a column of its own where the line is short enough."""
    return f"{line:<{_COMMENT_COLUMN}} # {_origin(origin)}"


def _here(text: Text, command: str) -> str:
    """A command line with a here-document; `<<` in it stands for that, and the rest of the line follows."""
    word, _, lines = here_document(text).partition("\n")
    return f"{command.replace('<<', '<<' + word)}\n{lines}"


def _starred(name: str) -> str:
    """A file name for bash in which `*` alone has a meaning."""
    return "*".join(quote(part) if part else "" for part in name.split("*"))


_HOOKS = """/bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"'"""
"""An image may have a PYTHONPATH of its own, which only a shell inside can add to."""


def _before(plan: LaunchPlan, container: Wrapped) -> list[str]:
    """What stands before the launcher on a node, line by line."""
    guard = ['bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh"'] if plan.continuation.guarded else []
    watch = ['bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh"'] if plan.watch is not None else []
    image = [" ".join(map(quote, line)) for line in container.before]
    ranks = plan.launcher == "srun" and plan.around.rank_variables
    within = ['bash "$HPC_LAUNCH_ATTEMPT_DIR/within.sh"'] if plan.around.inside or ranks else []
    return [*guard, *watch, *image, *([_HOOKS] if plan.container is not None else []), *within]


def _local_gpus(plan: LaunchPlan) -> str:
    """Each "node" of a local run gets its own share of this machine's GPUs, as Slurm would give it."""
    devices = ",".join(f"$((node * {plan.gpus_per_node} + {gpu}))" for gpu in range(plan.gpus_per_node))
    return f"export CUDA_VISIBLE_DEVICES={devices}"
