"""`hpc-launch run`: the same job inside an allocation that one already has."""

from __future__ import annotations

from tests.slurm.user import User

JOB = (
    "name: inside\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\n"
    "command: sh -c 'echo rank $RANK of $WORLD_SIZE in job $SLURM_JOB_ID'\n"
)


def test_twice_in_one_allocation(user: User) -> None:
    job = user.job(JOB)
    script = f"hpc-launch run {job} && hpc-launch run {job} --set name=again"
    done = user.cluster.run(
        ["salloc", "--nodes=2", "--cpus-per-task=4", "bash", "-c", script], cwd=user.home, env=user.env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (user.launch("logs", name).stdout for name in ("inside", "again"))
    for rank in range(4):
        assert f"rank {rank} of 4 in job" in first
        assert f"rank {rank} of 4 in job" in second
    jobs = {line.rsplit(" ", 1)[1] for line in (first + second).splitlines() if " in job " in line}
    assert len(jobs) == 1, "both in the same allocation"
    assert user.status("inside")["state"] == user.status("again")["state"] == "COMPLETED"


def test_an_allocation_of_another_size(user: User) -> None:
    done = user.cluster.run(
        ["salloc", "--cpus-per-task=2", "hpc-launch", "run", user.job(JOB)], cwd=user.home, env=user.env
    )
    assert done.returncode == 1
    assert "expected 2 nodes, got 1" in user.launch("logs", "@last").stdout


def test_without_an_allocation(user: User) -> None:
    done = user.launch("run", user.job(JOB))
    assert done.returncode == 2
    assert "salloc" in done.stderr
    assert not (user.home / "runs").exists()
