"""The codes of `examples/`: their job files, the stand-in of each that is not ours, and what a line must start."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.requirements import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
STANDINS = Path(__file__).parent / "standins"
SITES = Path(__file__).parent / "sites"
FMENGINE = ("fmsys_0.0.4.sif", "data/pretrained_weights", "data/datasets")


@dataclass(frozen=True)
class Code:
    """A job file of `examples/`, with the program that its launcher has to start."""

    job: str
    entry: str
    standin: str | None = None
    """The folder of `standins/` that takes the place of the code's checkout; None where none is run."""
    package: str | None = None
    """The package of the checkout that the stand-in imports."""
    beside: tuple[str, ...] = ()
    """Files and folders that the user has to bring."""

    @property
    def folder(self) -> Path:
        return (EXAMPLES / self.job).parent


CODES = {
    code.job: code
    for code in (
        Code("nanogpt/job.yaml", "train.py"),
        Code("hf-trainer/job-zero2.yaml", "finetune.py"),
        Code("hf-trainer/job-fsdp.yaml", "finetune.py"),
        Code("accelerate/job.yaml", "train.py"),
        Code("accelerate/job-zero2.yaml", "train.py"),
        Code("accelerate/job-fsdp.yaml", "train.py"),
        Code("gpt-neox/job.yaml", "deepy.py train.py", "gpt_neox", "megatron"),
        Code("lmflow/job.yaml", "examples/finetune.py", beside=("examples/finetune.py",)),
        Code("fmengine/job.yaml", "cli/train.py", beside=("cli/train.py", *FMENGINE)),
        Code("openseek/job.yaml", "flagscale/train/train_gpt.py", "openseek", "third_party_note/Megatron-LM/megatron"),
        Code("rocm/job.yaml", "train.py", beside=("rocm-pytorch-deepspeed.sif",)),
    )
}


def checkout(code: Code, into: Path) -> Path:
    """A folder as a user would have it: the code's checkout, with our files at its top. Returns the job file."""
    folder = into / code.folder.name
    shutil.copytree(code.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if code.standin is not None and code.package is not None:
        shutil.copytree(
            STANDINS / code.standin, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        package = folder / code.package
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        shutil.copy(STANDINS / "meet.py", package / "meet.py")
    for name in code.beside:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix in (".sif", ".py"):
            place.touch()
        else:
            place.mkdir(exist_ok=True)
    if code.job.startswith("rocm"):
        shutil.copytree(EXAMPLES / "tiny-gpt", into / "tiny-gpt", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / Path(code.job).name
