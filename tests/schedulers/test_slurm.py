"""The Slurm scheduler on a real Slurm, as an ordinary user."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm.shared_query import FLOOR_S
from hpc_launch.schedulers.slurm.slurm_reasons import advice
from tests.cluster import Cluster
from tests.cluster.requirements import REPOSITORY
from tests.schedulers.login_node import Failed, LoginNode

SLEEP = "sleep 120"


def over(record: JobRecord) -> bool:
    return record.ended_for_good


def accounted(record: JobRecord) -> bool:
    """Whether the accounting's part is there: the database is told of an end some seconds later."""
    return record.ended_for_good and record.derived_exit_code is not None


@pytest.fixture
def login(cluster: Cluster, user_dir: Path) -> LoginNode:
    return LoginNode(cluster, user_dir)


@pytest.fixture
def login_bare(cluster_bare: Cluster, user_dir: Path) -> LoginNode:
    return LoginNode(cluster_bare, user_dir)


def test_a_job_is_submitted_and_ends(login: LoginNode) -> None:
    folder = login.folder()
    text = 'echo "$1"; echo "$SECRET"; printf "%s\\n" "ünï 100%"; srun true'
    job = login.submit(text, name="tiny.a1b2.1", folder=folder, environment={"SECRET": "s3 cret"})
    record = login.until(job, accounted)
    assert (record.state, record.exit_code, record.signal) == ("COMPLETED", 0, None)
    assert record.derived_exit_code == 0
    assert {step for step, _, _ in record.steps} >= {"batch", "0"}
    assert record.name == "tiny.a1b2.1"
    assert record.nodes is not None
    assert record.restarts == 0
    assert record.submitted is not None
    assert record.started is not None
    assert record.ended is not None
    assert abs(record.submitted - time.time()) < 120
    assert record.submitted <= record.started <= record.ended
    assert (folder / "batch.log").read_text() == f"{folder}\ns3 cret\nünï 100%\n"
    # Submitit's own copy, byte for byte, and nothing else of its own.
    assert [path.name for path in (folder / "submitit").iterdir()] == [f"{job}_submission.sh"]
    assert (folder / "submitit" / f"{job}_submission.sh").read_text() == f"#!/bin/bash\n{text}\n"


def test_exit_codes_and_signals(login: LoginNode) -> None:
    failed = login.submit("exit 137")
    killed = login.submit("kill -9 $$")
    swallowed = login.submit("srun sh -c 'exit 7'\nexit 0")
    record = login.until(failed, accounted)
    assert (record.state, record.exit_code, record.signal) == ("FAILED", 137, None)
    record = login.until(killed, over)
    assert (record.state, record.exit_code, record.signal) == ("FAILED", None, 9)
    record = login.until(swallowed, accounted)
    assert (record.state, record.exit_code, record.derived_exit_code) == ("COMPLETED", 0, 7)


@pytest.mark.parametrize(
    ("option", "reasons"),
    [
        # PartitionConfig is Slurm's fallback for any limit of the partition; which of the two it shows varies.
        ("--time=900-0", {"PartitionTimeLimit", "PartitionConfig"}),
        ("--dependency=afterok:{failed}", {"DependencyNeverSatisfied"}),
    ],
)
def test_jobs_that_slurm_takes_and_never_starts(login: LoginNode, option: str, reasons: set[str]) -> None:
    failed = login.submit("sleep 2; exit 1")
    job = login.submit("true", option.format(failed=failed))
    record = login.until(job, lambda record: record.reason not in {None, "Priority", "Dependency"})
    assert record.state == "PENDING"
    assert record.reason in reasons
    found = advice(record.reason)
    assert found is not None
    assert found.never
    login.call("cancel", job_id=job)


def test_entries_of_an_array(login: LoginNode) -> None:
    job = login.submit("exit $((SLURM_ARRAY_TASK_ID == 1 ? 5 : 0))", "--array=0-1")
    waiting = login.submit("true", "--array=0-8:2%2", "--hold")
    assert login.until(f"{job}_1", accounted).exit_code == 5
    assert login.until(f"{job}_0", accounted).state == "COMPLETED"
    # The whole array has failed if one entry has.
    assert login.until(job, over).exit_code == 5
    found = login.query(waiting, f"{waiting}_4", f"{waiting}_5")
    assert found.keys() == {waiting, f"{waiting}_4"}
    login.call("cancel", job_id=f"{waiting}_4")
    # Of an entry that is cancelled before it starts Slurm keeps no record, neither in the queue nor in the accounting.
    assert login.query(f"{waiting}_4") == {}
    assert login.query(f"{waiting}_2")[f"{waiting}_2"].state == "PENDING"
    login.call("cancel", job_id=waiting)


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (["--partition=nope"], "Invalid partition name specified", "sinfo -s"),
        (["--nosuch"], "unrecognized option '--nosuch'", "sbatch --help"),
        (["--gres=gpu:99"], "Requested node configuration is not available", "sinfo -o"),
    ],
)
def test_refusals(login: LoginNode, options: list[str], said: str, hint: str | None) -> None:
    folder = login.folder()
    with pytest.raises(Failed, match=said) as refused:
        login.submit("true", *options, name="refused.t0.1", folder=folder)
    assert refused.value.kind == "SubmitRefused"
    assert hint is None or hint in (refused.value.hint or "")
    assert login.find("refused.t0.1") == []
    assert not list((folder / "submitit").glob(".submission*"))


def test_a_folder_whose_name_submitit_would_change(login: LoginNode) -> None:
    folder = login.home / "100%j"
    login.cluster.run(["mkdir", folder], check=True)
    with pytest.raises(Failed, match="%j") as refused:
        login.submit("true", name="tagged.t0.1", folder=folder)
    assert refused.value.kind == "SubmitRefused"
    assert login.find("tagged.t0.1") == []


def test_what_slurm_would_do(login: LoginNode) -> None:
    folder = login.folder()
    values: dict[str, Any] = {"script": "#!/bin/bash\ntrue\n", "folder": str(folder), "job_name": "dry.t0.1"}
    assert "to start at" in login.call("test_only", **values)
    assert list(folder.iterdir()) == []
    assert login.find("dry.t0.1") == []
    with pytest.raises(Failed, match="configuration") as refused:
        login.call("test_only", **values, options=["--nodes=2", "--gres=gpu:99"])
    assert refused.value.kind == "SubmitRefused"


def test_jobs_are_found_by_name(login: LoginNode) -> None:
    ended = login.submit("true", name="listed.x1.1")
    login.until(ended, over)
    live = login.submit(SLEEP, name="listed.x1.1")
    other = login.submit(SLEEP, name="listed.x1.12")
    found = login.find("listed.x1.1")
    assert {record.job_id for record in found} == {ended, live}
    for job in (live, other):
        login.call("cancel", job_id=job)


def test_many_processes_ask_the_controller_once(login: LoginNode) -> None:
    body = '#!/bin/sh\ndate +%s.%N >> "$COUNT"\nexec /usr/bin/squeue "$@"\n'
    counter = login.cluster.write(login.home / "squeue", body, 0o755)
    count = login.home / "count"
    path = login.cluster.environment()["PATH"]
    login.env = {"PATH": f"{counter.parent}:{path}", "COUNT": str(count)}
    jobs = [login.submit(SLEEP) for _ in range(3)]
    values = json.dumps({"job_ids": jobs, "fresh": False})
    command = ["sh", "-c", f"echo '{values}' | {sys.executable} -m tests.schedulers.driver query"]
    env = {**login.environment(), "PYTHONPATH": str(REPOSITORY)}
    processes = [login.cluster.popen(command, env=env) for _ in range(8)]
    answers = [json.loads(process.communicate(timeout=180)[0]) for process in processes]
    assert all(answer["result"].keys() == set(jobs) for answer in answers)
    times = [float(line) for line in count.read_text().split()]
    # On a machine under load eight starts of Python may take longer than the floor.
    assert all(later - earlier > FLOOR_S - 1 for earlier, later in pairwise(times))
    assert len(times) < 4
    login.query(*jobs, fresh=True)
    assert len(count.read_text().split()) == len(times) + 1
    (file,) = (login.home / "state" / "hpc-launch").glob("slurm-*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    for job in jobs:
        login.call("cancel", job_id=job)


def test_without_accounting(login_bare: LoginNode) -> None:
    login = login_bare
    failed = login.submit("exit 3", name="bare.t0.1")
    held = login.submit("true", "--hold", name="bare.t0.2")
    record = login.until(failed, over)
    assert (record.state, record.exit_code, record.derived_exit_code) == ("FAILED", 3, None)
    assert record.source == "squeue"
    assert login.query(held)[held].state == "PENDING"
    assert [record.job_id for record in login.find("bare.t0.1")] == [failed]
    assert login.find("bare.t0.9") == []
    assert login.query("999999") == {}
    root = LoginNode(login.cluster, login.cluster.user_folder(), user="root").query(failed, held)
    assert (root[failed].state, root[held].state) == ("FAILED", "PENDING"), "jobs of another user"
    login.call("cancel", job_id=held)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_job_that_the_controller_has_forgotten() -> None:
    with Cluster.start(nodes=1, gpus_per_node=0, slurm_conf=["MinJobAge=2"]) as cluster:
        login = LoginNode(cluster, cluster.user_folder())
        failed = login.submit("exit 130", name="gone.t0.1")
        login.until(failed, accounted)
        end = time.monotonic() + 180
        while cluster.run(["squeue", "-h", "-t", "all", "-j", failed]).stdout:
            assert time.monotonic() < end, "the controller remembers"
            time.sleep(1)
        # A state folder of its own: nothing is known from before.
        record = LoginNode(cluster, cluster.user_folder()).query(failed)[failed]
        assert (record.source, record.state, record.derived_exit_code) == ("sacct", "FAILED", 0)
        assert record.ended is not None
        assert [record.job_id for record in login.find("gone.t0.1")] == [failed]
