"""Runs that fail on a real Slurm with nobody there: what follows, how often, and that it is done exactly once.

Each training writes a line into a file, so that what really ran is counted, whatever hpc-launch says.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.user import User

STALE = "OSError: [Errno 116] Stale file handle: /scratch/corpus/part-7.bin"


def job(user: User, body: str, **more: str) -> str:
    """A training of one node that says that it ran, then does `body`; $n is the number of its attempt."""
    lines = [f"{key}: {value}" for key, value in {"retry": "{backoff: 1s}", **more}.items()]
    script = f"echo $SLURM_JOB_ID >>{user.marker}; n=$HPC_LAUNCH_ATTEMPT; {body}"
    command = f"command: [sh, -c, {json.dumps(script)}]"
    return "\n".join(["name: again", "launcher: srun", "cpus_per_node: 1", command, *lines, ""])


def fails_once(text: str = STALE) -> str:
    return f'[ "$n" -gt 1 ] || {{ echo "{text}"; exit 1; }}'


def ended(folder: Path, number: int) -> dict[str, Any] | None:
    """The end record of an attempt, read from its file: no hpc-launch command helps the run along."""
    path = folder / "attempts" / f"{number:03d}" / "end.json"
    return json.loads(path.read_text()) if path.exists() else None


def attempts(status: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["state"], one["class"], one["verdict"]) for one in status["attempts"]]


def test_nobody_is_there_and_the_job_itself_sees_to_the_next_attempt(user: User) -> None:
    run = user.submit(job(user, fails_once()))
    folder = Path(run["folder"])

    wait_until(lambda: ended(folder, 2) is not None, explain=lambda: f"{sorted(folder.rglob('*'))}")

    assert (ended(folder, 2) or {})["exit_code"] == 0
    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert attempts(status) == [("FAILED", "filesystem_error", "RETRY"), ("COMPLETED", "success", "NONE")]
    assert len(user.trainings()) == 2
    assert any("Stale file handle" in quote["text"] for quote in status["attempts"][0]["evidence"])


def test_a_node_that_may_not_submit_leaves_the_next_attempt_to_a_login_node(user_in_trouble: User) -> None:
    user = user_in_trouble
    refusal = "#!/bin/sh\necho '[TACC]: Job submission is not allowed from this host.'\nexit 1\n"
    refuses = user.job(refusal, "sbatch")
    user.cluster.run(["chmod", "755", refuses], check=True)
    with ExitStack() as mounts:
        for node in user.cluster.nodes:
            mounts.enter_context(user.mounted(node, "--bind", refuses, "/usr/bin/sbatch"))
        run = user.submit(job(user, fails_once(), retry="{backoff: 1s, in_allocation: 'off'}"))
        log = Path(run["folder"], "attempts", "001", "hook.log")
        wait_until(lambda: log.exists() and "[hpc-launch]" in log.read_text())
        assert "takes no jobs from this host" in log.read_text()
        assert not Path(run["folder"], "attempts", "002").exists()
        user.launch("watch", run["run"])
        status = user.status(run["run"])
    assert attempts(status) == [("FAILED", "filesystem_error", "RETRY"), ("COMPLETED", "success", "NONE")]


@pytest.mark.prove
@pytest.mark.slow
def test_a_chain_under_a_short_limit_goes_on_to_its_last_step(user: User) -> None:
    # It takes up the newest step, makes one a second, and leaves when it is asked to; the second time it is quicker.
    body = (
        "d=$HPC_LAUNCH_RUN_DIR/checkpoints; mkdir -p $d; s=${HPC_LAUNCH_RESUME_STEP:-0}; "
        'while [ "$s" -lt 900 ]; do [ "$n" -eq 1 ] || s=899; s=$((s + 1)); echo "step $s/900"; sleep 1; '
        '[ ! -e "$HPC_LAUNCH_STOP_FILE" ] || break; done; echo x >$d/step-$s'
    )
    text = job(
        user, body.replace("${", "$${"), queue="short", time="1",
        checkpoint=r"{signal_before: 50s, dir: '${run.dir}/checkpoints', pattern: 'step-(\d+)'}",
        progress=r"{step: 'step (\d+)/(\d+)'}",
    )  # fmt: skip
    done = user.launch("submit", user.job(text), "--wait")

    status = user.status()
    assert done.returncode == 0, (done.stdout + done.stderr, status)
    assert [(kind, verdict) for _, kind, verdict in attempts(status)] == [
        ("time_limit", "CONTINUE"),
        ("success", "NONE"),
    ]


def test_a_sentinel_looks_after_a_job_that_cannot_do_it_itself(user: User) -> None:
    user.site("", ("scheduler: slurm", "scheduler: {type: slurm, sentinel: short}"))
    run = user.submit(job(user, f"while [ ! -e $HPC_LAUNCH_RUN_DIR/go ]; do sleep 0.2; done; {fails_once()}"))
    unhooked_but_kept(user, run)
    user.cluster.run(["touch", f"{run['folder']}/go"], check=True)

    wait_until(lambda: ended(Path(run["folder"]), 2) is not None, explain=lambda: f"{user.cluster.jobs()}")

    assert (ended(Path(run["folder"]), 2) or {})["exit_code"] == 0
    assert len(user.trainings()) == 2
    log = (Path(run["folder"]) / "attempts" / "001" / "sentinel" / "batch.log").read_text()
    assert "submitted: attempt 2" in log


def unhooked_but_kept(user: User, run: dict[str, Any]) -> None:
    """Take the end hook away, but not what the sentinel calls."""
    after = Path(run["folder"]) / "after.sh"
    changed = after.read_text().replace("cd / &&", '[ "${2:-}" = --outside ] || exit 1; cd / &&')
    user.cluster.write(after, changed)


def said(folder: Path) -> str:
    """What the hooks of a run said."""
    return "".join(path.read_text() for path in sorted(folder.glob("attempts/*/*.log")))


def test_a_preempted_job_sees_to_its_next_attempt_itself(user: User) -> None:
    user.site("", ("partition: gpu\n", "partition: low\n"))
    run = user.submit(job(user, '[ "$n" -gt 1 ] || exec sleep 300'))
    folder = Path(run["folder"])
    user.until(run["run"], "RUNNING", "STARTING")

    user.cluster.run(["sbatch", "-p", "high", "--exclusive", "-N4", "-o", "/dev/null", "--wrap", "sleep 1"], check=True)

    wait_until(lambda: ended(folder, 2) is not None, explain=lambda: said(folder))
    status = user.until(run["run"], "COMPLETED", "FAILED")
    assert attempts(status) == [("PREEMPTED", "preempted", "CONTINUE"), ("COMPLETED", "success", "NONE")]
