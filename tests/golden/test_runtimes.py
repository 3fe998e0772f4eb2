"""Every option that a golden script gives a container runtime is one that the runtime's own list has.

The runtimes are not here to be asked: the lists are of their sources or help, as far as our scripts use them. That of
Apptainer is asked for in `tests/slurm/test_apptainer_images.py` as well.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.test_options import command

EXPECTED = Path(__file__).parent / "expected"
KNOWN = {
    # apptainer 1.4.5, `apptainer exec --help`; --pwd is the older name of --cwd (cmd/internal/cli/action_flags.go).
    "apptainer exec": "--no-eval --nv --rocm --no-home --writable-tmpfs --pwd --cwd --bind --cleanenv --containall",
    # SingularityCE 4, the same file: --no-eval since 3.10.
    "singularity exec": "--no-eval --nv --rocm --no-home --writable-tmpfs --pwd --cwd --bind --cleanenv --containall",
    # podman-run(1), and podman-hpc's etc/modules.d for --gpu and its kin.
    "podman-hpc run": "--rm --net --ipc --workdir --volume --env --device --group-add --gpu --nccl --mpi --cvmfs",
    # NERSC/shifter, src/shifter.c `getopt_long`; an argument of --workdir is optional there, so it needs the `=`.
    "shifter --image": "--image --workdir --volume --module --env",
    # hpc/charliecloud, bin/ch-run.c `options`.
    "ch-run --cd": "--bind --cd --home --set-env --write-fake",
}
CASES = [(path, start) for path in sorted(EXPECTED.glob("*.sh")) for start in KNOWN if f" {start}" in path.read_text()]


def test_there_is_a_script_for_each_runtime() -> None:
    assert {start for _, start in CASES} == set(KNOWN)


@pytest.mark.parametrize(("script", "start"), CASES, ids=lambda value: getattr(value, "stem", value))
def test_the_runtime_knows_every_option(script: Path, start: str) -> None:
    words = command(script, f" {start}")
    program = start.split(maxsplit=1)[0]
    words = words[words.index(program) :]
    end = next(at for at, word in enumerate(words) if word in ("/bin/sh", "--"))
    used = {match[0] for word in words[:end] if (match := re.match(r"--[a-z][a-z-]*", word))}
    assert used
    assert used <= set(KNOWN[start].split())
