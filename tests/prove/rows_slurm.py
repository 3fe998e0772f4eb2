"""What Slurm and its people do to a job: limits, preemption, cancels, holds, refusals, and daemons that are away."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.cluster.faults import wait_until
from tests.prove.row import Row, ended, unharmed
from tests.prove.rows_program import CGROUPS
from tests.prove.scene import Scene

ONCE: dict[str, Any] = {"attempts": 1, "loss": None}
REFUSED: dict[str, Any] = {"state": "STOPPED", "exit_code": 4, **ONCE}
LIMIT: dict[str, Any] = {"queue": "short", "time": "00:01:00"}
UNLIMITED = (("limits: [{nodes: 1-4, time: 1:00:00}]", "limits: []"),)
ENFORCED: dict[str, Any] = {
    "nodes": 1,
    "slurm_conf": ("AccountingStorageEnforce=associations", "EnforcePartLimits=ALL"),
}
LOW = (("partition: gpu\n", "partition: low\n"),)


def preempt(scene: Scene) -> None:
    """Somebody with a higher partition needs all nodes for a moment."""
    scene.happens()
    words = ["sbatch", "--partition=high", f"--nodes={len(scene.cluster.nodes)}", "--exclusive", "--output=/dev/null"]
    scene.cluster.run([*words, "--wrap", "sleep 3"], user="bob", check=True)


def scancel(scene: Scene) -> None:
    scene.happens()
    scene.cluster.run(["scancel", scene.run["job_id"]], check=True)


def scancel_by_root(scene: Scene) -> None:
    scene.happens()
    scene.root("scancel", scene.run["job_id"])


def kill_batch_shell_by_root(scene: Scene) -> None:
    scene.happens()
    scene.root("scancel", "--signal=KILL", "--batch", scene.run["job_id"])


def kill_batch_shell(scene: Scene) -> None:
    scene.happens()
    node = scene.node(0)
    listed = f"scontrol listpids {scene.run['job_id']} | awk '$3 == \"batch\" {{print $1}}'"
    scene.cluster.node_exec(node, ["sh", "-c", f"kill -9 $({listed})"])


def scancel_step(scene: Scene) -> None:
    scene.happens()
    scene.cluster.run(["scancel", f"{scene.run['job_id']}.0"], check=True)


def suspend_and_resume(scene: Scene) -> None:
    scene.happens()
    scene.root("scontrol", "suspend", scene.run["job_id"])
    wait_until(lambda: "suspended" in (scene.status()["reason"] or ""), explain=scene.told, every=1)
    time.sleep(8)
    scene.root("scontrol", "resume", scene.run["job_id"])


def requeue_by_root(scene: Scene) -> None:
    scene.happens()
    scene.root("scontrol", "update", f"jobid={scene.run['job_id']}", "requeue=1")
    scene.root("scontrol", "requeue", scene.run["job_id"])


def hold_and_release(scene: Scene) -> None:
    """A job that is held is stuck and says so, until the person who held it lets it go."""
    scene.left["held"] = scene.user.until(scene.run["run"], "STUCK")
    time.sleep(2)
    scene.happens()
    scene.cluster.run(["scontrol", "release", scene.run["job_id"]], check=True)


def was_held(scene: Scene) -> list[str]:
    reason = (scene.left.get("held") or {}).get("reason") or ""
    return [] if "release" in reason else [f"held, and the reason does not say how to go on: {reason}"]


def controller_away(scene: Scene) -> None:
    scene.happens()
    scene.cluster.stop_controller(kill=True)
    time.sleep(40)
    scene.cluster.start_controller()


def controller_gone(scene: Scene) -> None:
    scene.cluster.stop_controller(kill=True)


def controller_back(scene: Scene) -> None:
    scene.cluster.start_controller()


def controller_gone_for_a_while(scene: Scene) -> None:
    """The controller comes back while `submit` waits for it."""
    controller_gone(scene)
    threading.Timer(45, controller_back, [scene]).start()


def controller_restarts(scene: Scene) -> None:
    scene.cluster.stop_controller()
    scene.cluster.start_controller()


def cancel_without_controller(scene: Scene) -> None:
    scene.happens()
    controller_gone(scene)
    scene.left["cancel"] = scene.user.launch("cancel", scene.run["run"])
    controller_back(scene)


def was_remembered(scene: Scene) -> list[str]:
    done = scene.left["cancel"]
    said = "the request is on record" in done.stderr
    return [] if (done.returncode, said) == (4, True) else [f"`cancel` ended with {done.returncode}: {done.stderr}"]


def says_why(scene: Scene) -> list[str]:
    reason = scene.status()["reason"] or ""
    return [] if "contact" in reason or "timed out" in reason else [f"the cause is not in the reason: {reason}"]


def partition_down(scene: Scene) -> None:
    scene.root("scontrol", "update", "partition=gpu", "state=down")


def partition_up(scene: Scene) -> None:
    scene.user.until(scene.run["run"], "PENDING", "STUCK")
    time.sleep(5)
    scene.root("scontrol", "update", "partition=gpu", "state=up")


def shorten_limit(scene: Scene) -> None:
    scene.happens()
    scene.root("scontrol", "update", f"jobid={scene.run['job_id']}", "timelimit=1")


def cancel_retry(scene: Scene) -> None:
    wait_until(lambda: len(scene.status()["attempts"]) == 2, explain=scene.told)
    scene.user.launch("cancel", scene.run["run"])


def accounting_away(scene: Scene) -> None:
    scene.cluster.stop_accounting(kill=True)


def same_job(scene: Scene) -> list[str]:
    """Slurm's own requeue was adopted: no second job was submitted."""
    ids = {one["job_id"] for one in scene.status()["attempts"]}
    return [] if ids == {scene.run["job_id"]} else [f"jobs {sorted(ids)} where one was enough"]


def hint(scene: Scene) -> list[str]:
    wait_until(lambda: scene.cluster.jobs() == [])
    return []


ROWS = (
    Row(
        "limit",
        "the time limit, with a checkpoint, without a warning",
        ("time_limit",),
        ("CONTINUE",),
        job=LIMIT,
        args={"pause": 8},
        at=1,
        seconds=240,
    ),
    Row(
        "limit-warned",
        "the time limit, with a warning that the training handles",
        ("time_limit",),
        ("CONTINUE",),
        at=1,
        seconds=240,
        job={**LIMIT, "checkpoint": {"signal_before": "25s"}},
        args={"pause": 8, "listen": True, "every": 100},
        attempts=(2, 3, 4),
        note="Slurm warns up to a minute early, so the steps of an attempt differ",
    ),
    Row(
        "limit-no-checkpoint",
        "the time limit, without any checkpoint",
        ("time_limit",),
        ("CONTINUE",),
        job=LIMIT,
        at=1,
        seconds=300,
        args={"pause": 8, "every": 0},
        attempts=2,
        state="FAILED",
        loss=None,
        note="the second attempt makes no progress, so the run stops",
    ),
    Row(
        "preempted",
        "preemption by a job in a higher-priority partition",
        ("preempted",),
        ("CONTINUE",),
        act=preempt,
        profile=LOW,
        cluster={"nodes": 2},
    ),
    Row(
        "preempted-cgroup",
        "preemption by a job in a higher-priority partition, after a grace time",
        ("preempted",),
        ("CONTINUE",),
        job={"nodes": 1, "processes_per_node": 2, "checkpoint": {"signal_before": "25s"}},
        args={"pause": 1, "listen": True, "every": 100},
        act=preempt,
        profile=(("partition: gpu\n", "partition: grace\n"),),
        cluster=CGROUPS,
        note="the steps are warned by SIGTERM; the training saves and exits by itself; proctrack/cgroup, task/cgroup",
    ),
    ended(
        "scancel",
        "the user cancels the job with scancel",
        ("cancelled_by_user",),
        act=scancel,
        state="CANCELLED",
        quick=True,
    ),
    ended(
        "scancel-root",
        "an administrator cancels the job",
        ("cancelled_by_user",),
        act=scancel_by_root,
        state="CANCELLED",
    ),
    Row(
        "batch-signal",
        "an administrator kills the batch shell with scancel --signal=KILL --batch",
        ("segfault_or_abort",),
        ("RETRY",),
        act=kill_batch_shell_by_root,
    ),
    Row(
        "batch-killed",
        "the batch shell is killed with kill -9",
        ("segfault_or_abort",),
        ("RETRY",),
        act=kill_batch_shell,
    ),
    Row(
        "forgotten",
        "the batch shell is killed, and Slurm forgets the job",
        ("node_failure", "segfault_or_abort"),
        ("RETRY",),
        job={"retry": {"lost_after": "20s"}},
        act=kill_batch_shell,
        cluster={"nodes": 2, "accounting": False, "min_job_age": 2},
        seconds=240,
        note="no slurmdbd, MinJobAge 2 s",
    ),
    ended(
        "scancel-step",
        "the user cancels the step with scancel JOB.0",
        ("cancelled_by_user",),
        act=scancel_step,
        state="FAILED",
    ),
    unharmed(
        "suspended",
        "an administrator suspends the job, then resumes it",
        act=suspend_and_resume,
        cluster={"nodes": 2},
    ),
    Row(
        "requeue-root",
        "an administrator requeues the job",
        ("preempted", "unknown"),
        ("",),
        act=requeue_by_root,
        cluster={"nodes": 2},
        after=same_job,
        seconds=200,
        note="no verdict is needed: Slurm itself requeues the job, with the same id",
    ),
    unharmed(
        "held",
        "the job is held, then released",
        job={"sbatch": {"hold": True}},
        act=hold_and_release,
        at=0,
        after=was_held,
        note="STUCK while it is held",
    ),
    unharmed(
        "controller",
        "slurmctld is killed and down for 40 s",
        act=controller_away,
        args={"pause": 1.5},
        cluster={"nodes": 2},
        note="no failure; the job ends while the controller is down",
    ),
    Row(
        "controller-kill",
        "a rank is killed while slurmctld is down for 40 s",
        ("segfault_or_abort", "unknown"),
        ("RETRY",),
        act=controller_away,
        args={"pause": 1.5, "fault": "kill", "fault-rank": 1, "fault-step": 12},
        rank=1,
        node=1,
        cluster={"nodes": 2},
    ),
    unharmed(
        "controller-restart",
        "slurmctld is restarted",
        act=controller_restarts,
        args={"pause": 1},
        cluster={"nodes": 2},
    ),
    Row(
        "controller-submit",
        "slurmctld is down at submission",
        ("unknown",),
        ("",),
        before=controller_gone,
        act=controller_back,
        at=0,
        after=says_why,
        state="STOPPED",
        exit_code=4,
        cluster={"nodes": 2},
        note="nothing was submitted; the reason names the cause",
        **ONCE,
    ),
    unharmed(
        "controller-submit-wait",
        "slurmctld is down for 45 s at submission with --wait",
        before=controller_gone_for_a_while,
        options=("--wait",),
        cluster={"nodes": 2},
        note="no failure; `submit --wait` submits once the controller answers",
    ),
    ended(
        "controller-cancel",
        "the user cancels the run while slurmctld is down",
        ("cancelled_by_user",),
        act=cancel_without_controller,
        after=was_remembered,
        args={"pause": 8},
        at=1,
        state="CANCELLED",
        cluster={"nodes": 2},
        note="the next driver cancels the job",
    ),
    unharmed(
        "partition-down",
        "the partition is down while the job is pending, then up",
        before=partition_down,
        act=partition_up,
        at=0,
        cluster={"nodes": 2},
    ),
    Row(
        "limit-shortened",
        "an administrator shortens the time limit of the running job",
        ("time_limit",),
        ("CONTINUE",),
        act=shorten_limit,
        args={"pause": 8},
        at=1,
        seconds=300,
        cluster={"nodes": 2},
    ),
    Row(
        "retry-cancelled",
        "the user cancels the next attempt while it is pending",
        ("segfault_or_abort", "unknown"),
        ("RETRY",),
        act=cancel_retry,
        at=0,
        job={"retry": {"backoff": "5m", "in_allocation": "off"}},
        args={"fault": "kill", "fault-rank": 1},
        state="CANCELLED",
        loss=None,
    ),
    Row(
        "slurmdbd",
        "slurmdbd is down while a rank is killed",
        ("segfault_or_abort", "unknown"),
        ("RETRY",),
        before=accounting_away,
        args={"fault": "kill", "fault-rank": 1},
        rank=1,
        node=1,
        cluster={"nodes": 2},
    ),
    Row(
        "refused-account",
        "an account that does not exist",
        ("submit_rejected",),
        ("STOP",),
        job={"account": "nobody", "nodes": 1},
        cluster=ENFORCED,
        **REFUSED,
    ),
    Row(
        "refused-time",
        "more time than the partition allows",
        ("submit_rejected",),
        ("STOP",),
        job={"time": "05:00:00", "nodes": 1},
        profile=UNLIMITED,
        cluster=ENFORCED,
        **REFUSED,
    ),
    Row(
        "refused-nodes",
        "more nodes than the cluster has",
        ("submit_rejected",),
        ("STOP",),
        job={"nodes": 9},
        profile=UNLIMITED,
        cluster=ENFORCED,
        **REFUSED,
    ),
)
