"""Faults of the training: its processes, its code, its data, and what only looks like a fault."""

from __future__ import annotations

import json
from typing import Any

from tests.prove.row import Row, ended, unharmed
from tests.prove.scene import Scene

TORCH: dict[str, Any] = {"launcher": "torchrun"}
ONE: dict[str, Any] = {"nodes": 1, "processes_per_node": 2}
START: dict[str, Any] = {"fault-step": 0, "fault-rank": -1}
HANG: dict[str, Any] = {"hang": {"after": "12s", "busy_after": "90s"}}


def torch(**args: Any) -> dict[str, Any]:
    """The arguments of a training that meets by gloo."""
    return {"meet": "torch", **args}


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

CRASH = ("segfault_or_abort", "unknown")
CODE = ("user_code_error",)
STOP = ("STOP",)

ROWS = (
    Row(
        "sigkill",
        "SIGKILL to rank 1",
        CRASH,
        ("RETRY",),
        rank=1,
        node=1,
        job=TORCH,
        args=torch(fault="kill", **{"fault-rank": 1}),
    ),
    Row(
        "sigkill-srun",
        "SIGKILL to rank 1, started by srun",
        CRASH,
        ("RETRY",),
        rank=1,
        node=1,
        args={"fault": "kill", "fault-rank": 1},
        quick=True,
    ),
    Row(
        "segv",
        "a segmentation fault in rank 1",
        ("segfault_or_abort",),
        ("RETRY",),
        rank=1,
        node=1,
        job=TORCH,
        args=torch(fault="segv", **{"fault-rank": 1}),
    ),
    Row(
        "cuda-oom",
        "CUDA out of memory in rank 1",
        ("cuda_oom",),
        ("RETRY_CHANGED",),
        rank=1,
        node=1,
        loss="near",
        job=TORCH,
        args=torch(
            fault="cuda-oom",
            **{"fault-rank": 1, "fault-attempts": 9, "micro_batch_size": 4, "gradient_accumulation_steps": 1},
        ),
        note="PyTorch's message, without a GPU; the micro batch is halved, the global batch is unchanged",
    ),
    ended(
        "exception-one",
        "an exception in rank 1 while rank 0 waits in a collective",
        CODE,
        rank=1,
        node=1,
        job=TORCH,
        args=torch(fault="raise", **{"fault-rank": 1}),
    ),
    ended(
        "exception-all",
        "an exception in all ranks",
        CODE,
        job=TORCH,
        args=torch(fault="raise", **{"fault-rank": -1}),
    ),
    ended(
        "import",
        "a library that is not installed",
        ("import_error",),
        args={"fault": "import", **START},
        quick=True,
    ),
    ended("config", "an unknown configuration key", ("config_error",), args={"fault": "config", **START}),
    ended(
        "config-torn",
        "a configuration file that is not valid JSON",
        ("config_error", "data_error"),
        args={"fault": "config-torn", **START},
        note="Python's error message does not distinguish a configuration from data",
    ),
    ended("argument", "an unknown argument of the training", ("config_error",), args={"lerning-rate": 1}),
    ended("data", "a missing data file", ("data_error",), args={"fault": "data", **START}),
    Row(
        "hang-one",
        "rank 1 hangs while rank 0 waits in a collective",
        ("hang_no_progress",),
        ("RETRY",),
        rank=1,
        node=1,
        job={**TORCH, **HANG},
        args=torch(fault="hang", **{"fault-rank": 1, "patience": 600}),
    ),
    Row(
        "hang-all",
        "all ranks hang",
        ("hang_no_progress",),
        ("RETRY",),
        job={**TORCH, **HANG},
        args=torch(fault="hang", **{"fault-rank": -1, "patience": 600}),
    ),
    unharmed(
        "slow",
        "rank 1 is slow: each step takes seven times as long",
        job={**TORCH, **HANG},
        args=torch(fault="slow", **{"fault-rank": 1}),
    ),
    Row(
        "port",
        "the rendezvous port is in use",
        ("port_in_use",),
        ("RETRY_CHANGED",),
        job=ONE,
        args=torch(fault="port", **{"fault-step": 0}),
    ),
    Row(
        "rendezvous",
        "rank 1 never joins the rendezvous",
        ("rendezvous_failure",),
        ("RETRY",),
        args=torch(fault="never-joins", patience=12, **{"fault-step": 0, "fault-rank": 1}),
    ),
    ended(
        "swallowed",
        "an exception, but the training's script exits with 0",
        CODE,
        args={"fault": "swallowed"},
        after=says_so,
        quick=True,
    ),
    Row(
        "early-end",
        "the training exits with 0 before its last step, without a message",
        ("unknown", "user_code_error"),
        ("STOP", "RETRY"),
        after=says_so,
        args={"fault": "early-end", "fault-rank": -1, "fault-attempts": 9},
        state="FAILED",
        loss=None,
        note="one retry, because the first attempt made progress; the second did not",
    ),
    ended("nan", "the loss becomes NaN", ("loss_nan",), args={"fault": "nan"}, quick=True),
    unharmed(
        "warnings",
        "alarming warnings in the log of a successful run",
        args={"fault": "warnings"},
        note="",
        quick=True,
    ),
    ended(
        "slurm-words",
        "a program prints `Note: node ... is down` and ends with an exception",
        CODE,
        args={"fault": "slurm-words", "fault-rank": 1},
        rank=1,
        node=1,
        after=blames_no_node,
        quick=True,
    ),
    ended(
        "exit-silent",
        "rank 1 exits with code 3 without a message",
        CODE,
        args={"fault": "exit-3", "fault-rank": 1},
        rank=1,
        node=1,
        after=at_the_right_time,
    ),
    unharmed(
        "no-newline",
        "the last progress line has no newline",
        args={"fault": "no-newline", "every": 0},
        quick=True,
    ),
    ended(
        "interface",
        "GLOO_SOCKET_IFNAME names an interface that does not exist",
        ("config_error",),
        args=torch(fault="interface", **START),
        after=names_the_variable,
    ),
    Row(
        "left-over",
        "a rank is killed and leaves a process behind",
        CRASH,
        ("RETRY",),
        job=ONE,
        args={"fault": "leave-one-behind"},
        cluster=CGROUPS,
        after=no_left_over,
        note="proctrack/cgroup, task/cgroup",
    ),
    Row(
        "sigkill-cgroup",
        "SIGKILL to rank 1, with cgroups",
        CRASH,
        ("RETRY",),
        rank=1,
        job={**ONE, **TORCH},
        args=torch(fault="kill", **{"fault-rank": 1}),
        cluster=CGROUPS,
        note="proctrack/cgroup, task/cgroup",
    ),
    Row(
        "host-oom",
        "a rank uses more memory than the job has",
        ("host_oom",),
        ("RETRY_CHANGED",),
        rank=1,
        job={**ONE, "memory": "300M"},
        args={"fault": "host-oom", "fault-rank": 1},
        cluster=CGROUPS,
        note="killed by the kernel; proctrack/cgroup, task/cgroup",
    ),
)
