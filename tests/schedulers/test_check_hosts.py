"""Whether hosts reach each other over ssh, with a stand-in for ssh that runs here what it should run there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_launch.schedulers.ssh import on_first_host

SSH = """\
#!/bin/sh
case "$*" in
*"-- n2 true") echo 'alice@n2: Permission denied (publickey).' >&2; exit 255 ;;
*"bash -s") exec bash -s ;;
esac
"""


def test_the_host_that_does_not_reach_the_next_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert on_first_host.main(["between", "n1", "n2", "n3"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "host": "n2",
        "message": "HL664 cannot reach n2 over ssh from n1: alice@n2: Permission denied (publickey).",
        "hint": "`ssh-copy-id n2`, on n1",
    }
