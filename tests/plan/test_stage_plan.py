"""When a job copies its software to the nodes' own disks, and where."""

from __future__ import annotations

import pytest

from hpc_launch.job.shell_text import Var
from tests.plan.test_site_profile import profile
from tests.sites.conftest import Plan, Write

LOCAL = "paths: {local: {path: '${shell.TMP_OF_JOB}/x', node_local: true}}\n"
OPTIONAL = "paths: {nvme: {path: /nvme, node_local: true, option: disk}}\noptions: {disk: {constraint: nvme}}\n"
MINE = "environment: {conda: mine}\n"


@pytest.mark.parametrize(
    ("top", "job"),
    [
        (LOCAL, f"{MINE}nodes: 2\n"),
        (LOCAL, "nodes: 4\n"),
        (LOCAL, "nodes: 4\nenvironment: {conda: mine, stage: off}\n"),
        ("", f"{MINE}nodes: 4\n"),
        (OPTIONAL, f"{MINE}nodes: 4\n"),
        (LOCAL, "nodes: 4\ncontainer: {image: a/b, runtime: pyxis}\n"),
        (LOCAL, f"{MINE}nodes: 4\nlauncher: none\n"),
    ],
    ids=["few nodes", "no environment", "off", "no disk", "disk not requested", "an image", "one program"],
)
def test_by_default_a_job_without_need_or_disk_makes_no_copy(top: str, job: str, write: Write, plan: Plan) -> None:
    write(here=profile(top=top))
    planned = plan(job=job)
    assert planned.plan.stage is None
    assert "job_stage" not in planned.script


def test_by_default_a_job_of_many_nodes_copies_what_is_shared(write: Write, plan: Plan) -> None:
    write(here=profile(top=LOCAL))
    planned = plan(job=f"{MINE}nodes: 4\n")
    assert planned.plan.stage is not None
    assert (planned.plan.stage.how, planned.plan.stage.folders) == ("auto", ((Var("TMP_OF_JOB"), "/x"),))
    assert 'job_stage_folders() { folders=("$TMP_OF_JOB"/x); }' in planned.script


def test_a_job_that_asks_for_it_copies_on_a_requested_disk_or_in_memory(write: Write, plan: Plan) -> None:
    write(here=profile(top=OPTIONAL))
    asked = "environment: {conda: mine, stage: node}\n"
    assert "folders=(/dev/shm);" in plan(job=asked).script
    assert "folders=(/nvme /dev/shm);" in plan(job=f"{asked}options: [disk]\n").script


@pytest.mark.parametrize(
    ("image", "runtime", "why"),
    [
        ("a/b", "pyxis", "pyxis starts one image on all nodes"),
        ("/images/x.sqsh", "pyxis", "pyxis starts one image on all nodes"),
        ("env", "edf", "edf starts one image on all nodes"),
        ("a/b", "podman-hpc", "podman-hpc takes images from its own store"),
        ("a/b", "shifter", "shifter takes images from its own store"),
        ("docker://a/b", "apptainer", "each node downloads the image"),
    ],
)
def test_an_image_that_is_no_file_of_the_node_is_not_copied(
    write: Write, plan: Plan, image: str, runtime: str, why: str
) -> None:
    write(here=profile(top=f"{LOCAL}containers: {{pull_on_nodes: true}}\n"))
    script = plan(job=f"container: {{image: {image!r}, runtime: {runtime}, stage: node}}\n").script
    assert f"job_stage='{why}'" in script
    assert " stage_unsupported " in script
