"""What a pipeline's stages may be called, wait for and use, and the job file that each of them becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.job.pipeline_file import PipelineFile, pipeline_faults, read_pipeline, read_stage, stage_document
from hpc_launch.job.yaml_source import parse_document

SWEEP = "sweep: {grid: {args.lr: [1e-3, 3e-4]}}"


def read(folder: Path, jobs: str, shared: str = "") -> PipelineFile:
    path = folder / "job.yaml"
    path.write_text(f"name: nightly\n{shared}\njobs:\n{jobs}\n")
    pipeline, findings = read_pipeline(path)
    assert pipeline is not None, findings
    return pipeline


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("  a: {after: b}\n  b: {after: c}\n  c: {after: a}", "the stages wait for each other: a → b → c → a"),
        ("  a: {after: a}", "the stages wait for each other: a → a"),
        ("  train: {}\n  b: {after: trian}", "there is no stage `trian`"),
        ("  '7': {}", "`7` cannot be the name of a stage"),
        ("  watch-200: {}", "`watch-200` cannot be the name of a stage"),
        ("  ../a: {}", "`../a` cannot be the name of a stage"),
        ("  a.b: {}", "`a.b` cannot be the name of a stage"),
        ("  run: {}", "`run` cannot be the name of a stage"),
        (f"  {'a' * 33}: {{}}", f"`{'a' * 33}` cannot be the name of a stage"),
        ("  a: {site: other}", "stage `a` cannot set `site`"),
        ("  a: {jobs: {}}", "stage `a` cannot have stages"),
        ("  a: {}\n  b: {each: a}", "`each` of stage `b` names `a`, which is not a sweep"),
        ("  a: {}\n  b: {on: {checkpoint: a}}\n  c: {on: {checkpoint: b}}", "`b`, which runs several times itself"),
        (f"  a: {{}}\n  b: {{on: {{checkpoint: a}}, {SWEEP}}}", "stage `b` has `on`, so it cannot be a sweep"),
        ('  a: {}\n  b: {args: ["${a.checkpoint}"]}', "uses `${a.checkpoint}`, but does not wait for `a`"),
        ('  a: {}\n  b: {after: a, args: ["${a.best.checkpoint}"]}', "uses `${a.best.checkpoint}`, which is not known"),
        (f'  a: {{{SWEEP}}}\n  b: {{after: a, args: ["${{a.checkpoint}}"]}}', "${a.checkpoint}`, which is not known"),
    ],
)
def test_what_cannot_be_is_refused(jobs: str, message: str, tmp_path: Path) -> None:
    (fault,) = pipeline_faults(read(tmp_path, jobs))
    assert message in fault.message
    assert fault.place is not None
    assert fault.place.line is not None
    assert fault.hint


@pytest.mark.parametrize(
    "jobs",
    [
        "  a: {on: {checkpoint: a, evry: 2}}",
        "  a: {after: {b: maybe}}\n  b: {}",
        "  a: [1]",
        "  a: {on: {checkpoint: a, every: 0}}",
    ],
)
def test_keys_of_a_stage_are_checked_where_they_are(jobs: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"name: nightly\njobs:\n{jobs}\n")
    pipeline, (fault,) = read_pipeline(tmp_path / "job.yaml")
    assert pipeline is None
    assert fault.place is not None
    assert fault.place.line == 3


def test_values_reach_a_stage_through_others_and_fan_out(tmp_path: Path) -> None:
    jobs = f'  a: {{{SWEEP}}}\n  b: {{after: a}}\n  c: {{after: b, args: ["${{a.best.step}}", "${{a.folder}}"]}}\n'
    jobs += '  d: {each: a, args: ["${a.checkpoint}", "$${a.b}"]}\n'
    pipeline = read(tmp_path, jobs)
    assert pipeline_faults(pipeline) == []
    assert list(pipeline.references("d")) == ["a.checkpoint"]


def test_a_stage_is_a_job_file_with_the_shared_keys_below_its_own(tmp_path: Path) -> None:
    jobs = "  a: {time: 01:00:00, args: {lr: 1e-3, path: '${b.folder}'}, env: {X: null}}\n  b: {}"
    pipeline = read(tmp_path, jobs, 'time: 5\nargs: {seed: 1.10, lr: 2}\nenv: {X: 1, "on": "0123"}')
    hostile = "/x/${home} 'b\\c\u2028\n"
    document = stage_document(pipeline, "a", {"b.folder": hostile})
    again, findings = parse_document(document.text, "a.yaml")
    assert again is not None, findings
    assert again.data == document.data
    assert again.data["args"]["path"] == hostile.replace("${", "$${")
    assert (again.data["time"], again.written["args", "seed"], again.written["args", "lr"]) == (
        "01:00:00",
        "1.10",
        "1e-3",
    )
    assert again.data["env"] == {"X": None, "on": "0123"}
    assert again.data["name"] == "nightly-a"
    assert document.places["args", "lr"].line == 6
    assert document.places["args", "seed"].line == 3


def test_a_stage_can_be_named_wherever_a_job_file_can(tmp_path: Path) -> None:
    read(tmp_path, "  a: {script: x.py}")
    document, _ = read_stage(tmp_path / "job.yaml", "a")
    assert document is not None
    assert document.data == {"name": "nightly-a", "script": "x.py"}
    _, (fault,) = read_stage(tmp_path / "job.yaml", "b")
    assert "there is no stage `b`" in fault.message
