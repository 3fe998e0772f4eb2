"""DeepSpeed over pdsh, with a real sshd on each node: what ssh starts is none of Slurm's, and ends all the same."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.hostile import hostile_jobs
from tests.marks import prove
from tests.slurm.two_nodes import SLEEPS, job_of_two_nodes, wait_for_ranks
from tests.slurm.user import User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job-deepspeed.yaml"
SECRET = "s3cret-$HOME-value"

pytestmark = pytest.mark.torch("deepspeed")


@pytest.fixture
def user(cluster: Cluster, user_dir: Path) -> User:
    try:
        connect_nodes(cluster)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))
    user = User(cluster, user_dir)
    user.site("launch: {multinode: pdsh}\n")
    return user


def folder(user: User) -> Path:
    (found,) = user.home.glob("runs/*/attempts/001")
    return found


def processes(user: User, node: str) -> str:
    """The command lines of all processes of the user on a node."""
    return user.cluster.node_exec(node, ["ps", "-ww", "-u", user.cluster.user, "-o", "args="]).stdout


def nothing_left(user: User) -> None:
    """Whether all that the run started ends soon after it, on every node; nothing of another test counts."""
    for node in ("n1", "n2"):
        wait_until(
            lambda node=node: str(user.home) not in processes(user, node),  # type: ignore[misc]
            explain=lambda node=node: processes(user, node),  # type: ignore[misc]
            every=0.5,
        )


@pytest.mark.prove
@pytest.mark.slow
def test_the_example_trains_over_two_nodes(user: User) -> None:
    sets = ["--set", "args.steps=10", "--set", "retry.max_attempts=1", "--set", "preflight=quick"]
    done = user.launch("submit", str(EXAMPLE), "--wait", *sets)
    assert done.returncode == 0, done.stdout + done.stderr + user.launch("logs", "@last").stdout
    assert "node check: 2 nodes passed" in (folder(user) / "batch.log").read_text()
    status = user.status()
    assert (status["state"], status["progress"]["step"]) == ("COMPLETED", 10)
    log = user.launch("logs", "@last").stdout
    first, second = user.nodes()
    assert set(re.findall(r"rank (\d) of 4 on host (n\d)", log)) == user.places(2)
    only = user.launch("logs", "@last", "--rank", "3").stdout
    assert "rank 3 of 4" in only
    assert "rank 2 of 4" not in only
    assert (folder(user) / "hostfile").read_text() == f"{first} slots=2\n{second} slots=2\n"


def test_variables_arguments_and_secrets_arrive_and_no_one_else_sees_them(user: User) -> None:
    hostile = next(hostile_jobs())
    program = (
        "import json, os, sys, time\n"
        "folder = os.environ['HPC_LAUNCH_ATTEMPT_DIR']\n"
        "rank = os.environ['RANK']\n"
        "with open(f'{folder}/.seen-{rank}', 'w') as stream:\n"
        "    json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], stream)\n"
        "os.rename(f'{folder}/.seen-{rank}', f'{folder}/began-{rank}')\n"
        "while not os.path.exists(folder + '/go'): time.sleep(0.1)\n"
    )
    more = {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "PYTHONPATH": "/a b:/c$d", "MLFLOW_X": 'say "$HOME"\nagain'}
    (user.cluster.home / ".deepspeed_env").write_text("HCA=of-the-home\n")
    secrets = {"WANDB_API_KEY": SECRET, "MLFLOW_TOKEN": SECRET}
    wanted = {"args": hostile.words, "env": {**hostile.env, **more}, "secrets": list(secrets)}
    file = job_of_two_nodes(user, program, "deepspeed", **wanted)
    assert user.launch("submit", file, env=secrets).returncode == 0
    seen_on: dict[str, str] = {}

    def begun() -> bool:
        """Also looks at what others can see meanwhile."""
        ranks = len(list(user.home.glob("runs/*/attempts/001/began-*")))
        for carrier in user.home.glob("runs/*/attempts/001/environment"):
            assert stat.S_IMODE(carrier.stat().st_mode) == 0o600
        for node in user.cluster.nodes:
            seen_on[node] = seen_on.get(node, "") + processes(user, node)
        return ranks == 4

    wait_until(begun, explain=lambda: user.launch("logs", "@last").stdout)
    attempt = folder(user)
    user.cluster.write(attempt / "go", "")
    first, second = user.nodes()
    assert "pdsh" in seen_on[first]
    assert "deepspeed.launcher.launch" in seen_on[second]
    assert SECRET not in "".join(seen_on.values())
    assert "s3cret" not in "".join(seen_on.values())
    assert user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED", user.launch("logs", "@last").stdout
    assert not (attempt / "environment").exists()
    for rank in range(4):
        words, env, cwd = json.loads((attempt / f"began-{rank}").read_text())
        assert words[0] == f"--local_rank={rank % 2}"
        assert words[1:] == hostile.words
        for name, value in {**hostile.env, **more, **secrets}.items():
            assert env.get(name, "").removesuffix(f":{attempt.parents[1]}/hooks") == value, name
        assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == (str(rank), "4", first)
        assert cwd == str(user.home)
    kept = [path for path in attempt.parents[1].rglob("*") if path.is_file() and path.name[:6] != "began-"]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("rank", [prove(0), 3])
def test_the_exit_code_of_a_failing_rank_comes_out_and_the_others_end(user: User, rank: int) -> None:
    program = SLEEPS + f"    if os.environ['RANK'] == '{rank}': raise SystemExit(7)\n"
    done = user.launch("submit", job_of_two_nodes(user, program, "deepspeed"), "--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    assert user.status()["attempts"][0]["exit_code"] == 7
    assert f"rank-{rank} was the first to fail, with exit code 7" in user.launch("logs", "@last").stdout
    nothing_left(user)


@pytest.mark.parametrize(
    "victim",
    [
        prove("a program.py --local_rank=1"),
        prove("deepspeed.launcher.launch"),
        prove("deepspeed.launcher.runner"),
    ],
)
def test_a_killed_process_is_a_failure(user: User, victim: str) -> None:
    assert user.launch("submit", job_of_two_nodes(user, SLEEPS, "deepspeed")).returncode == 0
    wait_for_ranks(user, 4)
    first, second = user.nodes()
    node = first if victim.endswith("runner") else second
    killed = user.cluster.node_exec(node, ["pkill", "-KILL", "-u", user.cluster.user, "-f", f"python.*{victim}"])
    assert killed.returncode == 0
    assert user.until("@last", "FAILED", "COMPLETED")["state"] == "FAILED"
    nothing_left(user)


@pytest.mark.prove
def test_cancel_leaves_no_process(user: User) -> None:
    assert user.launch("submit", job_of_two_nodes(user, SLEEPS, "deepspeed")).returncode == 0
    wait_for_ranks(user, 4)
    assert user.launch("cancel", "@last").returncode == 0
    user.until("@last", "CANCELLED")
    nothing_left(user)


@pytest.mark.prove
def test_a_batch_shell_that_is_killed_takes_the_nodes_with_it(user: User) -> None:
    """As at the end of a job that does not end in time: Slurm kills what it started, and ssh started the rest."""
    submitted = user.launch("submit", job_of_two_nodes(user, SLEEPS, "deepspeed"), "--json")
    wait_for_ranks(user, 4)
    user.cluster.run(["scancel", "--full", "--signal=KILL", json.loads(submitted.stdout)["job_id"]], check=True)
    nothing_left(user)


@pytest.mark.prove
def test_a_warning_reaches_the_training(user: User) -> None:
    submitted = user.launch("submit", job_of_two_nodes(user, SLEEPS, "deepspeed"), "--json")
    wait_for_ranks(user, 4)
    user.cluster.run(["scancel", "--batch", "--signal=USR1", json.loads(submitted.stdout)["job_id"]], check=True)
    assert user.until("@last", "COMPLETED", "FAILED")["state"] == "COMPLETED"
    log = user.launch("logs", "@last").stdout
    for rank in range(4):
        assert f"rank {rank} was warned" in log


@pytest.mark.prove
def test_a_node_that_cannot_be_reached_is_named(user: User) -> None:
    wrong = user.cluster.write(user.home / "no ssh", "#!/bin/sh\necho no way to $* >&2\nexit 255\n", 0o755)
    tools = user.home / "bin"
    tools.mkdir(mode=0o755)
    wrong.rename(tools / "ssh")
    file = job_of_two_nodes(user, SLEEPS, "deepspeed", env={"PATH": f"{tools}:/usr/bin:/bin"})
    done = user.launch("submit", file, "--wait", timeout=400)
    assert done.returncode == 1
    assert "no way to" in user.launch("logs", "@last").stdout
