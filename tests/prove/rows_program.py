"""Faults of the training: its processes, its code, its data, and what only looks like a fault."""

from __future__ import annotations

import json
from typing import Any

from tests.prove.row import CRASH, ONE_NODE, RANK_1, Row, ended, fails, unharmed
from tests.prove.scene import Scene

TORCH: dict[str, Any] = {"launcher": "torchrun"}
HANG: dict[str, Any] = {**TORCH, "hang": {"after": "12s", "busy_after": "90s"}}


def meets(kind: str, rank: int = 1, **more: Any) -> dict[str, Any]:
    """Arguments of a training that meets by gloo, and of which a rank fails."""
    return fails(kind, rank=rank, meet="torch", **more)


def at_start(kind: str, **more: Any) -> dict[str, Any]:
    """Arguments of a training of which every rank fails before its first step."""
    return fails(kind, rank=-1, step=0, **more)


def says_so(scene: Scene) -> list[str]:
    """A run that ends as failed although its exit code is 0 names the step that is missing."""
    status = scene.status()
    return [] if "step" in (status["reason"] or "") else [f"the reason does not name the step: {status['reason']}"]


def blames_no_node(scene: Scene) -> list[str]:
    """No node entered node health."""
    listed = json.loads(scene.user.launch("nodes", "list", "--json").stdout)
    return [f"node health lists {listed}"] if listed else []


def at_the_right_time(scene: Scene) -> list[str]:
    """The time of the failure, where there is one, is the time at which the rank ended."""
    found = scene.why(1)["first_failure"]["time"]
    ended = next(line.time for line in scene.record() if line.what == "fault") + 5
    return [] if found is None or abs(found - ended) < 3 else [f"the failure is {found - ended:.0f} s off"]


def names_the_variable(scene: Scene) -> list[str]:
    advice = scene.why(1)["advice"]
    return [] if "GLOO_SOCKET_IFNAME" in advice and "NCCL" not in advice else [f"advice: {advice}"]


def no_left_over(scene: Scene) -> list[str]:
    """No process of the training is left on any node."""
    found = [
        f"{node}: {line}"
        for node in scene.cluster.nodes
        for line in scene.cluster.node_exec(node, ["pgrep", "-a", "-f", "left-over"]).stdout.splitlines()
        if "pgrep" not in line
    ]
    return [f"left over: {found}"] if found else []


CGROUPS = {
    "nodes": 1,
    "cgroups": True,
    "slurm_conf": ("PartitionName=grace Nodes=n1 MaxTime=01:00:00 PriorityTier=1 GraceTime=30",),
}
"""As most sites have it; and a partition whose jobs are warned before they are preempted."""
BY_CGROUPS = "proctrack/cgroup, task/cgroup"
CODE = ("user_code_error",)

ROWS = (
    Row("sigkill", "SIGKILL to rank 1", CRASH, **RANK_1, job=TORCH, args=meets("kill")),
    Row("sigkill-srun", "SIGKILL to rank 1, started by srun", CRASH, **RANK_1, args=fails("kill", rank=1), quick=True),
    Row("segv", "a segmentation fault in rank 1", CRASH[:1], **RANK_1, job=TORCH, args=meets("segv")),
    Row(
        "cuda-oom",
        "CUDA out of memory in rank 1",
        ("cuda_oom",),
        ("RETRY_CHANGED",),
        **RANK_1,
        loss="near",
        job=TORCH,
        args=meets("cuda-oom", **{"fault-attempts": 9, "micro_batch_size": 4, "gradient_accumulation_steps": 1}),
        note="PyTorch's message, without a GPU; the micro batch is halved, the global batch is unchanged",
    ),
    ended(
        "exception-one",
        "an exception in rank 1 while rank 0 waits in a collective",
        CODE,
        **RANK_1,
        job=TORCH,
        args=meets("exception"),
    ),
    ended("exception-all", "an exception in all ranks", CODE, job=TORCH, args=meets("exception", rank=-1)),
    ended("import", "a library that is not installed", ("import_error",), args=at_start("missing-library"), quick=True),
    ended("config", "an unknown configuration key", ("config_error",), args=at_start("config")),
    ended(
        "config-torn",
        "a configuration file that is not valid JSON",
        ("config_error", "data_error"),
        args=at_start("config-torn"),
        note="Python's error message does not distinguish a configuration from data",
    ),
    ended("argument", "an unknown argument of the training", ("config_error",), args={"lerning-rate": 1}),
    ended("data", "a missing data file", ("data_error",), args=at_start("data")),
    Row(
        "hang-one",
        "rank 1 hangs while rank 0 waits in a collective",
        ("hang_no_progress",),
        **RANK_1,
        job=HANG,
        args=meets("hang", patience=600),
    ),
    Row("hang-all", "all ranks hang", ("hang_no_progress",), job=HANG, args=meets("hang", rank=-1, patience=600)),
    unharmed("slow", "rank 1 is slow: each step takes seven times as long", job=HANG, args=meets("slow")),
    Row(
        "port",
        "the rendezvous port is in use",
        ("port_in_use",),
        ("RETRY_CHANGED",),
        job=ONE_NODE,
        args=meets("port", rank=0, step=0),
    ),
    Row(
        "rendezvous",
        "rank 1 never joins the rendezvous",
        ("rendezvous_failure",),
        args=meets("never-joins", step=0, patience=12),
    ),
    ended(
        "swallowed",
        "an exception, but the training's script exits with 0",
        CODE,
        args=fails("swallowed"),
        after=says_so,
        quick=True,
    ),
    ended(
        "early-end",
        "the training exits with 0 before its last step, without a message",
        ("unknown", "user_code_error"),
        verdicts=("STOP", "RETRY"),
        attempts=2,
        after=says_so,
        args=fails("early-end", rank=-1, **{"fault-attempts": 9}),
        note="one retry, because the first attempt made progress; the second did not",
    ),
    ended("nan", "the loss becomes NaN", ("loss_nan",), args=fails("nan"), quick=True),
    unharmed(
        "warnings", "alarming warnings in the log of a successful run", args=fails("warnings"), note="", quick=True
    ),
    ended(
        "slurm-words",
        "a program prints `Note: node ... is down` and ends with an exception",
        CODE,
        args=fails("slurm-words", rank=1),
        **RANK_1,
        after=blames_no_node,
        quick=True,
    ),
    ended(
        "exit-silent",
        "rank 1 exits with code 3 without a message",
        CODE,
        args=fails("exit-3", rank=1),
        **RANK_1,
        after=at_the_right_time,
    ),
    unharmed("no-newline", "the last progress line has no newline", args=fails("no-newline", every=0), quick=True),
    ended(
        "interface",
        "GLOO_SOCKET_IFNAME names an interface that does not exist",
        ("config_error",),
        args=at_start("interface", meet="torch"),
        after=names_the_variable,
    ),
    Row(
        "left-over",
        "a rank is killed and leaves a process behind",
        CRASH,
        job=ONE_NODE,
        args=fails("leave-one-behind"),
        cluster=CGROUPS,
        after=no_left_over,
        note=BY_CGROUPS,
    ),
    Row(
        "sigkill-cgroup",
        "SIGKILL to rank 1, with cgroups",
        CRASH,
        rank=1,
        job={**ONE_NODE, **TORCH},
        args=meets("kill"),
        cluster=CGROUPS,
        note=BY_CGROUPS,
    ),
    Row(
        "host-oom",
        "a rank uses more memory than the job has",
        ("host_oom",),
        ("RETRY_CHANGED",),
        rank=1,
        job={**ONE_NODE, "memory": "300M"},
        args=fails("host-oom", rank=1),
        cluster=CGROUPS,
        note=f"killed by the kernel; {BY_CGROUPS}",
    ),
)
