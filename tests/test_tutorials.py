"""The tutorials, done as a reader does them: their files, their commands, and what these print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page_runs import DOCS, Command, LocalReader, follow, steps

TUTORIALS = sorted(path.name for path in (DOCS / "tutorials").glob("*.md"))
ON_A_CLUSTER = {"your-cluster.md"}
"""Followed on the tests' cluster, in `tests/slurm/test_tutorial.py`."""


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalReader:
    """Somebody who has used nothing yet."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HPC_LAUNCH_SITE", "HPC_LAUNCH_SITE_PATH", "HPC_LAUNCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    return LocalReader(tmp_path)


@pytest.mark.parametrize("page", [page for page in TUTORIALS if page not in ON_A_CLUSTER])
def test_a_tutorial_prints_what_it_shows(page: str, reader: LocalReader) -> None:
    assert follow(f"tutorials/{page}", reader, without="hpc-launch drill")


@pytest.mark.prove
def test_the_drill_of_the_tutorial_prints_what_it_shows(reader: LocalReader) -> None:
    assert any("drill" in words for words in follow("tutorials/a-night.md", reader))


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_fits_into_15_minutes(page: str) -> None:
    assert len((DOCS / "tutorials" / page).read_text(encoding="utf-8").splitlines()) <= 80
    assert any(isinstance(step, Command) for step in steps(f"tutorials/{page}"))


def test_a_line_that_is_not_printed_is_missing() -> None:
    shown = ("a-261126-125110-5db2  COMPLETED after 2 s", "step 3/20", "  why  …: STOP")
    command = Command("hpc-launch status", shown)
    assert not command.missing("a-270101-000000-abcd COMPLETED after 1 m 02 s\nstep 3/20\n  why     it failed: STOP\n")
    assert command.missing("a-270101-000000-abcd FAILED after 2 s\nstep 4/20\n  why it failed: RETRY\n") == list(shown)
