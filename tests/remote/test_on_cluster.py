"""`--on CLUSTER`: verbs typed on a machine without Slurm, done by the hpc-launch of a cluster over real ssh."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc_launch.remote.clusters import Cluster as ClusterRecord
from tests.cluster import Cluster
from tests.cluster.faults import PATIENCE_S, wait_until
from tests.cluster.requirements import REPOSITORY
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.marks import prove
from tests.slurm.user import User

TRAINS = "name: small\nlauncher: none\ntime: 5\nhang: false\ncommand: [sh, -c, 'echo step 1/1; echo $PWD; cat word']\n"


@dataclass(frozen=True)
class Laptop(User):
    """A user whose own machine has no Slurm; `n1` is the login node of a cluster that is called `there`."""

    @property
    def env(self) -> dict[str, str]:
        own = {"HPC_LAUNCH_HOME": str(self.home / "own"), "XDG_RUNTIME_DIR": self.runtime}
        return {**super().env, "HPC_LAUNCH_SITE": "none", **own}

    @property
    def runtime(self) -> str:
        """The folder of the connection's socket, whose path must be short."""
        return f"/tmp/on-{self.home.name[-8:]}"

    @property
    def there(self) -> Path:
        """What the user has on the cluster."""
        return self.home / "there"

    def set_up(self, host: str = "n1") -> None:
        """Record the cluster. Its hpc-launch is this one, with a state of its own."""
        own = {**super().env, "HPC_LAUNCH_HOME": str(self.there / "runs"), "XDG_STATE_HOME": str(self.there / "state")}
        exports = "".join(f"export {name}='{value}'\n" for name, value in own.items())
        for name in ("hpc-launch", "python"):
            program = Path(sys.prefix) / "bin" / name
            path = self.job(f'#!/bin/sh\n{exports}exec {program} "$@"\n', f"there/bin/{name}")
            self.cluster.run(["chmod", "755", path], check=True)
        record = ClusterRecord(
            name="there", host=host, version="0", environment=str(self.there), code=str(self.there / "code"), added=1.0
        )
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        self.job(json.dumps(fields), "state/hpc-launch/clusters/there.json")
        self.cluster.run(["mkdir", "-p", "-m", "700", self.runtime], check=True)

    def jobs_there(self) -> list[Path]:
        return sorted(self.there.glob("runs/*/attempts/*/job.json"))

    def disconnect(self) -> None:
        """End the connection, as a lost network does."""
        self.cluster.run(["pkill", "-KILL", "-f", f"^ssh: {self.runtime}/"])


@pytest.fixture
def laptop(cluster: Cluster, user_dir: Path) -> Iterator[Laptop]:
    try:
        connect_nodes(cluster)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))
    laptop = Laptop(cluster, user_dir)
    laptop.set_up()
    yield laptop
    laptop.disconnect()
    cluster.run(["rm", "-r", laptop.runtime])


def test_a_job_runs_there_and_its_name_is_enough_afterwards(laptop: Laptop) -> None:
    job = laptop.job(TRAINS, "work/job.yaml")
    laptop.job("first\n", "work/word")
    answer = laptop.submit(job, "--on", "there")
    run = answer["run"]
    assert answer["folder"].startswith(str(laptop.there / "runs"))

    assert laptop.launch("watch", run).returncode == 0
    assert laptop.status(run)["state"] == "COMPLETED"
    log = laptop.launch("logs", run, "--node", "0").stdout
    assert f"{laptop.there}/" in log
    assert log.splitlines()[-1] == "first"
    done = laptop.launch("report", run, "-o", "run.html")
    assert done.returncode == 0, done.stderr
    assert run in (laptop.home / "run.html").read_text()
    assert not (laptop.home / "own").exists()

    (listed,) = json.loads(laptop.launch("list", "--json").stdout)
    assert (listed["run"], listed["state"], listed["cluster"]) == (run, "COMPLETED", "there")
    assert abs(listed["as_of"] - time.time()) < PATIENCE_S
    laptop.job("second\n", "work/word")
    assert laptop.launch("submit", "work/job.yaml", "--on=there", "--wait").returncode == 0
    assert len(list((laptop.there / "code").iterdir())) == 2


def test_a_cluster_that_does_not_answer_is_listed_with_what_it_said_last(laptop: Laptop) -> None:
    run = laptop.submit(laptop.job(TRAINS), "--on", "there")["run"]
    laptop.launch("list")
    record = laptop.home / "state/hpc-launch/clusters/there.json"
    laptop.job(record.read_text().replace('"n1"', '"nowhere.invalid"'), str(record.relative_to(laptop.home)))
    done = laptop.launch("list")
    assert re.search(r"there, as of [\d-]+ [\d:]+; it does not answer now: ", done.stdout)
    assert run in done.stdout
    assert laptop.launch("status", run).returncode == 4


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "x", "--on", "mars"], 2, "no cluster is called 'mars'"),
        (["status", "nothing", "--on", "there"], 2, "no run is called 'nothing'"),
        (["submit", "missing.yaml", "--on", "there"], 3, "missing.yaml"),
        (["clusters", "add", "../there"], 2, "cannot be the name of a cluster"),
        (["clusters", "add", "x", "--host", "-oProxyCommand=touch owned"], 2, "cannot be the name of a cluster"),
    ],
)
def test_mistakes(laptop: Laptop, words: list[str], code: int, said: str) -> None:
    done = laptop.launch(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not (laptop.home / "owned").exists()


@pytest.mark.parametrize("rounds", [2, prove(200, also=pytest.mark.timeout(7200))])
def test_a_submission_whose_connection_drops_is_done_once(laptop: Laptop, rounds: int) -> None:
    job = laptop.job(TRAINS, "work/job.yaml")
    laptop.job("word\n", "work/word")
    chance = random.Random(4)
    for number in range(rounds):
        laptop.job(f"{number}\n", "work/word")
        before = len(laptop.jobs_there())
        process = laptop.popen("submit", job, "--on", "there", "--json")
        time.sleep(chance.uniform(0.1, 2.5))
        laptop.disconnect()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert len(laptop.jobs_there()) == before + 1, err
        assert Path(json.loads(out)["folder"]).parent == laptop.there / "runs"
        print(f"cut {number + 1}: {'noticed' if 'connecting again' in err else 'not noticed'}")


def test_output_goes_on_where_the_connection_was_lost(laptop: Laptop) -> None:
    counts = "for i in $(seq 40); do echo step $i/40; sleep 0.3; done"
    job = laptop.job(TRAINS.replace("echo step 1/1; echo $PWD; cat word", counts))
    run = laptop.submit(job, "--on", "there")["run"]
    process = laptop.popen("logs", run, "-f", "--node", "0")
    log = laptop.there / "runs" / run / "attempts" / "001" / "logs" / "node-0.log"
    wait_until(lambda: log.exists() and "step 10/" in log.read_text())
    laptop.disconnect()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "connecting again" in err
    assert [line for line in out.splitlines() if line.startswith("step")] == [f"step {i}/40" for i in range(1, 41)]


def test_a_copy_leaves_out_what_git_ignores_and_what_is_private(laptop: Laptop) -> None:
    for name in ("job.yaml", ".gitignore", "data/large", "src/new.py", ".env"):
        laptop.job(TRAINS if name == "job.yaml" else "data\n", f"tree/{name}")
    for words in (["init", "-q"], ["add", "job.yaml", ".gitignore"]):
        laptop.cluster.run(["git", "-C", str(laptop.home / "tree"), *words], check=True)
    laptop.submit(str(laptop.home / "tree" / "job.yaml"), "--on", "there")
    (copy,) = (laptop.there / "code").iterdir()
    assert sorted(str(one.relative_to(copy)) for one in copy.rglob("*") if one.is_file()) == [
        ".gitignore",
        "job.yaml",
        "src/new.py",
    ]


PAM = """\
auth required pam_exec.so expose_authtok quiet {check}
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
SECOND_FACTOR = """\
HostKey {root}/ssh/host_key
Port 2222
PidFile none
UsePAM yes
AuthenticationMethods keyboard-interactive
StrictModes no
UseDNS no
"""


@pytest.fixture
def second_factor(laptop: Laptop) -> Iterator[Path]:
    """An sshd on n1 that asks for a code; the file that its answers go to."""
    cluster, folder = laptop.cluster, laptop.home / "factor"
    cluster.run(["mkdir", folder], check=True)
    answers = folder / "answers"
    for name, text in {
        "check": f'#!/bin/sh\ncode=$(tr -d "\\0")\necho "$code" >>{answers}\n[ "$code" = 4711 ]\n',
        "askpass": "#!/bin/sh\necho 4711\n",
        "pam": PAM.format(check=folder / "check"),
        "sshd_config": SECOND_FACTOR.format(root=cluster.layout.root),
    }.items():
        cluster.write(folder / name, text, 0o755)
    start = f"mount --bind {folder}/pam /etc/pam.d/sshd && exec /usr/sbin/sshd -f {folder}/sshd_config -D"
    sshd = cluster.popen(["unshare", "--mount", "sh", "-c", start], node="n1", user="root")
    config = cluster.home / ".ssh" / "config"
    cluster.write(
        config, "Host second\nHostName n1\nPort 2222\nHostKeyAlias n1\nPreferredAuthentications keyboard-interactive\n"
    )
    wait_until(lambda: cluster.run(["bash", "-c", ": </dev/tcp/n1/2222"]).returncode == 0)
    yield answers
    cluster.run(["rm", config], check=True)
    sshd.terminate()
    sshd.communicate()


@pytest.mark.prove
def test_a_second_factor_is_asked_for_once(laptop: Laptop, second_factor: Path) -> None:
    laptop.set_up("second")
    asks = {"SSH_ASKPASS": str(second_factor.with_name("askpass")), "SSH_ASKPASS_REQUIRE": "force"}
    job = laptop.job(TRAINS)
    laptop.job("word\n", "word")
    done = laptop.launch("submit", job, "--on", "there", "--json", env=asks)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    for words in (["status"], ["watch"], ["logs"], ["why"], ["status"], ["logs"], ["report"], ["cancel"], ["status"]):
        assert laptop.launch(*words, run, env=asks).returncode in (0, 1)
    assert second_factor.read_text().split() == ["4711"]


@pytest.mark.prove
def test_a_work_tree_that_is_there_is_not_sent_again(laptop: Laptop) -> None:
    job = laptop.job(TRAINS, "work/job.yaml")
    laptop.job("word\n", "work/word")
    laptop.cluster.run(["sh", "-c", "for i in $(seq 100); do head -c 1m /dev/urandom >work/$i; done"], cwd=laptop.home)
    first, second = (laptop.launch("submit", job, "--on", "there", "--verbose") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert "+ rsync" in first.stderr
    assert "+ rsync" not in second.stderr
    assert len(laptop.jobs_there()) == 2


@pytest.mark.prove
def test_a_cluster_is_set_up_from_nothing(laptop: Laptop) -> None:
    wheels = laptop.cluster.scratch / "wheels"
    for what in (str(REPOSITORY), "hatchling"):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels), what]
        subprocess.run(command, check=True, env={**os.environ, "PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt")})
    laptop.cluster.run(["chmod", "-R", "a+rX", str(wheels)], user="root", check=True)
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}

    done = laptop.launch("clusters", "add", "other", "--host", "n1", env=pip)
    assert done.returncode == 0, done.stderr
    _, other = sorted(json.loads(laptop.launch("clusters", "list", "--json").stdout), key=lambda one: one["added"])
    assert (other["name"], other["host"], other["connected"]) == ("other", "n1", True)
    laptop.job("word\n", "work/word")
    job = laptop.job(TRAINS, "work/job.yaml")
    done = laptop.launch("submit", job, "--on", "other", "--site", "local", "--wait")
    assert done.returncode == 0, done.stderr
    assert "is there already" in laptop.launch("clusters", "add", "other", "--host", "n1", env=pip).stderr
