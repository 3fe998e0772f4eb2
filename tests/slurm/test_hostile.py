"""A hundred job files with hostile values, through Submitit, sbatch and srun of a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.hostile import COUNT, hostile_jobs
from tests.marks import prove
from tests.slurm.user import User

DUMP = """\
import json, os, sys
with open(os.environ["HPC_LAUNCH_ATTEMPT_DIR"] + "/.seen", "w") as stream:
    json.dump({"words": sys.argv[1:], "env": dict(os.environ)}, stream)
os.rename(stream.name, stream.name.replace(".seen", "seen.json"))
"""


@pytest.mark.parametrize(
    "name",
    ['it\'s a "$(trap)"; #1', "żółć 日本 👩", "a:b=c,d[1-3]*?&|<>~!", prove("-rf --help"), prove("$HOME${x}`id`")],
)
def test_run_folders_with_hostile_names(user: User, name: str) -> None:
    folder = user.home / name
    job = yaml.safe_dump({"name": "x", "launcher": "srun", "cpus_per_node": 1, "command": ["printenv", "SHOWN"]})
    paths = {"run_dir": str(folder).replace("${", "$${"), "env": {"SHOWN": "${run.dir}"}}
    run = user.submit(job + yaml.safe_dump(paths, allow_unicode=True))
    assert run["folder"].startswith(f"{folder}/")
    assert user.until(run["run"], "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert user.launch("logs", run["folder"], "--rank", "0").stdout.splitlines()[-1] == run["folder"]
    assert [path.name for path in folder.iterdir()] == [run["run"]]


def test_a_umask_of_002_opens_no_log(user: User) -> None:
    """A line of a teammate in it could pass for one of Slurm's, and make a failed run count as completed."""
    job = {"name": "x", "launcher": "srun", "nodes": 2, "cpus_per_node": 1, "command": ["touch", "mine"]}
    words = ["sh", "-c", 'umask 002 && exec hpc-launch submit "$0" --wait', user.job(yaml.safe_dump(job))]
    done = user.cluster.run(words, cwd=user.home, env=user.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (user.home / "mine").stat().st_mode & 0o777 == 0o664
    (folder,) = (user.home / "runs").glob("x-*")
    # Submitit's folder is open to nobody else.
    paths = [path for path in folder.rglob("*") if not path.is_symlink() and path.parent.name != "submitit"]
    assert {"batch.log", "node-0.rank-0.log", "node-1.jsonl"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o022] == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [25, prove(COUNT)])
def test_hostile_values_reach_the_training_byte_for_byte(user: User, count: int) -> None:
    dump = user.cluster.write(user.home / "it's $(a) dump.py", DUMP)
    jobs = list(hostile_jobs(count))
    files = [
        user.job(
            job.job_file(
                launcher="srun",
                cpus_per_node=1,
                command=["python", "-SE", str(dump)],
            ),
            f"{job.number}.yaml",
        )
        for job in jobs
    ]

    done = user.cluster.run(["python", "-m", "tests.slurm.submit_all", *files], cwd=REPOSITORY, env=user.env)

    assert done.returncode == 0, done.stderr
    attempts = [Path(line.rpartition(" ")[0]) / "attempts" / "001" for line in done.stdout.splitlines()]
    assert len(attempts) == count

    def missing() -> list[Path]:
        return [attempt for attempt in attempts if not (attempt / "end.json").exists()]

    wait_until(lambda: not missing(), explain=lambda: f"{missing()} {user.cluster.jobs()}", every=0.5)
    for job, attempt in zip(jobs, attempts, strict=True):
        assert json.loads((attempt / "end.json").read_text())["exit_code"] == 0, (attempt / "batch.log").read_text()
        seen = json.loads((attempt / "seen.json").read_text())
        assert seen["words"] == job.words, job.number
        assert {name: seen["env"].get(name) for name in job.env} == job.env, job.number
