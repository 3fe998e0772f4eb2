"""The fixtures of the sites' tests: profiles in a folder, and jobs on them, or a folder to fill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sites.conftest import plan, refused, user, write

__all__ = ["plan", "refused", "user", "write"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a training and the folder `sites`, the only one where profiles are found."""
    (tmp_path / "sites").mkdir()
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path / "sites"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HPC_LAUNCH_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("HPC_LAUNCH_SITE", raising=False)
    (tmp_path / "train.py").write_text("")
    return tmp_path
