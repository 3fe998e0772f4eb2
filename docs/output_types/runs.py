"""What `submit`, `cancel`, `status`, `list` and `why` print with `--json`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, UnsetType, field

from docs.output_types.base import CheckpointInterval, Evidence, Output, Verdict, doc

State = Literal[
    "SUBMITTING", "PENDING", "STUCK", "STARTING", "RUNNING", "ENDING", "RETRYING",
    "COMPLETED", "FAILED", "STOPPED", "CANCELLED", "UNKNOWN",
]  # fmt: skip
Source = Literal["end_record", "squeue", "sacct", "scontrol", "local", "ssh", "scheduler", "none"]


class Submitted(Output):
    """A submission. With `--dry-run`, only `script` is not null, and of a sweep also `points` and `values`."""

    run: Annotated[str | None, doc("the run's full name, for the other verbs")]
    job_id: Annotated[str | None, doc("the scheduler's job id; of a sweep, that of the first job array")]
    script: Annotated[
        str | None,
        doc(
            "path of the script that was submitted, or written by `--dry-run`; null of a pipeline, and of a sweep "
            "without a job array"
        ),
    ]
    folder: Annotated[str | None, doc("the run folder")]
    jobs: Annotated[
        list[str] | UnsetType,
        doc("only of a [sweep](how-to/sweeps.md): the ids of all arrays and jobs that were submitted"),
    ] = UNSET
    points: Annotated[int | UnsetType, doc("only of a sweep: its number of points")] = UNSET
    left: Annotated[int | UnsetType, doc("only of a sweep: number of points that wait for room in the queue")] = UNSET
    values: Annotated[
        list[dict[str, str]] | UnsetType,
        doc("only of a sweep with `--dry-run`: for each point, from number 0, its values as texts by key"),
    ] = UNSET
    stages: Annotated[
        dict[str, State | None] | UnsetType,
        doc("only of a [pipeline](how-to/pipelines.md): the states of its stages; null with `--dry-run`"),
    ] = UNSET


class StartEstimate(Output):
    """The answer of `submit --test-only`."""

    estimate: Annotated[str, doc("when and where the job would start, in the words of the scheduler")]


class Cancelled(Output):
    """A run that was to be cancelled."""

    run: Annotated[str, doc("the run's full name")]
    message: Annotated[str, doc("the outcome, as text for people")]


class Pruned(Output):
    """A run that is over, or what an interrupted deletion left, and what of it is deleted."""

    run: Annotated[str, doc("the run's full name")]
    state: Annotated[str | None, doc("its state; null for the rest of an interrupted deletion")]
    folder: Annotated[str, doc("its folder")]
    ended: Annotated[float | None, doc("when its last attempt ended, in seconds since the epoch; null if unknown")]
    code: Annotated[int, doc("bytes on disk of the copies of its code")]
    logs: Annotated[int, doc("the same of logs, records and all else")]
    checkpoints: Annotated[int, doc("the same of the checkpoints in its folder")]
    deletes: Annotated[list[str], doc("what may be deleted: its folder, or checkpoints in it")]
    frees: Annotated[int, doc("bytes that this frees; files with several hard links count as nothing")]
    kept: Annotated[str | None, doc("why the run is not deleted; null if it is")]
    deleted: Annotated[bool, doc("whether it is done: with `--yes`, unless an error prevented it")]


class Attempt(Output):
    """An attempt of a run."""

    number: Annotated[int, doc("counted from 1")]
    job_id: Annotated[str | None, doc("the same for several attempts if Slurm requeued the job")]
    state: Annotated[
        str,
        doc("Slurm's job state; `SUBMITTING` before there is a job id, `VOID` if no job was ever submitted"),
    ]
    exit_code: Annotated[int | None, doc("exit code of the script")]
    nodes: Annotated[list[str], doc("host names")]
    submitted: Annotated[float | None, doc("when it was submitted")]
    started: Annotated[float | None, doc("when it started")]
    ended: Annotated[float | None, doc("when it ended")]
    failure_class: Annotated[
        str | None, doc("[failure class](reference/failures.md); null until a monitor has decided")
    ] = field(name="class")
    verdict: Annotated[
        Verdict | None,
        doc(
            "[what follows](how-to/recovery.md#the-verdict); null until a monitor has decided. Your own run is ENDING "
            "until then; another user's run may be FAILED and continue while the `verdict` of its last attempt is null"
        ),
    ]
    evidence: Annotated[list[Evidence], doc("lines that support the diagnosis")]
    overrides: Annotated[
        dict[str, list[str]],
        doc(
            "differences from the job file: `set` and `exclude`, given by a person or decided by a monitor; `ledger`: "
            "nodes excluded because other runs reported them"
        ),
    ]


class Role(Output):
    """A role of a job, or one replica of it."""

    name: Annotated[str, doc("its name; a replica is NAME.K")]
    state: Annotated[
        Literal["waiting", "starting", "ready", "ended"], doc("`waiting` for other roles, `starting` until it is ready")
    ]
    since: Annotated[float, doc("since when, in seconds since 1970")]
    started: Annotated[float | None, doc("when it first started")]
    first_ready: Annotated[float | None, doc("when it was ready for the first time")]
    ready_since: Annotated[float | None, doc("when it became ready the last time")]
    restarts: Annotated[int, doc("how often it was started again")]
    exit_code: Annotated[int | None, doc("how it ended")]
    ends_job: Annotated[bool, doc("whether the job is done when it is")]
    waits_for: Annotated[str | None, doc("while it starts: what it answers to the question whether it is ready")]
    failed: Annotated[bool, doc("whether it failed first, and so ended the job")]
    nodes: Annotated[list[str], doc("its nodes")]
    host: Annotated[str, doc("the host of its address")]
    port: Annotated[int, doc("its own port")]
    url: Annotated[str, doc("both as a URL")]
    ports: Annotated[dict[str, int], doc("its other ports by their names")]


class Progress(Output):
    """Values that the regular expressions in `progress:` of the job file matched in the log."""

    step: Annotated[int | None, doc("the newest step; of a sweep, the number of points that completed")]
    total: Annotated[int | None, doc("the last step of the training; of a sweep, its number of points")]
    loss: Annotated[float | None, doc("the newest loss")]
    rate: Annotated[float | None, doc("steps per second, since the first step")]
    eta_s: Annotated[float | None, doc("remaining time at this rate")]


class Successor(Output):
    """The run's next job."""

    job_id: Annotated[str, doc("its job id")]
    state: Annotated[str, doc("Slurm's job state")]


class Efficiency(Output):
    """What a job used of what it requested, by the samples of its watchers. Memory in GiB, times in seconds."""

    gpu_use: Annotated[float | None, doc("mean use of the GPUs, from 0 to 1")]
    gpus: Annotated[int, doc("the GPUs with samples")]
    idle_gpus: Annotated[int, doc("those that were idle in all samples")]
    memory: Annotated[float | None, doc("of the processes, on the node with the most")]
    memory_requested: Annotated[float | None, doc("per node")]
    cpus: Annotated[float | None, doc("CPUs in use, on all nodes")]
    cpus_requested: Annotated[int | None, doc("on all nodes with samples")]
    time: Annotated[float | None, doc("how long the job ran, once it ended")]
    time_requested: Annotated[int | None, doc("its time limit")]
    completed: Annotated[bool, doc("whether the run completed")]
    cause: Annotated[str, doc("what slows the training down, and what to do; empty if nothing shows it")]
    advice: Annotated[str, doc("what to change; empty if nothing measured supports a recommendation")]


class Time(Output):
    """Seconds by [category](how-to/goodput.md). They add up to the wall time."""

    queued: Annotated[float, doc("waiting in the queue")]
    starting: Annotated[float, doc("from the start of a job to the first step")]
    training: Annotated[float, doc("productive training")]
    repeated: Annotated[float, doc("steps that an earlier attempt had made")]
    checkpointing: Annotated[float, doc("while the training waited for a checkpoint")]
    stalled: Annotated[float, doc("without progress")]
    detecting: Annotated[float, doc("from a failure to the end of the attempt")]
    restarting: Annotated[float, doc("from the end of an attempt to the next one")]
    ending: Annotated[float, doc("from the last step to the end of the job")]


_StartingPhases = Annotated[
    dict[str, float] | UnsetType, doc("only of one run: the seconds of `starting` by phase, as far as known")
]


class ListedRun(Output):
    """A run as `list` shows it."""

    run: Annotated[str, doc("the run's full name")]
    name: Annotated[str, doc("the job's name")]
    site: Annotated[str, doc("the site")]
    state: Annotated[State, doc("[what they mean](explanation/states.md)")]
    reason: Annotated[str | None, doc("the reason, as text for people; its wording may change")]
    job_id: Annotated[str | None, doc("job id of the newest attempt")]
    state_source: Annotated[
        Source,
        doc(
            "where the state comes from; `local` is the scheduler of `--site local`, `ssh` the first host of a site "
            "without Slurm, `scheduler` one of [another package](how-to/plugins.md)"
        ),
    ]
    state_age_s: Annotated[float | None, doc("age of the source's information")]
    progress: Annotated[Progress, doc("the training's progress")]
    roles: Annotated[
        list[Role] | UnsetType,
        doc("only of a job with [roles](how-to/roles.md): what each role of the newest attempt does"),
    ] = UNSET
    hosts: Annotated[
        list[str] | UnsetType,
        doc("only while a run on a site without Slurm is active: the hosts of its newest attempt, with its spares"),
    ] = UNSET
    successor: Annotated[
        Successor | UnsetType,
        doc(
            "only while the run's next job waits for the end of the newest one "
            "([recovery](explanation/recovery-in-detail.md#the-successor))"
        ),
    ] = UNSET
    phase: Annotated[
        str | UnsetType | None,
        doc(
            "only while the run starts: `node_check`, `staging`, `roles`, `start`, `container_start`, "
            "`imports`, `rendezvous`, `first_collective` or `first_step` "
            "([what they mean](explanation/states.md#the-phases-of-a-start))"
        ),
    ] = UNSET
    waiting_for: Annotated[
        list[str] | UnsetType, doc("only while the run starts: the nodes that the others wait for")
    ] = UNSET
    time: Annotated[Time | UnsetType, doc("only of one run, and with `list --goodput`: where its time went")] = UNSET
    starting_phases: _StartingPhases = UNSET
    cluster: Annotated[
        str | UnsetType, doc("only in `list`: the cluster that has the run, if it was set up with `clusters add`")
    ] = UNSET
    as_of: Annotated[float | UnsetType, doc("only of a run on a cluster: when the cluster said so")] = UNSET
    problem: Annotated[str | UnsetType | None, doc("only of a run on a cluster: why it does not answer now")] = UNSET
    efficiency: Annotated[Efficiency | UnsetType, doc("only with `list --efficiency`")] = UNSET


class RunWithAttempts(ListedRun, kw_only=True):
    """A run as `status` shows it."""

    attempts: Annotated[list[Attempt], doc("all attempts, by number")]


class Curve(Output):
    """The progress of an attempt."""

    attempt: Annotated[int, doc("number of the attempt")]
    steps: Annotated[list[tuple[float, int]], doc("pairs of time, in seconds since 1970, and step")]
    losses: Annotated[list[tuple[int, float]], doc("pairs of step and loss")]


class Report(RunWithAttempts, kw_only=True):
    """What the page of `report` shows: the fields of a run, and these."""

    facts: Annotated[dict[str, str], doc("what ran, its speed and its cost, as text for people by name")]
    curves: Annotated[list[Curve], doc("at most 160 places of the log of each attempt")]


class LogLine(Output):
    """A line of output. `logs --json` prints an object on each line."""

    attempt: Annotated[int, doc("number of the attempt")]
    file: Annotated[str, doc("name of the log: `batch`, `node-0`, `node-0.rank-3`")]
    node: Annotated[int | None, doc("the node, from 0; null for the batch script")]
    rank: Annotated[int | None, doc("the rank, where the log or the line names it")]
    text: Annotated[str, doc("the line as the program wrote it")]


class Point(ListedRun, kw_only=True):
    """A point of a sweep: the fields of a run, and these."""

    point: Annotated[int, doc("number of the point, from 0")]
    values: Annotated[dict[str, str], doc("its values as texts by key")]
    metric: Annotated[float | None, doc("the value of the sweep's metric")]
    attempts: Annotated[int, doc("number of its attempts")]


class SweepStatus(ListedRun, kw_only=True):
    """A sweep: the fields of a run, and these."""

    counts: Annotated[dict[State, int], doc("number of points by state")]
    goal: Annotated[Literal["min", "max"], doc("which metric is the best")]
    best: Annotated[Point | None, doc("the point with the best metric; null while none has one")]
    points: Annotated[list[Point], doc("all points")]


class StageRun(ListedRun, kw_only=True):
    """A run of a stage, or a sweep: the fields of a run, and these."""

    attempts: Annotated[int, doc("number of attempts")]


class Stage(Output):
    """A stage of a pipeline."""

    stage: Annotated[str, doc("its name")]
    after: Annotated[dict[str, Literal["ok", "any", "not-ok"]], doc("the stages that it waits for, with the condition")]
    on: Annotated[str | None, doc("the stage for whose checkpoints it runs")]
    each: Annotated[str | None, doc("the sweep for whose points it runs")]
    state: Annotated[State, doc("PENDING while it waits for others")]
    reason: Annotated[str | None, doc("why it waits, or cannot run; of several runs, how many are in which state")]
    needed: Annotated[bool, doc("false for a stage that is for another outcome of those before it")]
    runs: Annotated[list[StageRun], doc("its runs, or the sweep that it is")]


class PipelineStatus(ListedRun, kw_only=True):
    """A pipeline: the fields of a run, and its stages. Its progress is the number of stages that completed."""

    stages: Annotated[list[Stage], doc("all stages")]


class FirstFailure(Output):
    """Who failed first."""

    node: Annotated[str | None, doc("the node, if the evidence names it")]
    rank: Annotated[int | None, doc("the rank, if the evidence names it")]
    time: Annotated[float | None, doc("when")]
    role: Annotated[str | UnsetType, doc("only of a job with [roles](how-to/roles.md): the role")] = UNSET
    exit_code: Annotated[int | UnsetType, doc("only of a job with roles: the exit code of the role")] = UNSET


class Remark(Output):
    """Something that may make a run slow."""

    kind: Annotated[str, doc("one of the [kinds](how-to/watching.md#when-a-training-is-slow)")]
    node: Annotated[str | None, doc("the node on which it was seen")]
    rank: Annotated[int | None, doc("the rank at which it was seen")]
    text: Annotated[str, doc("what was seen, as text for people")]
    advice: Annotated[str, doc("what to do, as text for people")]
    evidence: Annotated[list[Evidence], doc("lines that support it")]


class Why(Output):
    """What ended a run, or the job that wrote the logs."""

    level: Annotated[
        Literal["scheduler", "infrastructure", "workload", "unknown"], doc("who can do something about it")
    ]
    failure_class: Annotated[
        str, doc("[class](reference/failures.md) of the root cause; `unknown` for an unfinished run")
    ] = field(name="class")
    cause: Annotated[str | None, doc("the specific [cause](reference/failures.md); null for a success")]
    verdict: Annotated[
        Verdict,
        doc(
            "the default for the class, `NONE` for a success. What a run does also depends on its history and its "
            "`retry:` settings"
        ),
    ]
    confidence: Annotated[Literal["high", "medium", "low"], doc("how sure the class is")]
    first_failure: Annotated[FirstFailure, doc("the first node and rank to fail")]
    evidence: Annotated[list[Evidence], doc("log lines and other sources")]
    also: Annotated[list[str], doc("other observations, and the `remarks`, as text for people")]
    advice: Annotated[str | None, doc("the next step, as text for people")]
    time: Annotated[Time | UnsetType, doc("only of a run: where its time went")] = UNSET
    starting_phases: _StartingPhases = UNSET
    checkpoint_interval: Annotated[
        CheckpointInterval | UnsetType | None,
        doc("only of a run; null where no checkpoint was measured or no failure was seen"),
    ] = UNSET
    start: Annotated[
        str | UnsetType | None,
        doc(
            "only of a run that ended before its first step: the [phase of its start]"
            "(explanation/states.md#the-phases-of-a-start) and the nodes that were missing, as text for people"
        ),
    ] = UNSET
    state: Annotated[
        State | UnsetType | None,
        doc("only of a run that is unfinished or succeeded: its state; null once it has finished"),
    ] = UNSET
    remarks: Annotated[
        list[Remark] | UnsetType, doc("only of a run that is unfinished or succeeded: what may make it slow")
    ] = UNSET


class StackFrame(Output):
    """A call."""

    file: Annotated[str, doc("the source file")]
    line: Annotated[int, doc("the line in it")]
    call: Annotated[str, doc("the function")]


class RankGroup(Output):
    """Ranks that are at the same place."""

    ranks: Annotated[list[int], doc("their numbers")]
    hosts: Annotated[list[str], doc("their nodes, by host name")]
    others_wait: Annotated[bool, doc("whether the other ranks wait for these")]
    state: Annotated[str, doc("state of the first rank's process (proc(5)): `R` runs, `S` sleeps, `T` is stopped")]
    waits_in: Annotated[str, doc("the kernel function that it waits in; `running` if it does not")]
    frames: Annotated[list[StackFrame], doc("calls of its main thread, the innermost first; empty if unknown")]


class Stacks(Output):
    """Where the ranks of a run are."""

    run: Annotated[str, doc("the run's full name")]
    attempt: Annotated[int, doc("the attempt's number")]
    groups: Annotated[
        list[RankGroup], doc("ranks that the others wait for come first, then those that differ from most")
    ]
    not_seen: Annotated[list[str], doc("which nodes gave no answer, and why, as text for people")]
