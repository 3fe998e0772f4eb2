"""Nodes that an MPI starts instead of srun: Open MPI's mpirun and MPICH's for real, TACC's ibrun by a stand-in."""

from __future__ import annotations

import json
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.config import SYSTEM_PATH, user_path
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.hostile import hostile_jobs
from tests.marks import prove
from tests.slurm.two_nodes import SLEEPS, job_of_two_nodes, wait_for_ranks
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job.yaml"
STANDINS = Path(__file__).parent / "standins"
SECRET = "s3cret-$HOME-value"

SITES = {
    "openmpi": "launch: {step: mpirun}\n",
    "mpich": "launch: {step: mpirun, mpirun: hydra}\nnetwork: {master: {interface: eth0}}\n",
    "ibrun": "launch: {step: ibrun}\nnetwork: {master: {resolve: ip}}\n",
}
PROGRAMS = {"openmpi": ("mpirun.openmpi",), "mpich": ("mpirun.mpich", "hydra_pmi_proxy")}


@dataclass(frozen=True)
class Site:
    """A user whose site starts nodes in one of the three ways."""

    user: User
    path: str

    def submit(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Submit, and give the job's number."""
        done = self.user.launch("submit", *words, "--json", env={"PATH": self.path, **(env or {})})
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["job_id"])

    def wait(self, *words: str) -> int:
        return self.user.launch("submit", *words, "--wait", env={"PATH": self.path}).returncode

    def log(self, *words: str) -> str:
        return self.user.launch("logs", "@last", *words).stdout

    def job(self, program: str, **keys: object) -> str:
        """Each process is started by the site."""
        return job_of_two_nodes(self.user, program, "srun", **keys)

    def nothing_left(self) -> None:
        """Whether all that the run started ends soon after it."""
        words = ["pgrep", "-f", str(self.user.home)]
        for node in self.user.cluster.nodes:
            wait_until(lambda node=node: self.user.cluster.node_exec(node, words).returncode != 0, every=0.5)  # type: ignore[misc]


@pytest.fixture(params=["openmpi", prove("ibrun"), prove("mpich")])
def site(request: pytest.FixtureRequest, cluster: Cluster, user_dir: Path) -> Site:
    kind: str = request.param
    user = User(cluster, user_dir)
    user.site(SITES[kind])
    tools = user_dir / "bin"
    tools.mkdir(mode=0o755)
    for name in PROGRAMS.get(kind, ()):
        found = shutil.which(name, path=SYSTEM_PATH)
        if found is None:
            pytest.skip(f"{name} is not installed (Debian packages: openmpi-bin mpich)")
        (tools / name.partition(".")[0]).symlink_to(found)
    folder = STANDINS if kind == "ibrun" else tools
    return Site(user, f"{folder}:{user_path(cluster.settings)}")


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.slow
def test_torchrun_trains_on_two_nodes(site: Site, request: pytest.FixtureRequest) -> None:
    changes = [*SMALL, "--set", "args.steps=10", "--set", "retry.max_attempts=1"]
    if "ibrun" in request.node.name:
        changes += ["--set", "launcher={name: torchrun, rendezvous: c10d}"]
    assert site.wait(str(EXAMPLE), *changes) == 0, site.log()
    status = site.user.status()
    assert (status["state"], status["progress"]["step"]) == ("COMPLETED", 10)
    assert set(re.findall(r"rank (\d) of 4 on host (n\d)", site.log())) == site.user.places(2)
    only = site.log("--rank", "3")
    assert "rank 3 of 4" in only
    assert "rank 2 of 4" not in only


def test_each_process_gets_its_rank_and_the_environment(site: Site) -> None:
    hostile = next(hostile_jobs())
    program = (
        "import json, os, sys, time\n"
        "folder, rank = os.environ['HPC_LAUNCH_ATTEMPT_DIR'], os.environ['RANK']\n"
        "with open(f'{folder}/.seen-{rank}', 'w') as stream:\n"
        "    json.dump([sys.argv[1:], dict(os.environ), os.getcwd(), os.uname().nodename], stream)\n"
        "os.rename(f'{folder}/.seen-{rank}', f'{folder}/began-{rank}')\n"
        "time.sleep(3)\n"
        "print('rank', rank, 'says a word')\n"
    )
    more = {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}
    file = site.job(program, args=hostile.words, env={**hostile.env, **more}, secrets=["HF_TOKEN"])
    site.submit(file, env={"HF_TOKEN": SECRET})
    seen = wait_for_ranks(site.user, 4)
    for carrier in seen[0].parent.glob("environment"):
        assert stat.S_IMODE(carrier.stat().st_mode) == 0o600
    assert site.user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED", site.log()
    assert not (seen[0].parent / "environment").exists()
    first, places = site.user.nodes()[0], site.user.places(2)
    for rank, path in enumerate(seen):
        words, env, cwd, node = json.loads(path.read_text())
        assert words == hostile.words
        for name, value in {**hostile.env, **more, "HF_TOKEN": SECRET}.items():
            assert env.get(name) == value, name
        ranks = {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")}
        assert list(ranks.values()) == [str(rank), str(rank % 2), "4", "2", str(rank // 2)]
        assert (str(rank), node) in places
        assert env["MASTER_ADDR"] in (first, f"10.77.0.{first[1:]}")
        assert cwd == str(site.user.home)
        assert f"rank {rank} says a word" in site.log("--rank", str(rank))
    for path in seen[0].parent.parent.parent.rglob("*"):
        assert path.name.startswith("began-") or not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize("end", ["raise SystemExit(7)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_fails_ends_the_run(site: Site, end: str) -> None:
    program = SLEEPS + f"    if os.environ['RANK'] == '2': {end}\n"
    assert site.wait(site.job(program)) == 1
    assert site.user.status()["attempts"][0]["exit_code"] == (7 if "7" in end else 137), site.log()
    site.nothing_left()


@pytest.mark.prove
def test_cancel_leaves_no_process(site: Site) -> None:
    site.submit(site.job(SLEEPS))
    wait_for_ranks(site.user, 4)
    assert site.user.launch("cancel", "@last").returncode == 0
    site.user.until("@last", "CANCELLED")
    site.nothing_left()


def test_a_warning_reaches_the_training(site: Site) -> None:
    number = site.submit(site.job(SLEEPS))
    wait_for_ranks(site.user, 4)
    site.user.cluster.run(["scancel", "--batch", "--signal=USR1", number], check=True)
    assert site.user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED"
    for rank in range(4):
        assert f"rank {rank} was warned" in site.log()


@pytest.mark.parametrize("site", ["ibrun"], indirect=True)
def test_a_launcher_that_puts_ranks_elsewhere_is_found_out(site: Site) -> None:
    tools = site.user.home / "bin"
    swapped = (STANDINS / "ibrun").read_text().replace("PMI_RANK=$SLURM_PROCID", "PMI_RANK=$((3 - SLURM_PROCID))")
    site.user.cluster.write(tools / "ibrun", swapped, 0o755)
    assert Site(site.user, f"{tools}:{site.path}").wait(site.job(SLEEPS)) == 1
    assert "ranks do not follow the order of the nodes" in site.log()


def test_ibrun_starts_the_node_check(user_in_trouble: User) -> None:
    user, cluster = user_in_trouble, user_in_trouble.cluster
    user.site(SITES["ibrun"])
    site = Site(user, f"{STANDINS}:{user_path(cluster.settings)}")
    trains = site.job("print('trained')\n", preflight="quick")
    assert site.wait(trains) == 0, site.log()
    assert "trained" in site.log()
    attempt = next(user.home.glob("runs/*/attempts/001"))
    record = json.loads((attempt / "node-check.json").read_text())
    assert (record["nodes"], record["bad"], record["common"]) == (2, [], []), (
        attempt / "agent" / "check.log"
    ).read_text()
    assert "node check: 2 nodes passed" in (attempt / "batch.log").read_text()
    assert not (attempt / "environment").exists()

    cluster.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"], user="root", node="n1", check=True)
    try:
        assert site.wait(trains) == 1
    finally:
        cluster.run(["umount", "/dev/shm"], user="root", node="n1", check=True)
    only = user.status()["attempts"][0]
    assert only["class"] == "node_failure", only
    assert "/dev/shm has 1 MiB left" in str(only["evidence"])
    assert "trained" not in site.log()
