"""A folder on the search path for profiles, and the reading of one with all it extends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding
from hpc_launch.prepare.prepare import PreparedJob, prepare_job

BODY = """
scheduler: slurm
node_classes:
  gpu: {cpus: 64, memory: 256G, gpus: 4}
queues:
  gpu: {node_class: gpu, partition: gpu, default_time: 1h}
"""

Write = Callable[..., None]
Plan = Callable[..., PreparedJob]
Refusing = Callable[..., list[Finding]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts profiles into a folder of the search path; nothing of this machine or user is seen."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in ("HPC_LAUNCH_SITE", "HPC_LAUNCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def put(inside: str = "", /, **texts: str) -> None:
        for name, text in texts.items():
            path = folder / inside / f"{name}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    return put


@pytest.fixture
def foreign(write: Write, tmp_path: Path) -> Write:
    """The same, in files that teammates can change."""

    def put(inside: str = "", /, **texts: str) -> None:
        write(inside, **texts)
        for name in texts:
            (tmp_path / "shared" / inside / f"{name}.yaml").chmod(0o666)

    return put


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Plan:
    """Plans a small job on a site."""

    def make(site: str = "here", job: str = "", sets: tuple[str, ...] = ()) -> PreparedJob:
        (tmp_path / "job.yaml").write_text(f"name: tiny\nscript: train.py\n{job}")
        return prepare_job(tmp_path / "job.yaml", site=site, sets=sets)

    return make


@pytest.fixture
def refused(plan: Plan) -> Refusing:
    """The findings of a job that is refused on a site."""

    def make(site: str = "here", job: str = "", sets: tuple[str, ...] = ()) -> list[Finding]:
        with pytest.raises(Refused) as caught:
            plan(site, job, sets)
        for finding in caught.value.findings:
            assert finding.place is not None, finding
            assert finding.hint, finding
        return list(caught.value.findings)

    return make


@pytest.fixture
def user(tmp_path: Path) -> Callable[[str], None]:
    """Writes the user's overlay."""

    def put(text: str) -> None:
        path = tmp_path / "config" / "hpc-launch" / "user.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return put
