"""Faults of storage, software and images: what the training needs and does not get, or cannot keep."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cluster.faults import PATIENCE_S, wait_until
from tests.cluster.image import build_sif
from tests.prove.row import CRASH, ONE_NODE, PAIR, Row, ended, fails
from tests.prove.scene import Scene

FULL = ("disk_full_or_quota",)

MODULES = """\
# As Lmod answers for a module that an upgrade has taken away.
module() {
    case $1 in
    load | add) shift ;;
    *) return 0 ;;
    esac
    echo "Lmod has detected the following error: The following module(s) are unknown: \\"$1\\"" >&2
    return 1
}
"""


def small_job(scene: Scene) -> None:
    place = scene.cluster.layout.small / "saved"
    scene.row.args["folder"] = str(place)
    scene.row.job["checkpoint"] = {"dir": str(place)}


def runs_on_small(scene: Scene) -> None:
    scene.row.job["run_dir"] = str(scene.cluster.layout.small / "runs")


def fill_small(scene: Scene) -> None:
    """Somebody else fills the storage on which the run folder and its logs lie."""
    filler = scene.cluster.layout.small / "somebody-else"
    scene.cluster.run(["sh", "-c", f"cat /dev/zero >{filler}"], user="bob")


def read_only(scene: Scene) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            scene.cluster.remount_small("ro")
        except Exception:
            # Busy while a file is open for writing.
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def build_image(scene: Scene) -> None:
    """An image that is there when the job is submitted, and a job that has to wait."""
    into_image(scene, build_sif(scene.cluster, scene.user.home / "image.sif"))


def into_image(scene: Scene, sif: Path) -> None:
    """The training runs in an image into which this Python is bound."""
    scene.row.job["container"] = {"image": str(sif), "binds": [*scene.cluster.python_folders, str(scene.user.home)]}


def remove_image(scene: Scene) -> None:
    scene.cluster.run(["rm", str(scene.user.home / "image.sif")], check=True)
    scene.cluster.run(["scontrol", "release", scene.run["job_id"]], check=True)


def gone_module(scene: Scene) -> None:
    init = scene.cluster.write(scene.user.home / "modules.sh", MODULES)
    scene.row.job["environment"] = {"source": [str(init)], "modules": ["CUDA/11.3"]}


def resumed_from_the_one_before(scene: Scene) -> list[str]:
    """The torn checkpoint of step 6 was passed over for that of step 4."""
    end = scene.run_folder / "attempts" / "002" / "end.json"
    wait_until(end.exists)
    step = json.loads(end.read_text()).get("resumed_step")
    return [] if step == 4 else [f"resumed from step {step} for 4"]


ROWS = (
    Row(
        "torn",
        "killed during a save: the newest checkpoint is incomplete",
        CRASH,
        args=fails("torn"),
        after=resumed_from_the_one_before,
        quick=True,
    ),
    ended(
        "full-checkpoints",
        "the disk is full when a checkpoint is saved",
        FULL,
        before=small_job,
        args=fails("full"),
        cluster=PAIR,
    ),
    ended(
        "full-logs",
        "the disk of the run folder and its logs is full",
        FULL,
        verdicts=("",),
        before=runs_on_small,
        act=fill_small,
        args=fails("log-flood", step=8),
        cluster=PAIR,
        note="the verdict cannot be stored there; `why` and `watch` report this",
    ),
    ended(
        "quota",
        "the quota is exceeded when a checkpoint is saved",
        FULL,
        args=fails("quota"),
        note="the training raises the error itself",
    ),
    ended(
        "read-only",
        "the scratch storage becomes read-only",
        ("filesystem_error",),
        verdicts=("RETRY",),
        before=small_job,
        act=read_only,
        cluster=PAIR,
        attempts=3,
        note="retried because the error may be temporary; stopped after two attempts without progress",
    ),
    ended(
        "image",
        "the image is deleted while the job is pending",
        ("container_error",),
        before=build_image,
        act=remove_image,
        at=0,
        job={**ONE_NODE, "sbatch": {"hold": True}},
        cluster={"nodes": 1, "system": "sid"},
        note="a real Apptainer",
    ),
    ended(
        "module",
        "a module of the job file does not exist",
        ("module_not_found",),
        before=gone_module,
        note="a stand-in for Lmod, with its messages",
    ),
)
