"""What an administrator does to jobs, nodes and the controller of a test's Slurm."""

from __future__ import annotations

import time

from tests.cluster import Cluster

ORDERS = {
    "requeue": (("update", "jobid=JOB", "requeue=1"), ("requeue", "JOB")),
    "suspend": (("suspend", "JOB"),),
    "resume": (("resume", "JOB"),),
    "time limit": (("update", "jobid=JOB", "timelimit=1"),),
    "drain": (("update", "nodename=NODE", "state=drain", "reason=a disk is to be changed"),),
}
"""The words of `scontrol`."""


def order(cluster: Cluster, what: str, *, job: str = "", node: str = "") -> None:
    """One of ORDERS, by root."""
    for words in ORDERS[what]:
        filled = [word.replace("JOB", job).replace("NODE", node) for word in words]
        cluster.run(["scontrol", *filled], user="root", check=True)


def controller_away(cluster: Cluster, seconds: float) -> None:
    """The controller is killed, and back after a while."""
    cluster.stop_controller(kill=True)
    time.sleep(seconds)
    cluster.start_controller()
