"""What the nodes of a job do with its data, which jobs cannot have any, and the striping of checkpoint folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.prepare.check_files import count_files
from tests.plan.test_site_profile import profile
from tests.sites.conftest import Plan, Refusing, Write

LOCAL = "paths: {local: {path: '${shell.TMP_OF_JOB}/x', node_local: true}}\n"
IMAGE = "container: {image: x.sif, runtime: apptainer}\n"
MOUNT = '--bind "$HPC_LAUNCH_DATA_FROM":"$HPC_LAUNCH_DATA_AT" '
NODES = "nodes: 2\nlauncher: srun\n"


@pytest.fixture(autouse=True)
def files(write: Write, tmp_path: Path) -> None:
    """A site, and files that jobs name."""
    write(here=profile(top=LOCAL))
    for name in ("d.tar", "a-1.tar", "a-2.tar", "x.sif"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()


def test_each_node_gets_its_own_data_in_a_local_folder_or_in_memory(plan: Plan, tmp_path: Path) -> None:
    script = plan(job=f"{NODES}data: d.tar\n").script
    assert f"export HPC_LAUNCH_DATA={tmp_path}/d.tar" in script
    assert f"job_data={tmp_path}/d.tar job_data_how=auto\n" in script
    assert 'job_data_folders() { folders=("$TMP_OF_JOB"/x /dev/shm); }' in script
    assert " stage_slurm stage stage_data " in script
    assert " unstage " in script


def test_shards_are_for_the_nodes_that_train(plan: Plan, tmp_path: Path) -> None:
    script = plan(job=f"{NODES}data: {{from: 'a-*.tar', shard: true}}\n").script
    assert f"export HPC_LAUNCH_DATA={tmp_path} " in script
    assert f"job_data='{tmp_path}/a-*.tar' job_data_how=shard\n" in script


def test_data_that_stays_where_it_is_is_only_named(plan: Plan, tmp_path: Path) -> None:
    script = plan(job="data: {from: folder, how: off}\nlauncher: {name: none}\nnodes: 2\n").script
    assert f"export HPC_LAUNCH_DATA={tmp_path}/folder" in script
    assert "stage" not in script
    assert MOUNT in plan(job=f"{IMAGE}data: {{from: folder, how: off}}\n").script


def test_an_image_mounts_what_each_node_has(plan: Plan) -> None:
    script = plan(job=f"{IMAGE}data: d.tar\n").script
    assert MOUNT in script
    assert "export HPC_LAUNCH_DATA_FROM=$HPC_LAUNCH_DATA HPC_LAUNCH_DATA_AT=$HPC_LAUNCH_DATA " in script
    assert " job_data_inside=yes\n" in script
    script = plan(job="container: {image: x.sif, runtime: charliecloud}\ndata: d.tar\n").script
    assert MOUNT in script
    assert "job_data_inside" not in script


@pytest.mark.parametrize(
    ("job", "code", "message"),
    [
        ("data: nowhere.tar\n", "HL201", "the data {0}/nowhere.tar does not exist"),
        ("data: {from: d.tar, how: mount}\n", "HL221", "{0}/d.tar is not a squashfs image, so it cannot be mounted"),
        (
            "nodes: 3\nlauncher: srun\ndata: {from: 'a-*.tar', shard: true}\n",
            "HL201",
            "matches 2 files, and each of 3 nodes",
        ),
        ("data: {from: 'a-*.tar', shard: true, how: mount}\n", "HL221", "not with `how: mount`"),
        ("nodes: 1..2\ndata: {from: 'a-*.tar', shard: true}\n", "HL221", "an elastic run loses them with a node"),
        ("launcher: none\nnodes: 2\ndata: d.tar\n", "HL221", "the nodes are started by once"),
        ("container: {image: a/b, runtime: pyxis}\ndata: d.tar\n", "HL221", "pyxis starts the image before the nodes"),
    ],
)
def test_data_that_a_job_cannot_have_is_refused(
    job: str, code: str, message: str, refused: Refusing, tmp_path: Path
) -> None:
    found = refused(job=job)
    assert [(str(one.code), message.format(tmp_path) in one.message) for one in found] == [(code, True)], found


def test_roles_get_no_data(refused: Refusing) -> None:
    roles = "roles: {a: {script: train.py, ends: job}, b: {script: train.py}}\nnodes: 2\ndata: d.tar\n"
    assert [(str(one.code), one.message) for one in refused(job=roles)] == [
        ("HL220", "`data` is not for jobs with roles")
    ]


def test_counting_files_ends_at_the_limit_or_when_it_takes_long(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "many" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "many" / str(number % 2) / f"f{number}").touch()
    many = str(tmp_path / "many")
    assert count_files(many, 7, 60) == 0
    assert count_files(many, 5, 60) == 5
    assert count_files(many, 7, -1) == 1


STRIPED = """paths:
  scratch: {path: /scratch/alice, stripe: "-E 64M -c 1 -E -1 -c 8"}
  other: /scratch
"""


@pytest.mark.parametrize(
    ("folder", "striped"), [("/scratch/alice/ckpt", True), ("/scratch/bob/ckpt", False), ("${run.dir}/ckpt", False)]
)
def test_a_checkpoint_folder_is_striped_as_the_site_recommends(
    folder: str, striped: bool, write: Write, plan: Plan
) -> None:
    write(here=profile(top=STRIPED))
    script = plan(job=f"checkpoint: {{dir: '{folder}', pattern: 'step-(\\d+)'}}\n").script
    assert ("job_stripe=(-E 64M -c 1 -E -1 -c 8)\n" in script) == striped
    assert (" stripe" in script) == striped
