"""`agent.pyz enter` with ranks in images: processes with namespaces of their own, as container runtimes make them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.program import program
from tests.cluster.faults import wait_until


@contextmanager
def rank_in_an_image(folder: Path) -> Iterator[Path]:
    """An attempt whose one rank sees another folder `data` than this process does, and one process outside."""
    attempt = folder / folder.name / "attempts" / "001"
    attempt.mkdir(parents=True)
    (folder / "data").mkdir()
    inside = f"mount -t tmpfs none {folder}/data && cd {folder}/data && echo inside >which && "
    variables = {**os.environ, "HPC_LAUNCH_ATTEMPT_DIR": str(attempt), "RANK": "0", "LOCAL_RANK": "0", "WHERE": "rank"}
    words = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        inside + f"exec {sys.executable} -c 'input()'",
    ]
    rank = subprocess.Popen(words, env=variables, stdin=subprocess.PIPE)
    outside = {**os.environ, "HPC_LAUNCH_ATTEMPT_DIR": str(attempt), "WHERE": "node", "ONE": "more", "ANOTHER": "one"}
    watcher = subprocess.Popen(["cat"], env=outside, stdin=subprocess.PIPE)
    try:
        view = Path(f"/proc/{rank.pid}/root{folder}/data/which")
        comm = Path(f"/proc/{rank.pid}/comm")
        wait_until(lambda: rank.poll() is not None or (view.exists() and "python" in comm.read_text()), timeout=30)
        if rank.poll() is not None:
            pytest.skip("user namespaces are not allowed here")
        yield attempt
    finally:
        for one in (rank, watcher):
            one.kill()
            one.communicate()


def enter(attempt: Path, code: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    words = [*program("enter"), "/".join(attempt.parts[-3:]), "0", "prompt", "bash", "-c", code]
    return subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)


def test_a_command_enters_the_image_of_the_rank(tmp_path: Path) -> None:
    with rank_in_an_image(tmp_path) as attempt:
        done = enter(attempt, "cat which; echo $WHERE $RANK; exit 4")
    assert (done.returncode, done.stdout) == (4, "inside\nrank 0\n"), done.stderr


def test_where_it_cannot_another_container_is_started_from_outside(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "python3", "cat"):  # but not nsenter
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    with rank_in_an_image(tmp_path) as attempt:
        before = enter(attempt, "true", str(tmp_path / "bin"))
        (attempt / "inside.sh").write_text('echo "started with $APPTAINERENV_RANK"; exec "$@"\n')
        done = enter(attempt, "echo $WHERE $RANK; exit 4", str(tmp_path / "bin"))
    assert (before.returncode, "inside.sh" in before.stderr) == (127, True)
    assert (done.returncode, done.stdout) == (4, "started with 0\nnode 0\n"), done.stderr
