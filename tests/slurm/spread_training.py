"""The training of programs/spread.py: its losses in a log, and those of one process without a launcher."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.cluster.requirements import REPOSITORY

SPREAD = REPOSITORY / "tests" / "slurm" / "programs" / "spread.py"


def losses(log: str) -> list[float]:
    """The loss of each step."""
    return [float(loss) for loss in re.findall(r"step \d+/\d+ loss ([\d.]+)", log)]


def losses_of_one_process(steps: int, batch: int) -> list[float]:
    """The losses of one process, on the machine itself."""
    command = [sys.executable, str(SPREAD), "--how=alone", f"--steps={steps}", f"--global-batch={batch}"]
    return losses(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
