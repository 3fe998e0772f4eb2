"""What Slurm and its people do to a job: limits, preemption, cancels, holds, refusals, and daemons that are away."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.cluster.faults import wait_until
from tests.prove.administrator import controller_away
from tests.prove.row import CRASH, ONE_NODE, PAIR, RANK_1, Row, command, ended, fails, ordered, unharmed
from tests.prove.rows_program import BY_CGROUPS, CGROUPS
from tests.prove.scene import Scene

CONTINUE = ("CONTINUE",)
LIMIT: dict[str, Any] = {"queue": "short", "time": "00:01:00"}
SLOW = {"pause": 8}
UNLIMITED = (("limits: [{nodes: 1-4, time: 1:00:00}]", "limits: []"),)
LISTENS = {"listen": True, "every": 100}
"""Arguments of a training that saves only when it is warned."""
WARNED = {"checkpoint": {"signal_before": "25s"}}


def in_partition(name: str) -> tuple[tuple[str, str], ...]:
    """The change of the profile by which jobs go there."""
    return (("partition: gpu\n", f"partition: {name}\n"),)


def preempt(scene: Scene) -> None:
    """Somebody with a higher partition needs all nodes for a moment."""
    words = ["sbatch", "--partition=high", f"--nodes={len(scene.cluster.nodes)}", "--exclusive", "--output=/dev/null"]
    scene.cluster.run([*words, "--wrap", "sleep 3"], user="bob", check=True)


kill_batch_shell = command(
    "sh", "-c", "kill -9 $(scontrol listpids JOB | awk '$3 == \"batch\" {print $1}')", on="NODE0"
)


def suspend_and_resume(scene: Scene) -> None:
    ordered("suspend")(scene)
    wait_until(lambda: "suspended" in (scene.status()["reason"] or ""), explain=scene.told, every=1)
    time.sleep(8)
    ordered("resume")(scene)


def hold_and_release(scene: Scene) -> None:
    """A job that is held is stuck and says so, until the person who held it lets it go."""
    scene.left["held"] = scene.user.until(scene.run["run"], "STUCK")
    time.sleep(2)
    command("scontrol", "release", "JOB", user=None)(scene)


def was_held(scene: Scene) -> list[str]:
    reason = (scene.left.get("held") or {}).get("reason") or ""
    return [] if "release" in reason else [f"held, and the reason does not say how to go on: {reason}"]


def away_40_s(scene: Scene) -> None:
    controller_away(scene.cluster, 40)


def controller_gone_for_a_while(scene: Scene) -> None:
    """The controller comes back while `submit` waits for it."""
    scene.cluster.stop_controller(kill=True)
    threading.Timer(45, scene.cluster.start_controller).start()


def controller_restarts(scene: Scene) -> None:
    scene.cluster.stop_controller()
    scene.cluster.start_controller()


def cancel_without_controller(scene: Scene) -> None:
    scene.cluster.stop_controller(kill=True)
    scene.left["cancel"] = scene.user.launch("cancel", scene.run["run"])
    scene.cluster.start_controller()


def was_remembered(scene: Scene) -> list[str]:
    done = scene.left["cancel"]
    said = "the request is on record" in done.stderr
    return [] if (done.returncode, said) == (4, True) else [f"`cancel` ended with {done.returncode}: {done.stderr}"]


def says_why(scene: Scene) -> list[str]:
    reason = scene.status()["reason"] or ""
    return [] if "contact" in reason or "timed out" in reason else [f"the cause is not in the reason: {reason}"]


def partition_up(scene: Scene) -> None:
    scene.user.until(scene.run["run"], "PENDING", "STUCK")
    time.sleep(5)
    command("scontrol", "update", "partition=gpu", "state=up")(scene)


def cancel_retry(scene: Scene) -> None:
    wait_until(lambda: len(scene.status()["attempts"]) == 2, explain=scene.told)
    scene.user.launch("cancel", scene.run["run"])


def same_job(scene: Scene) -> list[str]:
    """Slurm's own requeue was adopted: no second job was submitted."""
    ids = {one["job_id"] for one in scene.status()["attempts"]}
    return [] if ids == {scene.run["job_id"]} else [f"jobs {sorted(ids)} where one was enough"]


def limited(key: str, fault: str, **more: Any) -> Row:
    """A row whose first attempt runs into its time limit, so that the run goes on with another."""
    return Row(key, fault, ("time_limit",), CONTINUE, at=1, **{"args": SLOW, **more})


def cancelled(key: str, fault: str, **more: Any) -> Row:
    """A row whose run somebody cancels."""
    return ended(key, fault, ("cancelled_by_user",), **{"state": "CANCELLED", **more})


def refused(key: str, fault: str, job: dict[str, Any], **more: Any) -> Row:
    """A row whose job Slurm does not take."""
    conf = ("AccountingStorageEnforce=associations", "EnforcePartLimits=ALL")
    cluster = {"nodes": 1, "slurm_conf": conf}
    return ended(key, fault, ("submit_rejected",), job=job, cluster=cluster, state="STOPPED", exit_code=4, **more)


ROWS = (
    limited("limit", "the time limit, with a checkpoint, without a warning", job=LIMIT),
    limited(
        "limit-warned",
        "the time limit, with a warning that the training handles",
        job={**LIMIT, **WARNED},
        args={**SLOW, **LISTENS},
        attempts=(2, 3, 4),
        note="Slurm warns up to a minute early, so the steps of an attempt differ",
    ),
    ended(
        "limit-no-checkpoint",
        "the time limit, without any checkpoint",
        ("time_limit",),
        job=LIMIT,
        args={**SLOW, "every": 0},
        note="another attempt would begin again",
    ),
    Row(
        "preempted",
        "preemption by a job in a higher-priority partition",
        ("preempted",),
        CONTINUE,
        args={"pause": 1},
        act=preempt,
        profile=in_partition("low"),
        cluster=PAIR,
    ),
    Row(
        "preempted-cgroup",
        "preemption by a job in a higher-priority partition, after a grace time",
        ("preempted",),
        CONTINUE,
        job={**ONE_NODE, **WARNED},
        args={"pause": 1, **LISTENS},
        act=preempt,
        profile=in_partition("grace"),
        cluster=CGROUPS,
        note=f"the steps are warned by SIGTERM; the training saves and exits by itself; {BY_CGROUPS}",
    ),
    cancelled("scancel", "the user cancels the job with scancel", act=command("scancel", "JOB", user=None), quick=True),
    cancelled("scancel-root", "an administrator cancels the job", act=command("scancel", "JOB")),
    Row(
        "batch-signal",
        "an administrator kills the batch shell with scancel --signal=KILL --batch",
        CRASH[:1],
        act=command("scancel", "--signal=KILL", "--batch", "JOB"),
    ),
    Row("batch-killed", "the batch shell is killed with kill -9", CRASH[:1], act=kill_batch_shell),
    Row(
        "forgotten",
        "the batch shell is killed, and Slurm forgets the job",
        ("node_failure", "segfault_or_abort"),
        job={"retry": {"lost_after": "20s"}},
        act=kill_batch_shell,
        cluster={**PAIR, "accounting": False, "slurm_conf": ("MinJobAge=2",)},
        note="no slurmdbd, MinJobAge 2 s",
    ),
    cancelled(
        "scancel-step",
        "the user cancels the step with scancel JOB.0",
        state="FAILED",
        act=command("scancel", "JOB.0", user=None),
    ),
    unharmed("suspended", "an administrator suspends the job, then resumes it", act=suspend_and_resume, cluster=PAIR),
    Row(
        "requeue-root",
        "an administrator requeues the job",
        ("preempted", "unknown"),
        ("",),
        args={"pause": 1},
        act=ordered("requeue"),
        cluster=PAIR,
        after=same_job,
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
        act=away_40_s,
        args={"pause": 1.5},
        cluster=PAIR,
        note="no failure; the job ends while the controller is down",
    ),
    Row(
        "controller-kill",
        "a rank is killed while slurmctld is down for 40 s",
        CRASH,
        act=away_40_s,
        args=fails("kill", rank=1, step=12, pause=1.5),
        **RANK_1,
        cluster=PAIR,
    ),
    unharmed("controller-restart", "slurmctld is restarted", act=controller_restarts, args={"pause": 1}, cluster=PAIR),
    ended(
        "controller-submit",
        "slurmctld is down at submission",
        ("unknown",),
        verdicts=("",),
        before=lambda scene: scene.cluster.stop_controller(kill=True),
        act=lambda scene: scene.cluster.start_controller(),
        at=0,
        after=says_why,
        state="STOPPED",
        exit_code=4,
        cluster=PAIR,
        note="nothing was submitted; the reason names the cause",
    ),
    unharmed(
        "controller-submit-wait",
        "slurmctld is down for 45 s at submission with --wait",
        before=controller_gone_for_a_while,
        options=("--wait",),
        cluster=PAIR,
        note="no failure; `submit --wait` submits once the controller answers",
    ),
    cancelled(
        "controller-cancel",
        "the user cancels the run while slurmctld is down",
        act=cancel_without_controller,
        after=was_remembered,
        args=SLOW,
        at=1,
        cluster=PAIR,
        note="the next monitor cancels the job",
    ),
    unharmed(
        "partition-down",
        "the partition is down while the job is pending, then up",
        before=command("scontrol", "update", "partition=gpu", "state=down"),
        act=partition_up,
        at=0,
        cluster=PAIR,
    ),
    limited(
        "limit-shortened",
        "an administrator shortens the time limit of the running job",
        act=ordered("time limit"),
        cluster=PAIR,
    ),
    Row(
        "retry-cancelled",
        "the user cancels the next attempt while it is pending",
        CRASH,
        act=cancel_retry,
        at=0,
        job={"retry": {"backoff": "5m", "in_allocation": "off"}},
        args=fails("kill", rank=1),
        state="CANCELLED",
        loss=None,
    ),
    Row(
        "slurmdbd",
        "slurmdbd is down while a rank is killed",
        CRASH,
        before=lambda scene: scene.cluster.stop_accounting(kill=True),
        args=fails("kill", rank=1),
        **RANK_1,
        cluster=PAIR,
    ),
    refused("refused-account", "an account that does not exist", {"account": "nobody", "nodes": 1}),
    refused("refused-time", "more time than the partition allows", {"time": "05:00:00", "nodes": 1}, profile=UNLIMITED),
    refused("refused-nodes", "more nodes than the cluster has", {"nodes": 9}, profile=UNLIMITED),
)
