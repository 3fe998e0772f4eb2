"""The node check in real jobs: each planted fault is named on its node in time, and healthy nodes are not blamed."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.requirements import REPOSITORY
from tests.prove.node_check_faults import JOBS, CheckJob
from tests.prove.node_check_tools import DISTRIBUTED, PYTHON, SMI, TORCH
from tests.prove.node_fault import COMMON, Fault, filled, shell
from tests.prove.rounds import Rounds
from tests.slurm.user import PROFILES, User

PLACES = ("bin", "saved", "data", "site", "runs")
PAGE = REPOSITORY / "docs" / "evidence" / "measured.md"
GROUP, HEALTHY = "node check", "healthy nodes"


def usual_job(user: User, files: dict[str, str], **more: Any) -> dict[str, Any]:
    """A job with something for every check to look at, and its files, of which those in `bin` are programs."""
    for name, text in {"data/part": "", "saved/.keep": "", "runs/.keep": "", **files}.items():
        path = Path(user.job(text, name))
        if path.parent.name == "bin":
            path.chmod(0o755)
    saved = {"dir": str(user.home / "saved"), "pattern": r"step-(\d+)", "resume": {"args": {"from": "x"}}}
    return {
        "script": str(user.home / "train.py"),
        "args": {"data": str(user.home / "data")},
        "env": {"PATH": f"{user.home}/bin:{user.cluster.environment()['PATH']}"},
        "retry": {"max_attempts": 1},
        "checkpoint": saved,
        **more,
    }


class Stage:
    """One job's folders and files."""

    def __init__(self, cluster: Cluster, job: CheckJob) -> None:
        """Make what the job needs, on nodes without faults."""
        self.cluster, self.job = cluster, job
        self.user = User(cluster, cluster.user_folder(f"check-{job.key}-"))
        self.places = {name.upper(): str(self.user.home / name) for name in PLACES}
        files = {
            "train.py": "import torch\nimport helper\n",
            "site/site/helper/__init__.py": "",
            "bin/nvidia-smi": SMI,
            # The stand-in starts a Python with PyTorch for the full check of a CPU.
            "bin/python3": PYTHON.replace("/usr/bin/python3", sys.executable) if job.full else PYTHON,
        }
        if not job.full or job.gpus:
            files["site/site/torch-2.6.0.dist-info/METADATA"] = "Name: torch\nVersion: 2.6.0\n"
            files["site/site/torch/__init__.py"] = TORCH if job.gpus else ""
            files["site/site/torch/distributed.py"] = DISTRIBUTED
        if job.vendor != "nvidia" or job.full:
            text = (PROFILES / "testcluster.yaml").read_text().replace("vendor: nvidia", f"vendor: {job.vendor}")
            files["sites/testcluster.yaml"] = text + "fabric: {kind: infiniband}\n"
        self.words = usual_job(
            self.user,
            files,
            name=f"check-{job.key}",
            preflight="full" if job.full else "quick",
            launcher="srun",
            nodes=4,
            cpus_per_node=1,
            gpus_per_node=job.gpus,
            processes_per_node=1,
            **({"environment": {"python": "python3"}} if job.full and not job.gpus else {}),
            **({"sbatch": {"hold": True}} if job.waits else {}),
        )
        self.words["env"]["PYTHONPATH"] = f"{self.places['SITE']}/site"
        if job.key == "network":
            self.words["env"]["NCCL_SOCKET_IFNAME"] = "fast0"

    def plant(self) -> None:
        for node in self.cluster.nodes:
            shell(self.cluster, node, self.job.before, self.places)
        for fault in self.job.faults:
            fault.planted(self.cluster, self.places)

    def undo(self) -> None:
        for fault in self.job.faults:
            fault.undone(self.cluster, self.places)
        for node in self.cluster.nodes:
            shell(self.cluster, node, self.job.undo, self.places, check=False)

    def run(self) -> dict[str, Any]:
        """Submit and return the record of the node check."""
        try:
            if not self.job.waits:
                self.plant()
            run = self.user.submit(json.dumps(self.words))
            if self.job.waits:
                self.plant()
                self.cluster.run(["scontrol", "release", run["job_id"]], check=True)
            status = self.user.until(run["run"], "COMPLETED", "FAILED", "STOPPED", "CANCELLED", seconds=patience(150))
        finally:
            self.undo()
        attempt = Path(run["folder"]) / "attempts" / "001"
        log = (attempt / "batch.log").read_text(errors="replace") if (attempt / "batch.log").exists() else ""
        try:
            record: dict[str, Any] = json.loads((attempt / "node-check.json").read_text())
        except (OSError, ValueError) as error:
            raise AssertionError(f"{status['reason']}: {log[-2000:]}") from error
        return {**record, "log": log, "class": status["attempts"][0].get("class")}


def named(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """What the record of a check names, by node and check."""
    found = {(one["node"], one["check"]): one for one in record["bad"]}
    return found | {(COMMON, one["check"]): {**one, "seconds": None} for one in record["common"]}


def check(cluster: Cluster, job: CheckJob) -> list[dict[str, Any]]:
    """Run a job and compare what it names with what was planted: an outcome for each fault."""
    stage = Stage(cluster, job)
    record = stage.run()
    found = named(record)
    outcomes = [outcome(stage, fault, found) for fault in job.faults]
    wrong = [
        f"{one['node']} is blamed: {one['check']}: {one['text']}"
        for key, one in found.items()
        if key[0] != COMMON and not any(fault.is_named(key, stage.places) for fault in job.faults)
    ]
    wrong += [f"class {record['class']}"] if record["class"] not in ("node_failure", "gpu_hardware") else []
    outcomes[0]["wrong"] += wrong
    if any(one["wrong"] for one in outcomes):
        outcomes[0]["record"] = {key: value for key, value in record.items() if key != "log"}
        outcomes[0]["log"] = record["log"][-3000:]
    return outcomes


def outcome(stage: Stage, fault: Fault, found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """Whether one fault was named on its node in time."""
    one = next((found[key] for key in found if fault.is_named(key, stage.places)), None)
    facts = {"fault": fault.fault, "node": fault.node, "limit": fault.limit}
    if one is None:
        wrong = [f"{fault.check} is not named on {fault.node}"] if fault.check else []
        return {**facts, "seconds": None, "text": "", "wrong": wrong}
    wrong, text, seconds = [], str(one["text"]), one["seconds"]
    limit = fault.limit if os.getloadavg()[0] < len(os.sched_getaffinity(0)) else patience(fault.limit)
    if seconds is not None and seconds > limit:
        wrong.append(f"named after {seconds} s, not within {limit:.0f} s")
    if filled(fault.says, stage.places) not in text:
        wrong.append(f"the message is {text}")
    text = text.replace(str(stage.user.home), "…").replace(str(REPOSITORY), "…")
    return {**facts, "seconds": seconds, "text": text, "wrong": wrong}


def healthy(cluster: Cluster, number: int) -> dict[str, Any]:
    """One job on healthy nodes, with and without GPUs in turn; every fifth with the full check."""
    full = number % 5 == 0
    record = Stage(cluster, CheckJob(f"healthy{number}", (), gpus=4 * (number % 2), full=full)).run()
    return {"bad": record["bad"], "common": record["common"], "seconds": record["seconds"], "full": full}


def prove(rounds: Rounds) -> int:
    """Run all jobs with faults, and rounds on healthy nodes; what has succeeded is not run again."""
    state, known = rounds.state, rounds.done(GROUP)
    with Cluster.start() as cluster:
        for job in JOBS:
            if job.key in rounds.names if rounds.names else not _good(known.get(job.key)):
                began = time.monotonic()
                try:
                    outcomes = check(cluster, job)
                except Exception as error:
                    outcomes = [{"fault": job.key, "node": "", "seconds": None, "text": "", "wrong": [str(error)]}]
                state.keep(GROUP, job.key, outcomes)
                mark = "ok  " if _good(outcomes) else "FAIL"
                print(f"{mark} {job.key} {time.monotonic() - began:.0f} s", json.dumps(outcomes, indent=1), flush=True)
        for number in range(50 if rounds.count is None else rounds.count):
            if str(number) not in rounds.done(HEALTHY):
                state.keep(HEALTHY, str(number), found := healthy(cluster, number))
                print(f"healthy {number}: {found}", flush=True)
    good, found = sum(_good(state.data.get(GROUP, {}).get(job.key)) for job in JOBS), state.data.get(HEALTHY, {})
    alarms = sum(bool(one["bad"]) for one in found.values())
    print(f"{good} of {len(JOBS)} jobs named all faults; {alarms} false alarms in {len(found)} rounds")
    return 0 if good == len(JOBS) and not alarms else 1


def section(known: dict[str, Any]) -> str:
    """The table of docs/evidence/measured.md."""
    lines = ["| fault | named | limit | message |", "|---|---|---|---|"]
    for job in JOBS:
        outcomes = {one["fault"]: one for one in known.get(job.key, [])}
        for fault in job.faults:
            one = outcomes.get(fault.fault)
            if one is None or one["wrong"]:
                when = "not run" if one is None else "**failed**"
            else:
                when = f"{one['seconds']:.1f} s" if one["seconds"] is not None else "not blamed"
            text = re.sub(r"…[^\s:]*", "PATH", one["text"]).replace("|", "\\|") if one else ""
            lines.append(f"| {fault.fault} | {when} | {fault.limit:.0f} s | {text[:120]} |")
    return "\n".join(lines)


def section_of_healthy(rounds: dict[str, Any]) -> str:
    """What docs/evidence/measured.md says of false alarms."""
    full, alarms = (sum(bool(one.get(name)) for one in rounds.values()) for name in ("full", "bad"))
    return (
        f"In {len(rounds)} runs on healthy nodes of a busy machine, {full} of them with the full check, "
        f"{alarms or 'no'} node was blamed."
    )


def _good(outcomes: list[dict[str, Any]] | None) -> bool:
    return bool(outcomes) and not any(one["wrong"] for one in outcomes or ())
