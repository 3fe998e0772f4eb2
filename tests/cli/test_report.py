from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.faults import wait_until
from tests.cluster.syscalls import processes_of
from tests.view.home import Home


def test_the_report_of_a_run_in_a_file_and_on_stdout(home: Home, tmp_path: Path) -> None:
    run = home.submit("say 0 'step 3/4 loss 0.5'; exit 3")
    home.call("watch", run.name, code=1)
    home.call("report", run.name, "-o", str(tmp_path / "run.html"))
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert run.name in page
    assert "Script and origins" in page
    shown = home.call("report", run.name).stdout
    assert shown.count("<svg") == page.count("<svg")
    failed = home.call("report", run.name, "-o", str(tmp_path / "none" / "run.html"), code=2)
    assert "run.html" in failed.stderr
    assert "name another file with -o" in failed.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_the_run_of_another_user_is_only_read(home: Home, tmp_path: Path) -> None:
    run = home.submit("say 0 'step 3/4 loss 0.5'")
    home.call("watch", run.name)
    wait_until(lambda: not processes_of(run.path))  # the job's end hook and its supervisor write for a moment yet
    (tmp_path / "secret").write_text("very-secret")
    run.resolved_yaml.unlink()
    run.resolved_yaml.symlink_to(tmp_path / "secret")
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)

    def files() -> list[tuple[str, int]]:
        return sorted((str(at), at.lstat().st_mtime_ns) for at in run.path.rglob("*"))

    before = files()
    page = home.call("report", f"{run.path}/").stdout
    assert "step 4" not in page
    assert "Attempts" in page
    assert "very-secret" not in page
    assert files() == before
