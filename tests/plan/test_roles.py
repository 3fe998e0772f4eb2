"""Roles of a job: what does not fit together is refused where it stands; the job files of known stacks are rendered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hpc_launch.base.findings import errors
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.recorded_parts import BatchPlan
from hpc_launch.prepare.prepare import validate_job
from hpc_launch.script.render import render
from hpc_launch.sites.load_layers import load
from tests.cluster.requirements import REPOSITORY
from tests.shellcheck import shellcheck_own_parts

STACKS = sorted((REPOSITORY / "examples" / "roles").glob("*.yaml"))
TRAIN = "  train: {command: [date], ends: job%s}\n"


def faults(tmp_path: Path, text: str) -> list[str]:
    """What is wrong with a job of these roles, with line and column."""
    job = tmp_path / "job.yaml"
    job.write_text(f"name: pair\n{text}")
    found = validate_job(job, site="local")
    return [f"{one.place.line}:{one.place.column} {one.message}" for one in errors(found) if one.place is not None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("roles:\n  train: {command: [date]}\n", "no role ends the job"),
        (f"roles:\n{TRAIN % ', after: server'}", "there is no other role `server`"),
        (f"nodes: 3\nroles:\n{TRAIN % ''}", "the roles need 1 node, the job has 3"),
        (
            f"nodes: 2\nroles:\n  a: {{command: [date], nodes: 2}}\n{TRAIN % ''}",
            "the roles need 3 nodes, the job has 2",
        ),
        (
            f"nodes: 1\nroles:\n  a: {{command: [date]}}\n{TRAIN % ', nodes: rest'}",
            "the roles need 2 nodes, the job has 1",
        ),
        (f"roles:\n{TRAIN % ', restart: 1'}", "`train` ends the job, so it cannot be restarted"),
        (f"roles:\n{TRAIN % ', ready: {tcp: true, http: /}'}", "`ready` needs one of http, tcp, log and ray"),
        (
            f"nodes: 2\nroles:\n  a: {{launcher: torchrun, script: a.py, restart: 1}}\n{TRAIN % ''}",
            "`a` forms a process group with torchrun, whose members cannot join again",
        ),
        (
            f"nodes: 2\nroles:\n  a: {{script: a.py, restart: 1}}\n{TRAIN % ''}",
            "`a` forms a process group with torchrun, whose members cannot join again",
        ),
        (
            f"nodes: 2\nroles:\n  a: {{command: [date], after: train}}\n{TRAIN % ', after: a'}",
            "the roles wait for each other: ",
        ),
        (f"nodes: 1..2\nroles:\n{TRAIN % ''}", "a job with roles has a fixed number of nodes"),
        (
            f"roles:\n  My-role: {{command: [date], beside: train}}\n{TRAIN % ''}",
            "`My-role` cannot be the name of a role",
        ),
        (
            f"roles:\n  a: {{command: [date], beside: b}}\n  b: {{command: [date], beside: train}}\n{TRAIN % ''}",
            "`b` is itself beside",
        ),
        (f"roles:\n{TRAIN % ', nods: 3'}", "nods"),
        (f"environment: {{venv: /x, stage: node}}\nroles:\n{TRAIN % ''}", "`stage: node`: the software of `train`"),
        (f"roles:\n{TRAIN % ', ready: {log: (}'}", "`log` is not a valid regular expression: "),
        (  # a heterogeneous job
            f"nodes: 2\nroles:\n  a: {{command: [date], queue: b}}\n{TRAIN % ''}sweep: {{grid: {{env.A: [1, 2]}}}}\n",
            "unknown key `queue` in `roles.a`",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    assert any(expected in fault for fault in faults(tmp_path, text)), faults(tmp_path, text)


def test_ray_is_for_roles(tmp_path: Path) -> None:
    assert any("`launcher: ray` is for roles" in fault for fault in faults(tmp_path, "launcher: ray\ncommand: date\n"))


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.stem)
def test_the_job_file_of_a_known_stack_is_short_and_renders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"env\.(\w+)", path.read_text()):
        monkeypatch.setenv(name, "/somewhere")
    lines = path.read_text().partition("roles:\n")[2].splitlines()
    assert len(lines) <= 14
    plan, findings = build(load(path, site="perlmutter", sets=["account=m1"]).resolved)
    assert plan is not None
    assert errors(findings) == []
    assert set(yaml.safe_load(path.read_text())["roles"]) == {role.name for role in plan.roles}
    assert shellcheck_own_parts([render(plan), *(render(role.plan) for role in plan.roles)]) == ""


def test_a_role_takes_what_it_lacks_from_the_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: pair\nnodes: 2\nenv: {A: '1', B: '1'}\nroles:\n"
        "  server: {command: [echo, $ROLE_PORT, '${role.train.url}'], env: {B: '2'}}\n" + TRAIN % ""
    )
    plan, _ = build(load(job, site="local").resolved)
    assert plan is not None
    server = next(role.plan for role in plan.roles if role.name == "server")
    assert {one.name: one.value for one in server.variables if one.name in "AB"} == {"A": ("1",), "B": ("2",)}
    assert 'echo "$ROLE_PORT" "$ROLE_TRAIN_URL"' in render(server)
    assert plan.roles[0].name == "train"


def test_each_role_has_an_image_of_its_own(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    for name in ("a.sif", "b.sif"):
        (tmp_path / name).write_text("")
    boxes = "container: {image: %s, runtime: apptainer}"
    job.write_text(
        f"name: pair\nnodes: 2\n{boxes % 'a.sif'}\nroles:\n  server: {{command: [date]}}\n"
        f"{TRAIN % f', {boxes}'}" % "b.sif"
    )
    plan, findings = build(load(job, site="local").resolved)
    assert plan is not None, findings
    images = {role.name: role.plan.container.image for role in plan.roles if role.plan.container is not None}
    assert images == {"server": str(tmp_path / "a.sif"), "train": str(tmp_path / "b.sif")}
    for role in plan.roles:
        assert "apptainer exec" in (script := render(role.plan))
        assert [name for name in ("a.sif", "b.sif") if name in script] == [Path(images[role.name]).name]


def test_the_tracker_is_that_of_the_role_that_ends_the_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: pair\nnodes: 2\ntrackers: [tensorboard]\nroles:\n  a: {{command: [date]}}\n{TRAIN % ''}")
    plan, _ = build(load(job, site="local").resolved)
    assert plan is not None
    found = {role.name: [one.name for one in role.plan.variables if "TENSORBOARD" in one.name] for role in plan.roles}
    assert found["train"] != []
    assert found["a"] == []


def test_a_smaller_batch_is_asked_of_the_role_that_ends_the_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    args = ", args: {per_device_train_batch_size: 8, gradient_accumulation_steps: 2}"
    job.write_text(f"name: pair\nnodes: 1\nroles:\n{TRAIN % args}")
    plan, _ = build(load(job, site="local").resolved)
    assert plan is not None
    assert plan.recovery.batch == BatchPlan(
        "roles.train.args.per_device_train_batch_size", 8, "roles.train.args.gradient_accumulation_steps", 2
    )
    job.write_text(
        f"name: pair\nnodes: 1\nretry: {{batch: {{micro: roles.train.args.own}}}}\nroles:\n{TRAIN % ', args: {own: 4}'}"
    )
    plan, findings = build(load(job, site="local").resolved)
    assert plan is not None
    assert (plan.recovery.batch, errors(findings)) == (BatchPlan("roles.train.args.own", 4), [])


def test_the_progress_is_that_of_the_first_replica_of_the_role_that_ends_the_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: pair\nnodes: 2\nroles:\n{TRAIN % ', replicas: 2'}")
    plan, _ = build(load(job, site="local").resolved)
    assert plan is not None
    assert 'ln -s train.0 "$attempt_dir/roles/main"' in render(plan)
