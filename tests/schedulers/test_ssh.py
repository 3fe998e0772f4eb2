"""Hosts that do not answer, or answer too much, and what is known of jobs there. `ssh` runs the command here."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.base.json_records import write_record
from hpc_launch.cli.nodes import lease_table
from hpc_launch.runs.status.followed_run import SchedulerAnswers
from hpc_launch.schedulers.job_files import LOCAL_STATE
from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.local_jobs import LocalState
from hpc_launch.schedulers.scheduler import PartlyUnreachable, Submission
from hpc_launch.schedulers.ssh.ssh_hosts import HostLeases, LeaseHolder, holders_of, leases_of, on_host
from hpc_launch.schedulers.ssh.ssh_scheduler import SshScheduler
from hpc_launch.site_tools.site_nodes import SiteHost
from tests.busy import patience
from tests.cluster.faults import wait_until

SSH = """\
#!/bin/bash
for host; do [[ $previous == -- ]] && break; previous=$host; done
echo "$host" >>"${0%/*}/asked"
case $host in
dead*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
slow*) exec sleep 60 ;;
noisy*) yes | head -c 10000000 ;;
endless*) exec yes ;;
lingering*) sleep 30 & ;;
lying*) PATH=${0%/*}/lying:$PATH ;;
esac
exec bash -s
"""


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def job(tmp_path: Path, host: str, state: str = "PENDING") -> str:
    folder = tmp_path / f"attempt {host} {state}"
    folder.mkdir()
    entry = local_jobs.register(f"{host}.token.1", folder, (host,))
    # On another host, so that nobody looks for the supervisor here.
    record = LocalState(job_id=entry.job_id, state=state, host=f"not-{socket.gethostname()}", started=time.time())
    write_record(folder / LOCAL_STATE, record)
    return entry.job_id


@pytest.mark.usefixtures("bin_folder")
def test_a_dead_host_hides_no_other_job(tmp_path: Path) -> None:
    dead, over, alive = job(tmp_path, "dead1"), job(tmp_path, "dead1", "COMPLETED"), job(tmp_path, "live1", "RUNNING")
    with pytest.raises(PartlyUnreachable, match="cannot reach dead1 over ssh") as caught:
        SshScheduler().query([dead, over, alive])
    assert {job_id: record.state for job_id, record in caught.value.records.items()} == {
        over: "COMPLETED",
        alive: "RUNNING",
    }
    answers = SchedulerAnswers(SshScheduler())
    answers.ask([dead, alive])
    assert "No route to host" in (answers.of(dead).error or "")
    record = answers.of(alive).record
    assert record is not None
    assert record.state == "RUNNING"
    assert not answers.silent


def test_a_dead_host_is_asked_once_for_all_its_jobs(tmp_path: Path, bin_folder: Path) -> None:
    jobs = [job(tmp_path, "dead1"), job(tmp_path, "dead1", "RUNNING")]
    scheduler = SshScheduler()
    for _ in range(2):
        with pytest.raises(PartlyUnreachable):
            scheduler.query(jobs)
    assert (bin_folder / "asked").read_text().split() == ["dead1"]
    with pytest.raises(PartlyUnreachable):
        scheduler.query(jobs, fresh=True)
    assert (bin_folder / "asked").read_text().split() == ["dead1", "dead1"]


@pytest.mark.usefixtures("bin_folder")
def test_hosts_are_asked_side_by_side(tmp_path: Path) -> None:
    jobs = [job(tmp_path, f"slow{number}") for number in range(20)]
    began = time.monotonic()
    with pytest.raises(PartlyUnreachable, match="slow7 did not answer in time"):
        SshScheduler(query_s=2).query(jobs)
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("bin_folder")
@pytest.mark.parametrize("host", ["noisy", "lingering"])
def test_only_the_answer_of_a_host_is_read(host: str) -> None:
    answer = on_host(host, ["wc -c <<<" + "x" * 300_000, "echo problem >&2", "exit 3"], timeout_s=25)
    assert (answer.code, answer.output, answer.error) == (3, "300001\n", "problem")


@pytest.mark.usefixtures("bin_folder")
def test_a_host_that_prints_without_end_is_left() -> None:
    with pytest.raises(Unreachable, match="it prints too much"):
        on_host("endless", ["true"], timeout_s=25)
    answer = on_host("live", ["exec yes"], timeout_s=25)
    assert (answer.code, answer.error) == (-9, "it prints too much")
    assert len(answer.output) < 5_000_000


def test_hosts_are_checked_and_a_job_starts_in_one_connection_to_the_first_one(
    tmp_path: Path, bin_folder: Path
) -> None:
    folder = tmp_path / "run" / "attempts" / "001"
    folder.mkdir(parents=True)
    waits = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    script = f"#HOST n1 slots=1 shared\n{waits}\necho done >{tmp_path}/done\n"
    scheduler = SshScheduler()
    job_id = scheduler.submit(Submission(script, folder, "job.token.1"))
    assert scheduler.query([job_id], fresh=True)[job_id].state == "RUNNING"
    assert (bin_folder / "asked").read_text().split() == ["n1", "n1"], "from here, and by itself; not for its state"
    (tmp_path / "go").touch()
    wait_until(lambda: scheduler.query([job_id], fresh=True)[job_id].state == "COMPLETED", patience(20))
    assert (tmp_path / "done").exists()
    with pytest.raises(SubmitRefused, match="cannot reach dead1 over ssh from n1: "):
        scheduler.submit(Submission(script.replace("\n", "\n#HOST dead1 slots=1 shared\n", 1), folder, "job.token.2"))
    assert [entry.job_id for entry in local_jobs.entries()] == [job_id]


LEASE = {"user": "bob", "run": "a", "job_id": "ssh-1", "since": 1000.0}


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        (json.dumps([LEASE]), "used"),
        ("[]", "free"),
        ("", "unknown"),
        ("[[[[", "unknown"),
        (json.dumps([{**LEASE, "run": "x" * 101}]), "unknown"),
        (json.dumps([{**LEASE, "since": 1e300}]), "unknown"),
        (json.dumps([{**LEASE, "user": None}]), "unknown"),
    ],
)
def test_an_answer_about_leases_is_checked(bin_folder: Path, printed: str, state: str) -> None:
    (bin_folder / "lying").mkdir()
    (bin_folder / "lying" / "python3").write_text(f"#!/bin/sh\ncat <<'X'\n{printed}\nX\n")
    (bin_folder / "lying" / "python3").chmod(0o755)
    assert leases_of(["lying"])["lying"].state == state


def test_what_holders_wrote_is_shown_without_escape_codes() -> None:
    holder = LeaseHolder("bob", "a\x1b[2J\n", "\u202e", time.time())
    hosts = [SiteHost("n1", 8, HostLeases((holder, holder))), SiteHost("n2", 4, HostLeases(fault="no\x1b answer"))]
    lines = list(lease_table(hosts))
    assert [line.split()[:3] for line in lines[:2]] == [["HOST", "SLOTS", "STATE"], ["n1", "8", "used"]]
    assert lines[-1].startswith("n2: no")
    assert all(line.isprintable() for line in lines)


def test_the_hosts_of_a_run_are_told_apart() -> None:
    mine, other = (LeaseHolder("bob", run, "ssh-1", 1000.0) for run in ("mine", "other"))
    leases = {
        "n1": HostLeases((mine,)),
        "n2": HostLeases((other, mine)),
        "n3": HostLeases((other,)),
        "n4": HostLeases(),
        "n5": HostLeases(fault="down"),
    }
    assert holders_of("mine", leases) == {
        "leased by this run": ["n1", "n2"],
        "in use by bob: run other": ["n3"],
        "not leased": ["n4"],
        "lease unknown: down": ["n5"],
    }
