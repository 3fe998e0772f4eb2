"""The newest whole checkpoint: the job's own bash and the package read the same from the same folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.runs.checkpoint_files import near_miss, newest_checkpoint
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import plan_record
from hpc_launch.script.parts import MARKER, part
from tests.agent.program import archive

WHOLE = b"PK\x03\x04" + b"weights" * 9 + b"PK\x05\x06" + b"\0" * 18
TORN = WHOLE[:-7]
STEPS = {"pattern": r"step-(\d+)"}
HUGGING = {"format": "huggingface"}
DEEPSPEED = {"format": "deepspeed"}
LIGHTNING = {"format": "lightning"}
PLAIN_FILE = {"pattern": r"last\.pt"}
ANY_STEP = {"pattern": "step-(.*)"}
ANY_LATEST = {"pattern": "step-(.*)", "latest": "latest"}
PARTS = {"pattern": r"step-(\d+)", "complete": ["meta", "part_*.pt", "rng/*"]}

Files = dict[str, bytes]

CASES: list[tuple[dict[str, Any], Files, str | None, int | None]] = [
    (STEPS, {}, None, None),
    (STEPS, {"step-9/a.pt": WHOLE, "step-10/a.pt": WHOLE}, "step-10", 10),
    (STEPS, {"step-000010/a.pt": WHOLE, "step-000009/a.pt": WHOLE}, "step-000010", 10),
    (STEPS, {"step-9/a.pt": WHOLE, "step-10/a.pt": TORN}, "step-9", 9),
    (STEPS, {"step-9/a.pt": TORN}, None, None),
    (STEPS, {"step-9/a": b"", "step-10.tmp/a": b"x", ".step-11/a": b"x", "mystep-12/a": b"x"}, "step-9", 9),
    (STEPS, {"step-9/deep/er/a.pt": TORN, "step-8/deep/er/a.pt": WHOLE}, "step-8", 8),
    (STEPS, {"step-8/a.pt": WHOLE, "step-10/": b""}, "step-8", 8),
    (STEPS, {"step-8/a b\n'c.pt": WHOLE, "step-9/a b\n'c.pt": TORN}, "step-8", 8),
    (STEPS, {"step-8/a": b"PK\x03\x04"}, None, None),
    (STEPS, {"step-123456789012345678901/a": b"x", "step-8/a": b"x"}, "step-8", 8),
    (STEPS, {"step-008/a": b"x", "step-09/a": b"x"}, "step-09", 9),
    (HUGGING, {"checkpoint-5/trainer_state.json": b"{}", "checkpoint-10/model.safetensors": b"x"}, "checkpoint-5", 5),
    (HUGGING, {"checkpoint-5/trainer_state.json": b"{}", "checkpoint-10/trainer_state.json": b""}, "checkpoint-5", 5),
    (DEEPSPEED, {"latest": b"global_step4", "global_step4/m.pt": WHOLE, "global_step8/m.pt": WHOLE}, "global_step4", 4),
    (DEEPSPEED, {"latest": b"global_step8\n", "global_step4/m": WHOLE, "global_step8/m": TORN}, "global_step4", 4),
    (DEEPSPEED, {"global_step4/m.pt": WHOLE}, None, None),
    (DEEPSPEED, {"latest": b"junk", "global_step4/m.pt": WHOLE}, None, None),
    (LIGHTNING, {"epoch=0-step=9.ckpt": WHOLE, "epoch=1-step=12.ckpt": TORN}, "epoch=0-step=9.ckpt", 9),
    (LIGHTNING, {"epoch=0-step=9.ckpt": WHOLE, "epoch=0-step=9-v1.ckpt": WHOLE}, "epoch=0-step=9.ckpt", 9),
    (ANY_STEP, {"step-0+a[$(touch PWNED)]/a": WHOLE, "step-5/a": WHOLE, "step-x/a": WHOLE}, "step-5", 5),
    (ANY_LATEST, {"latest": b"step-0+a[$(touch PWNED)]", "step-4/a": WHOLE}, None, None),
    (ANY_LATEST, {"latest": b"step-8", "step-4/a": WHOLE, "step-a[$(touch PWNED)]/a": WHOLE}, "step-4", 4),
    (PLAIN_FILE, {"last.pt": WHOLE, "lastXpt": WHOLE}, "last.pt", None),
    (PLAIN_FILE, {"last.pt": TORN}, None, None),
    (PARTS, {"step-1/meta": b"1", "step-1/part_0.pt": WHOLE, "step-1/rng/0": b"1"}, "step-1", 1),
    (PARTS, {"step-1/meta": b"1", "step-1/part_0.pt": WHOLE, "step-1/rng/a/0": b"1"}, None, None),
    (PARTS, {"step-1/meta": b"", "step-1/part_0.pt": WHOLE, "step-1/rng/0": b"1"}, None, None),
    (PARTS, {"step-1/meta": b"1", "step-1/part_.pt": b"", "step-1/part_1.pt": b"1", "step-1/rng/0": b"1"}, "step-1", 1),
]


@pytest.mark.parametrize(("rule", "files", "name", "step"), CASES)
def test_the_job_and_the_package_choose_the_same_checkpoint(
    rule: dict[str, Any], files: Files, name: str | None, step: int | None, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "it's a run")
    folder = run.path / "ckpt $x"
    for at, (file, content) in enumerate(files.items()):
        path = folder / file
        if file.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1000 + at, 1000 + at))
    script, plan = planned(tmp_path, {**rule, "dir": "${run.dir}/ckpt $x"})
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).plan.write_text(json.dumps(plan))

    found = newest_checkpoint(run)

    chosen = None if found is None else (found.path.relative_to(folder).as_posix(), found.step)
    assert chosen == (None if name is None else (name, step))
    assert bash(script, run.path) == (str(folder / name) if name else "", "" if step is None else str(step))
    assert not list(tmp_path.rglob("PWNED"))


def test_without_a_rule_there_is_no_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert newest_checkpoint(run) is None
    run.attempt(1).path.mkdir(parents=True)
    for junk in ("{", "[]", '{"checkpoint": 3}', '{"checkpoint": {"dir": [], "pattern": "("}}', '{"checkpoint": null}'):
        run.attempt(1).plan.write_text(junk)
        assert newest_checkpoint(run) is None


@pytest.mark.parametrize(
    ("names", "missed"),
    [
        (["step-5.pt", "step-20.pt"], "step-20.pt"),
        (["step-5.pt", "step-20.pt.tmp", ".step-30.pt"], "step-5.pt"),
        (["notes.txt", "step-5.tmp"], None),
        (["checkpoint_10.pt", "checkpoint_20.pt", "log.txt"], "checkpoint_20.pt"),
        (["step-5", "step-20.pt"], None),
        ([], None),
    ],
)
def test_a_name_that_the_pattern_fits_in_part_is_told(names: list[str], missed: str | None, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    _, plan = planned(tmp_path, {**STEPS, "dir": "${run.dir}/saved"})
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).plan.write_text(json.dumps(plan))
    (tmp_path / "saved").mkdir()
    for at, name in enumerate(names):
        (tmp_path / "saved" / name).write_bytes(b"text" if name.endswith(".txt") else WHOLE)
        os.utime(tmp_path / "saved" / name, (1000 + at, 1000 + at))

    told = near_miss(run)

    assert (told is None) is (missed is None)
    prefix = r"`checkpoint.pattern` (step-(\d+))"
    whole, other = (
        f"has to match the whole of {missed}",
        f"matches none of the files in {tmp_path}/saved, such as {missed}",
    )
    assert told is None or told in (f"{prefix} {whole}", f"{prefix} {other}")
    assert near_miss(run, since=2000) is None, "nothing was written since"


@pytest.mark.parametrize(
    ("rule", "files", "why"),
    [
        (HUGGING, ["checkpoint-5/model.bin"], "`trainer_state.json` (`checkpoint.complete`) is missing or empty"),
        (DEEPSPEED, ["global_step5/m.pt"], "`latest` (`checkpoint.latest`) does not name it"),
        (HUGGING, ["checkpoint-5/model.bin", "checkpoint-2/trainer_state.json"], None),
    ],
)
def test_a_checkpoint_that_stays_incomplete_says_why(
    rule: dict[str, Any], files: list[str], why: str | None, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)
    _, plan = planned(tmp_path, {**rule, "dir": "${run.dir}/saved"})
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).plan.write_text(json.dumps(plan))
    for name in files:
        path = tmp_path / "saved" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(WHOLE)

    told = near_miss(run)

    assert told == (None if why is None else f"{Path(files[0]).parts[0]} is incomplete: {why}")


def test_the_checkpoints_of_another_users_run_are_not_looked_at(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    run = RunFolder(tmp_path / "run")
    run.attempt(1).path.mkdir(parents=True)
    _, plan = planned(tmp_path, {"dir": str(tmp_path / "large"), "pattern": "step-(.*)"})
    run.attempt(1).plan.write_text(json.dumps(plan))
    (tmp_path / "large" / "step-1").mkdir(parents=True)
    (tmp_path / "large" / "step-1" / "model.pt").write_bytes(WHOLE)
    assert newest_checkpoint(run) is not None
    os.chown(run.path, 65534, 65534)
    assert newest_checkpoint(run) is None


def planned(folder: Path, checkpoint: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The script and the plan of a job with these checkpoints."""
    job = {"name": "x", "site": "local", "command": ["true"], "checkpoint": checkpoint}
    (folder / "job.yaml").write_text(json.dumps(job))
    ready = prepare_job(folder / "job.yaml")
    return ready.script, to_builtins(plan_record(ready.plan))


def bash(script: str, run: Path) -> tuple[str, str]:
    """What the script's own lines choose."""
    text = "\n".join(
        (
            "say() { :; }",
            script.partition(MARKER)[0],
            f"job_runtime={archive()}",
            part("resume"),
            'printf "%s\\0%s" "$HPC_LAUNCH_RESUME_FROM" "$HPC_LAUNCH_RESUME_STEP"',
        )
    )
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": os.environ["PATH"], "HPC_LAUNCH_RUN_DIR": str(run)},
        capture_output=True,
        check=True,
    )
    path, step = done.stdout.decode().split("\0")
    assert all(b" skipped " in line for line in done.stderr.splitlines())
    return path, step
