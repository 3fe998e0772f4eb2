"""Bad job files: each is refused with its code, place and a hint, all faults at once, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.prepare.prepare import prepare_job, validate_job

SITE = """\
name: here
scheduler: slurm
detect: [{path: /}]
account: {pattern: 'proj\\d+'}
node_classes:
  gpu: {cpus: 32, memory: 128G, gpus: 4, gpu_type: a100}
default_queue: gpu
queues:
  gpu:
    partition: gpu
    node_class: gpu
    limits: [{nodes: 1-4, time: 24:00:00}, {nodes: 5-8, time: 2:00:00}]
"""
GOOD = "name: x\nsite: here\nnodes: 2\ntime: 24:00:00\nscript: train.py\n"


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "sites" / "here.yaml").write_text(SITE)
    return folder


def findings(folder: Path, text: str, *sets: str) -> list[tuple[str, int | None]]:
    job = folder / "job.yaml"
    job.write_text(text)
    found = [f for f in validate_job(job, sets=sets) if f.severity == "error"]
    for finding in found:
        assert finding.hint, finding
        assert finding.place is not None, finding
    assert not (folder / "runs").exists()
    return [(finding.code, finding.place.line if finding.place else None) for finding in found]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("account: other\n", [("HL303", 6)]),
        ("sbatch: {clusters: 'a,b', switches: one, segment: 0}\n", [("HL412", 6)] * 3),
        ("sbatch: {licenses: 'a b', reservation: 'a b'}\n", [("HL412", 6)] * 2),
        ("sbatch: {bbf: buffer.txt}\n", [("HL412", 6)]),
        ("sbatch: {segment: 4}\n", [("HL543", 6)]),
        ("sbatch: {het-group: 1, hetjob: true}\n", [("HL410", 6)] * 2),
        ("roles: {a: {queue: cpu, command: x, ends: job}, b: {command: x}}\n", [("HL010", 6)]),
        ("env: {'A B': 1, RANK: 0, SLURM_X: 1}\n", [("HL204", 6)] * 3),
        ("args: {out: '${run.dri}/x'}\n", [("HL206", 6)]),
        ("container: image.sif\n", [("HL201", 6)]),
        ("container: {image: x, runtime: pyxis, binds: [/nowhere]}\n", [("HL201", 6)]),
        ("container: {image: x, runtime: docker}\n", [("HL013", 6)]),
        ("command: 'echo \"x'\n", [("HL202", 6)]),
        ("environment: {venv: /nowhere/venv}\n", [("HL201", 6)]),
        ("progress: {step: 'step (\\d+', loss: loss}\n", [("HL215", 6)] * 2),
        ("retry: {max_attempts: 1000000000000000000000}\n", [("HL013", 6)]),
        ("retry: 1000000000000000000000\n", [("HL013", 6)]),
        ("retry: {budgets: {nccl_timeout: 1000000000000}, no_progress: 99999999999}\n", [("HL013", 6)] * 2),
    ],
)
def test_a_fault_is_found_where_it_stands(folder: Path, change: str, expected: list[tuple[str, int]]) -> None:
    assert findings(folder, GOOD + change) == expected


def test_all_faults_are_reported_at_once(folder: Path) -> None:
    text = GOOD.replace("train.py", "missing.py") + "queue: gpu\nnods: 1\n"
    assert [code for code, _ in findings(folder, text)] == ["HL010"]
    text = GOOD.replace("train.py", "missing.py").replace("nodes: 2", "nodes: 9") + "gpus_per_node: 8\n"
    assert sorted(code for code, _ in findings(folder, text)) == ["HL201", "HL401", "HL407"]


@pytest.mark.parametrize(("nodes", "spares"), [("8", 1), ("2..8", 1), ("2", 7)])
def test_more_spares_than_the_queue_s_limit_allows(folder: Path, nodes: str, spares: int) -> None:
    (folder / "job.yaml").write_text(f"{GOOD.replace('nodes: 2', f'nodes: {nodes}')}spares: {spares}\n")
    (finding,) = [one for one in validate_job(folder / "job.yaml") if one.severity == "error"]
    held = int(nodes.rsplit(".", maxsplit=1)[-1]) + spares
    assert finding.message == f"queue `gpu` does not accept {held} nodes ({spares} of them spares)"
    assert (finding.code, finding.hint) == ("HL407", "it accepts 1-4, 5-8 nodes")


def test_time_over_the_limit_depends_on_the_nodes(folder: Path) -> None:
    assert findings(folder, GOOD) == []
    assert findings(folder, GOOD.replace("nodes: 2", "nodes: 5")) == [("HL402", 4)]
    assert findings(folder, GOOD.replace("24:00:00", "24:00:01")) == [("HL402", 4)]


def test_a_missing_secret_is_refused_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc_launch.prepare.attempts import first_attempt

    monkeypatch.delenv("HF_TOKEN", raising=False)
    (folder / "job.yaml").write_text(GOOD + "secrets: [HF_TOKEN]\n")
    ready = prepare_job(folder / "job.yaml")
    with pytest.raises(Refused, match="HL210"):
        first_attempt(ready, ())
    secrets = folder / "config" / "hpc-launch" / "secrets.env"
    secrets.parent.mkdir(parents=True)
    secrets.write_text("# mine\nHF_TOKEN=hf_x=y\n")
    secrets.chmod(0o644)
    with pytest.raises(Refused, match="HL214"):
        first_attempt(ready, ())
    secrets.chmod(0o600)
    prepared = first_attempt(ready, ())
    assert prepared.secrets == {"HF_TOKEN": "hf_x=y"}
    assert "hf_x" not in prepared.script + prepared.resolved_yaml + prepared.job_yaml + repr(prepared)


def test_the_users_overlay_lies_between_site_and_job(folder: Path) -> None:
    overlay = folder / "config" / "hpc-launch" / "user.yaml"
    overlay.parent.mkdir(parents=True)
    overlay.write_text("defaults: {nodes: 3}\nsites: {here: {account: proj7, env: {A: user, B: user}}}\n")
    (folder / "job.yaml").write_text(GOOD.replace("nodes: 2\n", "") + "env: {B: job}\n")
    ready = prepare_job(folder / "job.yaml", sets=["env.C=set"])
    assert ready.plan.nodes == 3
    assert "--account=proj7" in ready.script
    exports = [line.split("#")[0].strip() for line in ready.script.splitlines()]
    assert [line for line in exports if line.startswith(("export A", "export B", "export C"))] == [
        "export A=user",
        "export B=job",
        "export C=set",
    ]
    overlay.write_text("default: {nodes: 3}\nsites: [1]\n")
    assert findings(folder, GOOD) == [("HL010", 1), ("HL011", 2)]
    overlay.write_text("defaults: {nods: 3}\nsites: {elsewhere: {nods: 3}}\n")
    assert findings(folder, GOOD) == [("HL010", 1)]
