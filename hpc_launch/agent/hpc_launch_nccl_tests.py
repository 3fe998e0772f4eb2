"""Run the programs of nccl-tests or rccl-tests as one MPI job, from processes that srun started, and read their table.

For hpc_launch_bench.py. Standard library of Python 3.6 or later.
"""

import os
import re
import shutil
import subprocess
from typing import Dict, List, Tuple

LIMIT_S = 120.0


def started_by_srun(rank: int, size: int) -> bool:
    """Whether this process is the task of a step with one task for each process, as MPI needs it."""
    return os.environ.get("SLURM_PROCID") == str(rank) and os.environ.get("SLURM_NTASKS") == str(size)


def mpi_programs(programs: Dict[str, str]) -> Dict[str, str]:
    """The paths of the programs; empty where PATH lacks one of them, or one was built without MPI."""
    paths = {name: shutil.which(program) for name, program in programs.items()}
    found = {name: path for name, path in paths.items() if path and links_mpi(path)}
    return found if len(found) == len(programs) else {}


def output_of(program: str, smallest: int, largest: int, step: int) -> str:
    """What one test prints; only the first process prints a table. Raises OSError and subprocess.SubprocessError."""
    sizes = ["-b", str(smallest), "-e", str(largest), "-f", str(step), "-g", "1"]
    done = subprocess.run(
        [program, *sizes], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True
    )
    return done.stdout.decode("utf-8", "replace")


def rows_of_tests(text: str, processes: int) -> List[Tuple[int, float, float]]:
    """The out-of-place results in a table of nccl-tests: bytes, seconds, bus bandwidth. Raises ValueError.

    Columns: size count type [redop] [root] time(us) algbw busbw #wrong, then the same four in place.
    """
    if len(re.findall(r"^#\s+Rank\s+\d+ ", text, re.MULTILINE)) != processes:
        raise ValueError("the tests did not start as one job of %d processes" % processes)
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 11 and words[0].isdigit() and words[1].isdigit():
            seconds, bandwidth = float(words[-8]) / 1e6, float(words[-6])
            if words[-5].isdigit() and words[-5] != "0":  # releases before 2.13 print the largest error
                raise ValueError("wrong results at %s bytes" % words[0])
            found.append((int(words[0]), seconds, bandwidth))
    if not found:
        raise ValueError("no table in the output")
    return found


def links_mpi(program: str) -> bool:
    """Whether a program was built with MPI, without which it measures one node."""
    try:
        done = subprocess.run(
            ["ldd", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return b"libmpi" in done.stdout
