"""The node check before the training: what each node is expected to have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_launch.job.shell_text import Text, Var
from hpc_launch.plan.environment import NCCL_INTERFACES
from hpc_launch.plan.launch_plan import NodeCheckPlan, Program, Variable
from hpc_launch.plan.plan_draft import JobSize, ValueFiller
from hpc_launch.plan.recorded_parts import CheckpointPlan
from hpc_launch.runtimes.container_runtimes import ContainerPlan
from hpc_launch.sites.queues import overlay_fabric

_FABRICS = {"infiniband": "InfiniBand", "slingshot": "Slingshot", "roce": "RoCE", "efa": "EFA"}
"""Networks that NCCL uses by its own code or by a plugin. It falls back to sockets without an error."""


def node_check(
    filler: ValueFiller,
    size: JobSize,
    python: Text,
    program: Program,
    variables: Sequence[Variable],
    *,
    saved: CheckpointPlan | None,
    container: ContainerPlan | None,
) -> NodeCheckPlan | None:
    """The check's expectations; None if the nodes are not checked: the job may turn it off."""
    if filler.resolved.job.preflight == "off" or filler.resolved.site.scheduler.kind == "local":
        return None
    only = filler.resolved.job.preflight == "only"
    inside = container is not None and _starts_at_once(container)
    expects = [*_expects(filler, size, program, variables, saved=saved)]
    if container is None or inside:
        expects.append(f"--python={_unexpanded(python)}")
        expects += [f"--script={_unexpanded(program.words[0])}"] if program.kind == "script" else []
    per_task = size.gpus_per_node if size.node_class.gpu_request == "gpus-per-task" else 0
    return NodeCheckPlan((*expects, *(["--image"] if inside else [])), only, inside, per_task)


def _starts_at_once(container: ContainerPlan) -> bool:
    """Whether a node starts the image without downloading it first, which the training would do once more."""
    if container.runtime == "pyxis":
        return container.image.startswith(("/", "./"))  # else the name of one in a registry (pyxis README)
    return "://" not in container.image


def _expects(
    filler: ValueFiller,
    size: JobSize,
    program: Program,
    variables: Sequence[Variable],
    *,
    saved: CheckpointPlan | None,
) -> Iterator[str]:
    node, job = size.node_class, filler.resolved.job
    if size.gpus_per_node:
        yield f"--gpus={size.gpus_per_node}"
        if filler.resolved.site.scheduler.shared:
            yield "--gpus-of-others"
        if node.gpu_vendor:
            yield f"--gpu-vendor={node.gpu_vendor}"
        if node.gpu_type and node.gpu_vendor == "nvidia":
            yield f"--gpu-model={node.gpu_type}"
    if node.memory:
        yield f"--memory-mib={node.memory}"
    if names := _interfaces(variables):
        yield f"--interfaces={':'.join(names)}"
    for path in _paths(program):
        yield f"--path={path}"
    if saved is not None:
        yield f"--writable={_unexpanded(saved.text)}"
    fabric, full = _fabric(filler, size, variables), job.preflight in ("full", "only")
    proof = overlay_fabric(filler.resolved.site.fabric, node.fabric)[0].fallback
    proof = proof if fabric and size.gpus_per_node and job.max_nodes > 1 else None
    if full or proof:
        yield "--full"
        yield f"--tasks={size.processes_per_node}"
        yield from (f"--{name}={value}" for name, value in (("fabric", fabric), ("transport", proof)) if value)
    if proof and not full:
        yield "--quick"


def _fabric(filler: ValueFiller, size: JobSize, variables: Sequence[Variable]) -> str:
    """The fast network that NCCL has to use between nodes; '' if there is none, or the job chose another."""
    kind = overlay_fabric(filler.resolved.site.fabric, size.node_class.fabric)[0].kind
    chosen = {one.name: "".join(part for part in one.value or () if isinstance(part, str)) for one in variables}
    if chosen.get("NCCL_NET") == "Socket" or chosen.get("NCCL_IB_DISABLE") == "1":
        return ""
    return _FABRICS.get(kind or "", "")


def _unexpanded(text: Text) -> str:
    """A text in which the check itself replaces the variables."""
    return "".join(f"${{{part.name}}}" if isinstance(part, Var) else part for part in text)


def _interfaces(variables: Sequence[Variable]) -> list[str]:
    """The interfaces that NCCL must use. A name that begins with `^` excludes one (NCCL user guide)."""
    value = next((one.value for one in variables if one.name == NCCL_INTERFACES and one.value), ())
    text = "".join(part if isinstance(part, str) else "^" for part in value)
    return [name for name in text.removeprefix("=").split(",") if name] if "^" not in text else []


def _paths(program: Program) -> list[str]:
    """The absolute paths among the arguments, such as the data's: the mounts of a node must answer."""
    words = (word for line in program.argument_lines for word in line)
    return [word[0] for word in words if len(word) == 1 and isinstance(word[0], str) and word[0].startswith("/")]
