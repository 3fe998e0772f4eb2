"""The test cluster itself: that it is a real cluster, that its faults are real, that it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterError, ClusterUnavailable
from tests.cluster.faults import PATIENCE_S, wait_until
from tests.cluster.requirements import PACKAGES, REPOSITORY
from tests.cluster.syscalls import processes_of


def submit(cluster: Cluster, folder: Path, body: str, *options: str) -> str:
    """Submit a batch script and give the number of the job."""
    script = cluster.write(folder / "job.sh", f"#!/bin/bash\n{body}\n")
    done = cluster.run(["sbatch", "--parsable", *options, script], cwd=folder, check=True)
    return done.stdout.strip()


def job_state(cluster: Cluster, job: str) -> str:
    """State and reason of a job, as the controller knows them."""
    command = ["squeue", "-h", "-a", "-t", "all", "-j", job, "-o", "%T %r"]
    return cluster.run(command).stdout.strip()


def test_nodes_have_names_and_addresses_of_their_own(cluster: Cluster) -> None:
    command = "echo $(hostname) $(ip -o -4 address show eth0 | tr -s ' ' | cut -d' ' -f4)"
    done = cluster.run(["srun", "-N4", "bash", "-c", command], check=True)
    assert sorted(done.stdout.splitlines()) == [f"n{i} 10.77.0.{i}/24" for i in (1, 2, 3, 4)]


def test_a_command_runs_as_the_ordinary_user_with_this_python(cluster: Cluster) -> None:
    program = "import os, sys; print(os.getuid(), os.getcwd(), sys.prefix)"
    for prefix in ([], ["srun"]):
        done = cluster.run([*prefix, "python", "-c", program], check=True)
        assert done.stdout.split() == [str(cluster.uid), str(cluster.home), sys.prefix]
    readable = cluster.run(["cat", REPOSITORY / "tests" / "test_cluster.py"], check=True)
    assert readable.stdout == Path(__file__).read_text()


def test_the_environment_is_built_from_scratch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_TEST_PROCESS", "1")
    lines = cluster.run(["env"], env={"GIVEN": "2"}, check=True).stdout.splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names == {"HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "GIVEN"}


def test_a_job_without_the_submitters_environment_finds_this_python(cluster: Cluster, user_dir: Path) -> None:
    output = user_dir / "out"
    submit(cluster, user_dir, "command -v python", "--export=NONE", "--wait", f"--output={output}")
    assert output.read_text().strip() == str(Path(sys.executable).parent / "python")


def test_gpus_are_handed_out(cluster: Cluster) -> None:
    variables = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE $SLURM_STEP_GPUS"
    done = cluster.run(["srun", "-N1", "--gpus-per-node=4", "bash", "-c", variables], check=True)
    assert done.stdout.split() == ["0,1,2,3", "4", "0,1,2,3"]
    refused = cluster.run(["srun", "-N1", "--gpus-per-node=5", "true"])
    assert refused.returncode != 0


def test_accounting_knows_job_account_and_user(cluster: Cluster, user_dir: Path) -> None:
    job = submit(cluster, user_dir, "true", "--wait")
    command = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "User,Account,State"]

    def recorded() -> bool:
        return cluster.run(command).stdout.split() == ["alice|proj|COMPLETED"]

    wait_until(recorded, explain=lambda: cluster.run(command).stdout)


def test_a_cluster_without_accounting_runs_beside_it(cluster: Cluster, cluster_bare: Cluster) -> None:
    assert cluster.layout.root != cluster_bare.layout.root
    assert cluster_bare.run(["srun", "hostname"], check=True).stdout.startswith("n")
    done = cluster_bare.run(["sacct"])
    assert done.returncode != 0
    assert "accounting storage is disabled" in done.stderr


def test_signals_and_exit_status_pass_through(cluster: Cluster) -> None:
    assert cluster.run(["sh", "-c", "exit 7"]).returncode == 7
    assert cluster.run(["no-such-program"]).returncode == 127
    waiting = "trap 'exit 130' INT; echo ready; while :; do sleep 0.1; done"
    process = cluster.popen(["bash", "-c", waiting])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run(["sh", "-c", "sleep 987 | cat"], timeout=0.5)
    assert cluster.run(["pgrep", "-fx", "sleep 987"]).stdout == ""


def test_a_node_has_its_own_tmp_and_the_shared_home(cluster: Cluster, user_dir: Path) -> None:
    cluster.node_exec("n1", ["touch", "/tmp/of-n1", user_dir / "shared"])
    assert cluster.node_exec("n2", ["ls", user_dir / "shared"]).returncode == 0
    assert cluster.node_exec("n2", ["ls", "/tmp/of-n1"]).returncode != 0
    assert not Path("/tmp/of-n1").exists()


def test_high_preempts_low(cluster_bare: Cluster, user_dir: Path) -> None:
    low = submit(cluster_bare, user_dir, "sleep 600", "-p", "low", "-N4", "--exclusive")
    wait_until(lambda: job_state(cluster_bare, low).startswith("RUNNING"))
    high = cluster_bare.run(["srun", "-p", "high", "-N4", "--exclusive", "hostname"])
    assert high.returncode == 0
    assert job_state(cluster_bare, low).startswith("PENDING")
    cluster_bare.run(["scancel", low], check=True)


@pytest.mark.prove
def test_a_dead_node_fails_its_job_and_comes_back(disturbed_cluster: Cluster, user_dir: Path) -> None:
    cluster = disturbed_cluster
    job = submit(cluster, user_dir, "sleep 300", "-N2", "-w", "n1,n2", "--no-requeue")
    wait_until(lambda: job_state(cluster, job).startswith("RUNNING"))
    cluster.kill_node("n2")
    with pytest.raises(ClusterError):
        cluster.node_exec("n2", ["true"])
    wait_until(lambda: job_state(cluster, job).startswith("NODE_FAIL"))
    assert cluster.node_states()["n2"].startswith("down")
    cluster.revive_node("n2")
    wait_until(lambda: cluster.node_states()["n2"] == "idle")
    assert cluster.run(["srun", "-w", "n2", "hostname"], check=True).stdout == "n2\n"


@pytest.mark.slow
def test_a_frozen_controller_takes_the_job_all_the_same(disturbed_cluster: Cluster, user_dir: Path) -> None:
    cluster = disturbed_cluster
    script = cluster.write(user_dir / "job.sh", "#!/bin/sh\nsleep 600\n")
    cluster.freeze_controller()
    process = cluster.popen(["sbatch", "--job-name=taken", script], cwd=user_dir)
    process.communicate(timeout=PATIENCE_S)
    cluster.thaw_controller()
    assert process.returncode != 0
    wait_until(lambda: any(" taken " in job for job in cluster.jobs() or []))


@pytest.mark.slow
def test_a_failing_prolog_holds_the_job_and_drains_the_node(disturbed_cluster: Cluster, user_dir: Path) -> None:
    cluster = disturbed_cluster
    cluster.fail_prolog("n1")
    job = submit(cluster, user_dir, "true", "-w", "n1")
    wait_until(lambda: "launch failed requeued held" in job_state(cluster, job))
    wait_until(lambda: cluster.node_states()["n1"] == "drained")
    cluster.heal_prolog("n1")
    wait_until(lambda: cluster.node_states()["n1"] == "idle")


@pytest.mark.slow
def test_controller_and_accounting_come_back(disturbed_cluster: Cluster, user_dir: Path) -> None:
    cluster = disturbed_cluster
    job = submit(cluster, user_dir, "sleep 300")
    cluster.stop_controller()
    assert cluster.run(["squeue"]).returncode != 0
    cluster.start_controller()
    wait_until(lambda: job_state(cluster, job).startswith("RUNNING"))
    cluster.stop_accounting()
    assert cluster.run(["sacct"]).returncode != 0
    cluster.start_accounting()
    assert cluster.run(["sacct"]).returncode == 0


def assert_nothing_left(folder: Path, manager: int) -> None:
    """No file, process, mount or network interface of a cluster is on this machine."""
    assert not folder.exists()
    assert not Path(f"/proc/{manager}").exists()
    assert processes_of(folder) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    links = [link.name for link in Path("/sys/class/net").iterdir()]
    assert not [link for link in links if link.startswith("cable-")]


@pytest.mark.cluster
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(PACKAGES, "no-such-daemon", "some-package")
    with pytest.raises(ClusterUnavailable, match=r"needs .*no-such-daemon.*some-package"):
        Cluster.start()


def test_nothing_is_left_after_stop(cluster: Cluster, tmp_path: Path) -> None:
    # Asks for `cluster` only in order to be skipped where there can be none.
    needed = tmp_path / "needed"
    needed.mkdir()
    (needed / "file").write_text("x")
    tmp_path.chmod(0o700)
    with Cluster.start(nodes=1, gpus_per_node=1, accounting=False, needs=[needed]) as own:
        assert own.run(["cat", needed / "file"]).stdout == "x"
        folder, manager = own.layout.root, own.manager
        own.run(["sbatch", "--wrap", "sleep 300"], check=True)
        own.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"], check=True)
        assert processes_of(folder)
    assert_nothing_left(folder, manager)
    own.stop()


@pytest.mark.slow
def test_nothing_is_left_when_the_owner_is_killed(cluster: Cluster) -> None:
    program = (
        "from tests.cluster import Cluster; import time\n"
        "c = Cluster.start(nodes=1, gpus_per_node=0, accounting=False)\n"
        "print(c.manager, flush=True); time.sleep(300)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().split()[2])
    manager = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 30
    while (folder.exists() or processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert_nothing_left(folder, manager)
