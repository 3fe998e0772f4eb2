"""The node check in real jobs: each planted fault is named on its node in time, and healthy nodes are not blamed."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.prove.matrix import State
from tests.prove.node_check_faults import JOBS, CheckJob, Fault
from tests.prove.node_check_tools import DISTRIBUTED, PYTHON, TOOLS, TORCH
from tests.prove.rounds import Rounds
from tests.slurm.user import PROFILES, User

PLACES = ("bin", "saved", "data", "site", "runs")
PAGE = REPOSITORY / "docs" / "node-check.md"
TABLE = "## Planted faults\n"
COMMON = "common"
"""In place of a node: what is reported without blaming one."""
GROUP, HEALTHY = "node check", "healthy nodes"


class Stage:
    """One job's folders and files."""

    def __init__(self, cluster: Cluster, job: CheckJob) -> None:
        """Make what the job needs, on nodes without faults."""
        self.cluster, self.job = cluster, job
        self.user = User(cluster, cluster.user_folder(f"check-{job.key}-"))
        self.places = {name.upper(): str(self.user.home / name) for name in PLACES}
        self.user.job("import torch\nimport helper\n", "train.py")
        self.user.job("", "data/part")
        self.user.job("", "saved/.keep")
        self.user.job("", "runs/.keep")
        self.user.job("", "site/site/helper/__init__.py")
        if not job.full or job.gpus:
            self.user.job("Name: torch\nVersion: 2.6.0\n", "site/site/torch-2.6.0.dist-info/METADATA")
            self.user.job(TORCH if job.gpus else "", "site/site/torch/__init__.py")
            self.user.job(DISTRIBUTED, "site/site/torch/distributed.py")
        python = PYTHON.replace("/usr/bin/python3", sys.executable) if job.full else PYTHON
        for name, text in {**TOOLS, "python3": python}.items():
            Path(self.user.job(text, f"bin/{name}")).chmod(0o755)
        if job.vendor != "nvidia" or job.full:
            text = (PROFILES / "testcluster.yaml").read_text().replace("vendor: nvidia", f"vendor: {job.vendor}")
            self.user.job(text + "fabric: {kind: infiniband}\n", "sites/testcluster.yaml")

    def text(self) -> str:
        """The job file."""
        # Without python3 of the stand-ins, the node that has none really has none.
        path = f"{self.places['BIN']}:{self.cluster.environment()['PATH']}"
        words: dict[str, Any] = {
            "name": f"check-{self.job.key}",
            "preflight": "full" if self.job.full else "quick",
            "launcher": "srun",
            "nodes": 4,
            "cpus_per_node": 1,
            "gpus_per_node": self.job.gpus,
            "processes_per_node": 1,
            "script": str(self.user.home / "train.py"),
            "args": {"data": self.places["DATA"]},
            "env": {"PATH": path, "PYTHONPATH": f"{self.places['SITE']}/site", "NCCL_SOCKET_IFNAME": "fast0"},
            "retry": {"max_attempts": 1},
            "checkpoint": {"dir": self.places["SAVED"], "pattern": r"step-(\d+)", "resume": {"args": {"from": "x"}}},
        }
        if self.job.full and not self.job.gpus:
            words["environment"] = {"python": "python3"}  # the stand-in, which starts a Python with PyTorch
        if self.job.key != "network":
            del words["env"]["NCCL_SOCKET_IFNAME"]
        return json.dumps(words, indent=1)

    def shell(self, node: str, commands: str, *, check: bool = True) -> None:
        """Run commands as root on a node."""
        words = {**self.places, "NODE": node}
        done = self.cluster.run(["bash", "-c", commands], user="root", node=node, env=words)
        if check and done.returncode != 0:
            raise AssertionError(f"{node}: {commands}: {done.stderr}")

    def plant(self) -> None:
        for node in self.cluster.nodes if self.job.before else ():
            self.shell(node, self.job.before)
        for fault in self.job.faults:
            if fault.plant:
                self.shell(fault.node, f"set -e; {fault.plant}")

    def undo(self) -> None:
        for fault in self.job.faults:
            if fault.undo:
                self.shell(fault.node, fault.undo, check=False)
        for node in self.cluster.nodes if self.job.undo else ():
            self.shell(node, self.job.undo, check=False)

    def run(self) -> dict[str, Any]:
        """Submit and return the record of the node check."""
        held = self.job.waits
        if held:
            self._state("drain")
        try:
            if not held:
                self.plant()
            run = self.user.submit(self.text())
            if held:
                self.plant()
                self._state("resume")
            status = self.user.until(run["run"], "COMPLETED", "FAILED", "STOPPED", "CANCELLED", seconds=patience(150))
        finally:
            if held:
                self._state("resume")
            self.undo()
        attempt = Path(run["folder"]) / "attempts" / "001"
        log = (attempt / "batch.log").read_text(errors="replace") if (attempt / "batch.log").exists() else ""
        try:
            record: dict[str, Any] = json.loads((attempt / "node-check.json").read_text())
        except (OSError, ValueError) as error:
            raise AssertionError(f"{status['reason']}: {log[-2000:]}") from error
        return {**record, "log": log, "class": status["attempts"][0].get("class")}

    def _state(self, state: str) -> None:
        nodes = ",".join(self.cluster.nodes)
        words = ["scontrol", "update", f"nodename={nodes}", f"state={state}", "reason=fault"]
        self.cluster.run(words[: 5 if state == "drain" else 4], user="root", check=state == "drain")
        with suppress(TimeoutError):
            wait_until(
                lambda: all(state[:4] in one or state == "resume" for one in self.cluster.node_states().values())
            )

    def fill(self, text: str) -> str:
        """A text with the names of the places."""
        for name, place in self.places.items():
            text = text.replace(f"${name}", place)
        return text


def check(cluster: Cluster, job: CheckJob) -> list[dict[str, Any]]:
    """Run a job and compare what it names with what was planted: an outcome for each fault."""
    stage = Stage(cluster, job)
    record = stage.run()
    found = {(one["node"], one["check"]): one for one in record["bad"]}
    found.update({(COMMON, one["check"]): {**one, "seconds": None} for one in record["common"]})
    outcomes = [outcome(stage, fault, found) for fault in job.faults]
    planned = {(fault.node, stage.fill(name)) for fault in job.faults for name in fault.check}
    wrong = [
        f"{one['node']} is blamed: {one['check']}: {one['text']}"
        for key, one in found.items()
        if key[0] != COMMON and not any(key[0] == node and fits(key[1], name) for node, name in planned)
    ]
    wrong += [f"class {record['class']}"] if record["class"] not in ("node_failure", "gpu_hardware") else []
    outcomes[0]["wrong"] += wrong
    if any(one["wrong"] for one in outcomes):
        outcomes[0]["record"] = {key: value for key, value in record.items() if key != "log"}
        outcomes[0]["log"] = record["log"][-3000:]
    return outcomes


def outcome(stage: Stage, fault: Fault, found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """Whether one fault was named on its node in time."""
    where = COMMON if fault.common else fault.node
    named = [
        next((one for (node, check), one in found.items() if node == where and fits(check, stage.fill(name))), None)
        for name in fault.check
    ]
    wrong = [
        f"{name} is not named on {fault.node}" for name, one in zip(fault.check, named, strict=True) if one is None
    ]
    texts = [str(one["text"]) for one in named if one is not None]
    seconds = max((one["seconds"] for one in named if one is not None and not fault.common), default=None)
    limit = fault.limit if os.getloadavg()[0] < len(os.sched_getaffinity(0)) else patience(fault.limit)
    if seconds is not None and seconds > limit:
        wrong.append(f"named after {seconds} s, not within {limit:.0f} s")
    if texts and not any(re.search(re.escape(stage.fill(fault.says)), text) for text in texts):
        wrong.append(f"the message is {texts}")
    text = texts[0].replace(str(stage.user.home), "…").replace(str(REPOSITORY), "…") if texts else ""
    return {
        "fault": fault.fault,
        "node": fault.node,
        "seconds": seconds,
        "limit": fault.limit,
        "text": text,
        "wrong": wrong,
    }


def fits(check: str, name: str) -> bool:
    """Whether a check is the one of a name, or that of a folder inside a folder."""
    return check == name or check.startswith(f"{name}/")


def healthy(cluster: Cluster, number: int) -> dict[str, Any]:
    """One job on healthy nodes, with and without GPUs in turn; every fifth with the full check."""
    full = number % 5 == 0
    record = Stage(cluster, CheckJob(f"healthy{number}", (), gpus=4 * (number % 2), full=full)).run()
    return {"bad": record["bad"], "common": record["common"], "seconds": record["seconds"], "full": full}


def prove(rounds: Rounds) -> int:
    """Run all jobs with faults, and rounds on healthy nodes; what has succeeded is not run again."""
    state, names, known = rounds.state, rounds.names, rounds.done(GROUP)
    with Cluster.start() as cluster:
        for job in JOBS:
            if job.key in (names or [one.key for one in JOBS]) and (names or not _good(known.get(job.key))):
                began = time.monotonic()
                try:
                    outcomes = check(cluster, job)
                except Exception as error:
                    outcomes = [{"fault": job.key, "node": "", "seconds": None, "text": "", "wrong": [str(error)]}]
                state.keep(GROUP, job.key, outcomes)
                print(f"{job.key} {time.monotonic() - began:.0f} s", flush=True)
                for one in outcomes:
                    print(
                        f"  {'FAIL' if one['wrong'] else 'ok  '} {one['fault']}: {one['seconds']} s {one['text']}",
                        *one["wrong"],
                        sep="\n      ",
                        flush=True,
                    )
                    if "record" in one:
                        print(json.dumps(one["record"]), one["log"], sep="\n", flush=True)
        for number in range(50 if rounds.count is None else rounds.count):
            if str(number) not in rounds.done(HEALTHY):
                state.keep(HEALTHY, str(number), found := healthy(cluster, number))
                print(f"healthy {number}: {found}", flush=True)
    good = sum(_good(state.data.get(GROUP, {}).get(job.key)) for job in JOBS)
    alarms = sum(bool(one["bad"]) for one in state.data.get(HEALTHY, {}).values())
    print(
        f"{good} of {len(JOBS)} jobs named all faults; "
        f"{alarms} false alarms in {len(state.data.get(HEALTHY, {}))} rounds"
    )
    return 0 if good == len(JOBS) and not alarms else 1


def write(state: State) -> None:
    """Write the table of the page."""
    known, rounds = state.data.get(GROUP, {}), state.data.get(HEALTHY, {})
    alarms = sum(bool(one["bad"]) for one in rounds.values())
    full = sum(one.get("full", False) for one in rounds.values())
    lines = [
        TABLE,
        "`make prove` plants these faults on four nodes of a real Slurm, several on different nodes at once. Stand-ins",
        "for the tools and files of GPU drivers replay their outputs. Times count from the start of the nodes' check.",
        f"In {len(rounds)} runs on healthy nodes of a busy machine, {full} of them with the full check,",
        f"{alarms or 'no'} node was blamed.",
        "",
        "| fault | named | limit | message |",
        "|---|---|---|---|",
    ]
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
    text = PAGE.read_text()
    PAGE.write_text(text.partition(TABLE)[0].rstrip() + "\n\n" + "\n".join(lines) + "\n")


def _good(outcomes: list[dict[str, Any]] | None) -> bool:
    return bool(outcomes) and not any(one["wrong"] for one in outcomes or ())
