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
from hpc_launch.base.state import cache_folder, make_private
from hpc_launch.images.select import wrapped
from hpc_launch.plan.types import LaunchPlan
from hpc_launch.spec.origin import Origin
from hpc_launch.spec.text import Text, Var, quote, visible

_COMMENT_COLUMN = 60


def render(plan: LaunchPlan) -> str:
    """The whole script. A name that a template misspells is an error, never an empty text (StrictUndefined)."""
    local = plan.scheduler == "local"
    container = wrapped(plan.container)
    tasks = plan.processes_per_node if plan.launcher == "srun" else 1
    return (
        _environment()
        .get_template("job.sh.j2")
        .render(
            plan=plan,
            version=__version__,
            by_hand="bash FILE" if local else "sbatch FILE",
            node_rank="$HPC_LAUNCH_NODE" if local else "$SLURM_NODEID",
            node_address="127.0.0.1" if local else f"${{SLURMD_NODENAME}}{plan.master_suffix}",
            cpus_per_task=max(plan.cpus_per_node // tasks, 1) if plan.cpus_per_node else None,
            tasks_per_node=tasks,
            local_gpus=_local_gpus(plan),
            container=container,
            into_container="".join(f"{' '.join(map(quote, line))} \\\n        " for line in container.before),
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
    environment.filters.update(q=quote, show=_show, aligned=_aligned, origin=_origin)
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


def _local_gpus(plan: LaunchPlan) -> str:
    """Each "node" of a local run gets its own share of this machine's GPUs, as Slurm would give it."""
    devices = ",".join(f"$((node * {plan.gpus_per_node} + {gpu}))" for gpu in range(plan.gpus_per_node))
    return f"export CUDA_VISIBLE_DEVICES={devices}"
