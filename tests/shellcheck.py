"""ShellCheck of rendered scripts.

A script consists of its own part, and of static parts that are the same bytes in many scripts. `test_parts.py` of
`tests/golden` checks each static part; of the scripts the own part is enough, and six times faster.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hpc_launch.script.parts import MARKER


def shellcheck(scripts: Iterable[Path], *options: str) -> str:
    """What ShellCheck finds in these files."""
    program = str(Path(sys.executable).with_name("shellcheck"))
    return subprocess.run([program, *options, *scripts], capture_output=True, text=True, check=False).stdout


def shellcheck_own_parts(texts: Iterable[str]) -> str:
    """What ShellCheck finds in what stands above the static parts of these scripts."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, text in enumerate(texts):
            paths.append(Path(folder, f"{number}.sh"))
            paths[-1].write_text(text.partition(MARKER)[0])
        # SC2154: the static parts assign some of the variables. The extended analysis needs whole scripts.
        return shellcheck(paths, "--exclude=SC2154", "--extended-analysis=false")
