"""What `init`, `plan`, `explain`, `config` and `containers` print with `--json`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from docs.output_types.base import CheckpointInterval, Finding, Output, doc


class ScriptLine(Output):
    """A line of an sbatch script, or of a file that it starts."""

    line: Annotated[int, doc("counted from 1")]
    text: Annotated[str, doc("the line, without secrets")]
    outcome: Annotated[Literal["taken", "unnecessary", "not_understood"], doc("what became of it")]
    keys: Annotated[list[str], doc("where its content is in the job file or the site profile")]
    why: Annotated[str, doc("the reason, as text for people")]


class ComparedValue(Output):
    """A property of the old launch beside the planned one."""

    what: Annotated[str, doc("the property")]
    old: Annotated[str | None, doc("its value in the script; null if it has none")]
    new: Annotated[str | None, doc("its value in the plan; null if it has none")]
    status: Annotated[Literal["same", "different", "left out", "added"], doc("the result")]
    why: Annotated[str, doc("the reason of a difference, as text for people")]


class NewJob(Output):
    """A new job file. The fields that are only with `--from` describe the script."""

    job_file: Annotated[str | None, doc("the job file that was written; null if none was")]
    job: Annotated[str, doc("its text")]
    findings: Annotated[
        list[Finding],
        doc("errors and warnings of the job file, as of [validate](#validate); with errors, the exit code is 3"),
    ]
    site_file: Annotated[
        str | UnsetType | None, doc("only with `--from`: the site profile that was written; null if none was")
    ] = UNSET
    site: Annotated[str | UnsetType | None, doc("only with `--from`: its text; null if the site is known")] = UNSET
    remarks: Annotated[list[str] | UnsetType, doc("only with `--from`: remarks on the script as a whole")] = UNSET
    lines: Annotated[
        list[ScriptLine] | UnsetType, doc("only with `--from`: one object for each line that is not blank")
    ] = UNSET
    followed: Annotated[
        dict[str, list[ScriptLine]] | UnsetType,
        doc("only with `--from`: the same for local shell files that the launch line starts, by name"),
    ] = UNSET
    compare: Annotated[
        list[ComparedValue] | UnsetType | None,
        doc("only with `--from`: the old launch beside the planned one; null if the job has errors"),
    ] = UNSET
    same: Annotated[
        bool | UnsetType | None,
        doc("only with `--from`: whether nothing differs without a reason; null if the job has errors"),
    ] = UNSET


class Script(Output):
    """The script of a job."""

    script: Annotated[str, doc("its text")]


class Value(Output):
    """A value with its origin."""

    kind: Annotated[
        str,
        doc(
            "`job`: a key of the merged job; `site`: a key of the profile; `step`: a step of the site; `directive`: an "
            "`#SBATCH` option; `variable`: a variable of the script; `rule`: a step that sets up software; `file`: a "
            "value of the configuration that `strategy:` writes; `argument`: a flag from `parallel:`"
        ),
    ]
    key: Annotated[
        str,
        doc("dotted for `job`, with dashes for `directive`, with `$` for `variable`, `FILE:dotted.path` for `file`"),
    ]
    value: Annotated[str, doc("the value, as text")]
    layer: Annotated[str, doc("`default`, `site NAME`, `base NAME`, `user`, `job`, `--set` or `rule`")]
    file: Annotated[str | None, doc("where the value was set; null for a default or a rule")]
    line: Annotated[int | None, doc("its line")]
    note: Annotated[
        str | None, doc("the reason for a rule; for a site's value, a note on its source, and the site's reason")
    ]


class _Memory(Output):
    total: Annotated[float, doc("the sum, on the GPU that needs the most")]
    low: Annotated[float, doc("lower end of the range of `total`")]
    high: Annotated[float, doc("upper end of the range of `total`")]


class LayoutMemory(_Memory):
    """Memory per GPU of a layout, in GiB."""


class Memory(_Memory):
    """Memory per GPU, in GiB."""

    parameters: Annotated[float, doc("parameters")]
    gradients: Annotated[float, doc("gradients")]
    optimizer: Annotated[float, doc("state of the optimizer")]
    activations: Annotated[float, doc("activations")]
    logits: Annotated[float, doc("logits")]
    buffers: Annotated[float, doc("buffers of the framework")]
    context: Annotated[float, doc("CUDA context and NCCL")]
    fragmentation: Annotated[float, doc("lost to fragmentation")]
    available: Annotated[float | None, doc("what the GPU has")]


class ProcessGroup(Output):
    """A kind of group of processes."""

    kind: Annotated[Literal["tp", "cp", "dp", "pp", "etp", "ep", "edp"], doc("the kind")]
    size: Annotated[int, doc("processes in each group")]
    count: Annotated[int, doc("number of groups")]
    nodes: Annotated[int, doc("the most nodes that one group covers")]


class PlannedTime(Output):
    """Walltime of the whole training."""

    step_s: Annotated[float | None, doc("time of a step; null if the run says nothing of this job: see `unknown`")]
    low_s: Annotated[float | None, doc("lower end of its range, with a run; `step_s` if that had the same layout")]
    high_s: Annotated[float | None, doc("upper end")]
    source: Annotated[
        Literal["measured", "scaled", "estimated"],
        doc("`measured` by a run, `scaled` from one with another layout, or `estimated`, which is only rough"),
    ]
    run: Annotated[str | None, doc("the run that measured")]
    steps: Annotated[int | None, doc("steps of the whole training")]
    wall_s: Annotated[float | None, doc("walltime of these steps")]
    jobs: Annotated[int | None, doc("number of jobs for them")]
    job_limit_s: Annotated[float | None, doc("time limit of a job")]
    queue_limit_s: Annotated[float | None, doc("time limit of the queue")]
    checkpoint_interval: Annotated[CheckpointInterval | None, doc("as of [why](#why)")]
    warning_lead_s: Annotated[float | None, doc("how long before the time limit the training should be warned")]


class Balance(Output):
    """What Slurm reports of the account."""

    account: Annotated[str, doc("the account")]
    resource: Annotated[str, doc("the resource that is counted")]
    limit_h: Annotated[float, doc("its limit, in hours")]
    used_h: Annotated[float, doc("hours used")]


class _Batch(Output):
    tp: Annotated[int, doc("size of the tensor-parallel groups")]
    pp: Annotated[int, doc("size of the pipeline-parallel groups")]
    cp: Annotated[int, doc("size of the context-parallel groups")]
    ep: Annotated[int, doc("size of the expert-parallel groups")]
    dp: Annotated[int, doc("size of the data-parallel groups")]
    micro_batch_size: Annotated[int | None, doc("micro batch; null if the program chooses it")]
    global_batch_size: Annotated[int | None, doc("global batch; null if the program chooses it")]
    gradient_accumulation_steps: Annotated[int | None, doc("micro batches of a step; null if the program chooses it")]


class Plan(_Batch):
    """The plan of a job. A value that is not known is null."""

    world_size: Annotated[int, doc("number of processes")]
    parameters: Annotated[int | None, doc("parameters of the model")]
    active_parameters: Annotated[int | None, doc("the same, with only the experts that a token uses")]
    memory_gib: Annotated[Memory | None, doc("memory on the GPU that needs the most")]
    groups: Annotated[list[ProcessGroup], doc("the groups that the processes form")]
    gpus: Annotated[int | None, doc("GPUs that the job holds")]
    time: Annotated[PlannedTime | None, doc("walltime")]
    gpu_hours: Annotated[float | None, doc("of the whole training")]
    job_gpu_hours: Annotated[float | None, doc("at most, of one job")]
    balance: Annotated[Balance | None, doc("budget of the account, where Slurm reports it")]
    unknown: Annotated[
        dict[str, str],
        doc("why `batch`, `model`, `memory` or `time` is not known, and what to set; empty if all are"),
    ]
    assumed: Annotated[list[str], doc("what the estimate assumes, as text for people")]
    findings: Annotated[list[Finding], doc("as of [validate](#validate)")]


class Layout(_Batch):
    """A layout."""

    vpp: Annotated[int | None, doc("pipeline stages of each process; null without interleaving")]
    stage_layers: Annotated[list[int], doc("layers of each pipeline stage")]
    sharding: Annotated[str, doc("what is sharded: a strategy's name, or `none`")]
    offload_optimizer: Annotated[bool, doc("whether the optimizer is in host memory")]
    offload_parameters: Annotated[bool, doc("whether the parameters are in host memory too")]
    recompute: Annotated[str, doc("which activations are recomputed, or `none`")]
    memory_gib: Annotated[LayoutMemory, doc("memory on the GPU that needs the most")]
    job_file: Annotated[dict[str, Any], doc("`parallel:` and `strategy:` of a job file with this layout")]
    relative_time: Annotated[float, doc("time of a step, relative to the fastest layout")]
    step_s: Annotated[float | None, doc("time of a step, if `calibrated_by` names a run")]


class Layouts(Output):
    """What `plan --search` found."""

    layouts: Annotated[list[Layout], doc("layouts that fit, the fastest first")]
    recommended: Annotated[int | None, doc("the recommended row, from 1")]
    allowed: Annotated[int, doc("number of layouts that break no rule, whether they fit or not")]
    calibrated_by: Annotated[str | None, doc("the run that the times come from")]


class StartedNode(Output):
    """A node on which to start the script."""

    host: Annotated[str, doc("its name")]
    node_rank: Annotated[int, doc("its rank, from 0")]
    slots: Annotated[int, doc("its number of processes")]
    command: Annotated[str, doc("the command to run there")]


class ByHand(Output):
    """How to start a plan by hand."""

    master_addr: Annotated[str, doc("address of the rendezvous")]
    master_port: Annotated[int, doc("port of the rendezvous")]
    nodes: Annotated[list[StartedNode], doc("where to start the script")]
    hostfile: Annotated[str, doc("the host file in DeepSpeed's format")]
    include: Annotated[str | None, doc("the filter for it, as for DeepSpeed's `--include`; null if it needs none")]
    script: Annotated[str, doc("the script")]


class TestMessage(Output):
    """What became of a test message."""

    channel: Annotated[Literal["webhook", "command"], doc("who gets it")]
    state: Annotated[
        Literal["sent", "failed", "unknown"], doc("`unknown`: it may have arrived, but there was no answer in time")
    ]
    why: Annotated[str | None, doc("why it was not sent, as text for people; null if it was")]


class ImageFile(Output):
    """An image, as in the record `FILE.sif.json`."""

    path: Annotated[str, doc("the image file")]
    new: Annotated[bool, doc("false if it already existed")]
    digest: Annotated[str, doc("its digest, `sha256:HEX`")]
    size: Annotated[int, doc("bytes")]
    source: Annotated[str, doc("the recipe or the URI")]
    kind: Annotated[Literal["recipe", "uri"], doc("what `source` is")]
    made: Annotated[str, doc("when it was made, as text")]
    architecture: Annotated[str | None, doc("architecture of its CPUs")]
    recipe_digest: Annotated[str | None, doc("digest of the recipe and its arguments")]
    by: Annotated[str, doc("the program that made it")]
    versions: Annotated[dict[str, str], doc("versions found inside, by name")]


class ImageCheck(Output):
    """A check of an image."""

    name: Annotated[
        str,
        doc(
            "the check: `job`, `image`, `architecture`, `binds`, `inside`, `python`, `bash`, `torch`, `nccl`, "
            "`driver`, `imports`, `fabric`, `writable`"
        ),
    ]
    level: Annotated[
        Literal["ok", "warn", "fail", "skip"], doc("`fail`: the exit code is 3; `skip`: the check was not possible")
    ]
    message: Annotated[str, doc("what was found, as text for people")]
    hint: Annotated[str | None, doc("what to do, as text for people")]
