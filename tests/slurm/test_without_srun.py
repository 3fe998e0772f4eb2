"""Processes that something else than srun starts: DeepSpeed over pdsh, Open MPI's and MPICH's mpirun, and TACC's ibrun.

ibrun is a stand-in, the others are real. What they start is none of Slurm's, and ends all the same.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.config import SYSTEM_PATH, USER_PATH
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.hostile import hostile_jobs
from tests.marks import prove
from tests.slurm.own_program import SLEEPS, job_of, wait_for_ranks
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt"
STANDINS = Path(__file__).parent / "standins"
SECRET = "s3cret-$HOME-value"

SITES = {
    "pdsh": "launch: {multinode: pdsh}\n",
    "openmpi": "launch: {step: mpirun}\n",
    "mpich": "launch: {step: mpirun, mpirun: hydra}\nnetwork: {master: {interface: eth0}}\n",
    "ibrun": "launch: {step: ibrun}\nnetwork: {master: {resolve: ip}}\n",
}
PROGRAMS = {"openmpi": ("mpirun.openmpi",), "mpich": ("mpirun.mpich", "hydra_pmi_proxy")}
MPI = ["openmpi", prove("ibrun"), prove("mpich")]

pytestmark = pytest.mark.torch("deepspeed")


@dataclass(frozen=True)
class Site:
    """A user whose site starts processes in one of these ways."""

    user: User
    kind: str
    path: str

    @property
    def launcher(self) -> str:
        return "deepspeed" if self.kind == "pdsh" else "srun"

    @property
    def folder(self) -> Path:
        (found,) = self.user.home.glob("runs/*/attempts/001")
        return found

    def submit(self, job: str, env: dict[str, str] | None = None) -> str:
        """Submit, and give the job's number."""
        return str(self.user.submit(job, env={"PATH": self.path, **(env or {})})["job_id"])

    def wait(self, *words: str) -> int:
        return self.user.launch("submit", *words, "--wait", env={"PATH": self.path}).returncode

    def log(self, *words: str) -> str:
        return self.user.launch("logs", "@last", *words).stdout

    def job(self, program: str, **keys: Any) -> str:
        """A job of two nodes with two processes on each."""
        return job_of(self.user, program, self.launcher, processes_per_node=2, **keys)

    def sleeps(self) -> str:
        """The number of a job all of whose processes wait for their end."""
        number = self.submit(self.job(SLEEPS))
        wait_for_ranks(self.user, 4)
        return number

    def processes(self, node: str) -> str:
        """The command lines of all processes of the user on a node."""
        return self.user.cluster.node_exec(node, ["ps", "-ww", "-u", self.user.cluster.user, "-o", "args="]).stdout


@pytest.fixture(params=[prove("pdsh"), *MPI])
def site(request: pytest.FixtureRequest, cluster: Cluster, user_dir: Path) -> Site:
    kind: str = request.param
    user = User(cluster, user_dir)
    if kind == "pdsh":
        try:
            connect_nodes(cluster)
        except ClusterUnavailable as missing:
            pytest.skip(str(missing))
    user.site(SITES[kind])
    tools = user_dir / "bin"
    tools.mkdir(mode=0o755)
    for name in PROGRAMS.get(kind, ()):
        found = shutil.which(name, path=SYSTEM_PATH)
        if found is None:
            pytest.skip(f"{name} is not installed (Debian packages: openmpi-bin mpich)")
        (tools / name.partition(".")[0]).symlink_to(found)
    folder = STANDINS if kind == "ibrun" else tools
    return Site(user, kind, f"{folder}:{USER_PATH}")


@pytest.mark.prove
@pytest.mark.slow
def test_the_example_trains_on_two_nodes(site: Site) -> None:
    name = "job-deepspeed.yaml" if site.kind == "pdsh" else "job.yaml"
    changes = [*SMALL, "--set=args.steps=10", "--set=retry.max_attempts=1", "--set=preflight=quick"]
    if site.kind == "ibrun":
        changes += ["--set", "launcher={name: torchrun, rendezvous: c10d}"]
    assert site.wait(str(EXAMPLE / name), *changes) == 0, site.log()
    status = site.user.status()
    assert (status["state"], status["progress"]["step"]) == ("COMPLETED", 10)
    assert set(re.findall(r"rank (\d) of 4 on host (n\d)", site.log())) == site.user.places(2)
    only = site.log("--rank", "3")
    assert "rank 3 of 4" in only
    assert "rank 2 of 4" not in only
    assert "node check: 2 nodes passed" in (site.folder / "batch.log").read_text()
    if site.kind == "pdsh":
        hosts = "".join(f"{node} slots=2\n" for node in site.user.nodes())
        assert (site.folder / "hostfile").read_text() == hosts


def test_variables_arguments_and_secrets_arrive_and_no_one_else_sees_them(site: Site) -> None:
    hostile = next(hostile_jobs())
    program = (
        "import json, os, sys, time\n"
        "folder, rank = os.environ['HPC_LAUNCH_ATTEMPT_DIR'], os.environ['RANK']\n"
        "with open(f'{folder}/.seen-{rank}', 'w') as stream:\n"
        "    json.dump([sys.argv[1:], dict(os.environ), os.getcwd(), os.uname().nodename], stream)\n"
        "os.rename(f'{folder}/.seen-{rank}', f'{folder}/began-{rank}')\n"
        "while not os.path.exists(folder + '/go'): time.sleep(0.1)\n"
        "print('rank', rank, 'says a word')\n"
    )
    more = {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "PYTHONPATH": "/a b:/c$d", "MLFLOW_X": 'say "$HOME"\nagain'}
    (site.user.cluster.home / ".deepspeed_env").write_text("HCA=of-the-home\n")
    secrets = {"WANDB_API_KEY": SECRET, "MLFLOW_TOKEN": SECRET}
    site.submit(site.job(program, args=hostile.words, env={**hostile.env, **more}, secrets=list(secrets)), env=secrets)
    seen_on: dict[str, str] = {}

    def begun() -> bool:
        """Also looks at what others can see meanwhile."""
        for carrier in site.user.home.glob("runs/*/attempts/001/environment"):
            assert stat.S_IMODE(carrier.stat().st_mode) == 0o600
        for node in site.user.cluster.nodes:
            seen_on[node] = seen_on.get(node, "") + site.processes(node)
        return len(list(site.user.home.glob("runs/*/attempts/001/began-*"))) == 4

    wait_until(begun, explain=site.log)
    site.user.cluster.write(site.folder / "go", "")
    assert site.user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED", site.log()
    assert "s3cret" not in "".join(seen_on.values())
    assert not (site.folder / "environment").exists()
    nodes = site.user.nodes()
    if site.kind == "pdsh":
        assert "pdsh" in seen_on[nodes[0]]
        assert "deepspeed.launcher.launch" in seen_on[nodes[1]]
    for rank in range(4):
        words, env, cwd, node = json.loads((site.folder / f"began-{rank}").read_text())
        assert words == ([f"--local_rank={rank % 2}"] if site.kind == "pdsh" else []) + hostile.words
        for name, value in {**hostile.env, **more, **secrets}.items():
            assert env.get(name, "").removesuffix(f":{site.folder.parents[1]}/hooks") == value, name
        ranks = {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        assert list(ranks.values()) == [str(rank), str(rank % 2), "4"]
        assert (str(rank), node) in site.user.places(2)
        assert env["MASTER_ADDR"] in (nodes[0], f"10.77.0.{nodes[0][1:]}")
        assert cwd == str(site.user.home)
        assert f"rank {rank} says a word" in site.log("--rank", str(rank))
    kept = [path for path in site.folder.parents[1].rglob("*") if path.is_file() and path.name[:6] != "began-"]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("site", "rank"),
    [
        ("openmpi", 3),
        prove("openmpi", 0),
        *[prove(kind, rank) for kind in ("pdsh", "ibrun", "mpich") for rank in (0, 3)],
    ],
    indirect=["site"],
)
def test_the_exit_code_of_a_failing_rank_comes_out_and_the_others_end(site: Site, rank: int) -> None:
    assert site.wait(site.job(SLEEPS + f"    if os.environ['RANK'] == '{rank}': raise SystemExit(7)\n")) == 1
    assert site.user.status()["attempts"][0]["exit_code"] == 7, site.log()
    if site.kind == "pdsh":
        assert f"rank-{rank} was the first to fail, with exit code 7" in site.log()
    site.user.nothing_left()


@pytest.mark.prove
@pytest.mark.parametrize("how", ["cancel", "killed"])
def test_a_cancelled_job_or_one_that_slurm_kills_leaves_no_process(site: Site, how: str) -> None:
    """Slurm kills what it started, as at the end of a job that does not end in time; ssh and MPI started the rest."""
    number = site.sleeps()
    if how == "cancel":
        assert site.user.launch("cancel", "@last").returncode == 0
        site.user.until("@last", "CANCELLED")
    else:
        site.user.cluster.run(["scancel", "--full", "--signal=KILL", number], check=True)
    site.user.nothing_left()


def test_a_warning_reaches_the_training(site: Site) -> None:
    site.user.cluster.run(["scancel", "--batch", "--signal=USR1", site.sleeps()], check=True)
    assert site.user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED"
    for rank in range(4):
        assert f"rank {rank} was warned" in site.log()


@pytest.mark.prove
@pytest.mark.parametrize("site", ["pdsh"], indirect=True)
def test_a_node_that_cannot_be_reached_is_named(site: Site) -> None:
    site.user.cluster.write(site.user.home / "bin" / "ssh", "#!/bin/sh\necho no way to $* >&2\nexit 255\n", 0o755)
    assert site.wait(site.job(SLEEPS, env={"PATH": f"{site.user.home}/bin:/usr/bin:/bin"})) == 1
    assert "no way to" in site.log()


@pytest.mark.parametrize("site", ["ibrun"], indirect=True)
def test_a_launcher_that_puts_ranks_elsewhere_is_found_out(site: Site) -> None:
    tools = site.user.home / "bin"
    swapped = (STANDINS / "ibrun").read_text().replace("PMI_RANK=$SLURM_PROCID", "PMI_RANK=$((3 - SLURM_PROCID))")
    site.user.cluster.write(tools / "ibrun", swapped, 0o755)
    assert Site(site.user, site.kind, f"{tools}:{site.path}").wait(site.job(SLEEPS)) == 1
    assert "ranks do not follow the order of the nodes" in site.log()


@pytest.mark.prove
def test_ibrun_starts_the_node_check(user_in_trouble: User) -> None:
    user = user_in_trouble
    user.site(SITES["ibrun"])
    site = Site(user, "ibrun", f"{STANDINS}:{USER_PATH}")
    trains = site.job("print('trained')\n", preflight="quick")
    assert site.wait(trains) == 0, site.log()
    assert "trained" in site.log()
    record = json.loads((site.folder / "node-check.json").read_text())
    assert (record["nodes"], record["bad"], record["common"]) == (2, [], []), record
    assert "node check: 2 nodes passed" in (site.folder / "batch.log").read_text()
    assert not (site.folder / "environment").exists()

    with user.little_shared_memory("n1"):
        assert site.wait(trains) == 1
    only = user.status()["attempts"][0]
    assert only["class"] == "node_failure", only
    assert "/dev/shm has 1 MiB left" in str(only["evidence"])
    assert "trained" not in site.log()
