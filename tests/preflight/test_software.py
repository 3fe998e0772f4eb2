"""The set-up of a job on the login node, with stand-ins for `module` as Lmod and Environment Modules behave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_launch.preflight.software import try_setup
from hpc_launch.prepare.prepare import prepare_job
from tests.cluster.faults import wait_until
from tests.here import launch

JOB = "name: probe\nsite: local\nlauncher: none\nscript: train.py\n"
MODULES = r"""
module() {
    case $1 in
        load) shift
            for name; do
                case $name in
                    gcc | cuda/12.4) export LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}$name/1 ;;
                    broken) echo "cannot load here" >&2; return 1 ;;
                    *) echo "ERROR: Unable to locate a modulefile for '$name'" >&2; return OLD ;;
                esac
            done ;;
        is-avail) [ OLD = 0 ] && return 1; [ "$2" = broken ] ;;
        -t) printf 'gcc/1\nbroken/2\n' >&2 ;;
    esac
}
export -f module
"""


def levels(folder: Path, more: str = "", program: str = "import json\n") -> dict[str, dict[str, object]]:
    (folder / "train.py").write_text(program)
    (folder / "job.yaml").write_text(JOB + more)
    done = launch(folder, "doctor", "job.yaml", "--json", "--no-job")
    found: dict[str, dict[str, object]] = {level["name"]: level for level in json.loads(done.stdout)}
    return found


def modules(folder: Path, names: str, *, old: bool) -> str:
    """`environment:` keys that define `module` and load some."""
    setup = folder / "setup.sh"
    setup.write_text(MODULES.replace("OLD", "0" if old else "1"))
    return f"environment: {{source: [setup.sh], modules: [{names}]}}\n"


@pytest.mark.parametrize("old", [False, True])
def test_modules_that_load(tmp_path: Path, old: bool) -> None:
    found = levels(tmp_path, modules(tmp_path, "gcc, cuda/12.4", old=old))
    assert (found["modules"]["state"], found["modules"]["lines"]) == ("ok", ["loaded on this machine: gcc, cuda/12.4"])
    assert found["imports"]["state"] == "ok"


@pytest.mark.parametrize("old", [False, True])
def test_a_module_that_does_not_exist_is_named(tmp_path: Path, old: bool) -> None:
    found = levels(tmp_path, modules(tmp_path, "gcc, nothing", old=old))
    assert found["modules"]["state"] == "failed"
    assert found["modules"]["lines"] == ["`module` does not find nothing on this machine"]


def test_a_module_that_exists_but_does_not_load_here_is_not_checked(tmp_path: Path) -> None:
    found = levels(tmp_path, modules(tmp_path, "broken", old=False))
    assert found["modules"]["state"] == "not checked"
    assert "module load broken failed: cannot load here" in str(found["modules"]["lines"])
    assert found["imports"]["state"] == "not checked"


def test_without_a_module_command_nothing_is_claimed(tmp_path: Path) -> None:
    found = levels(tmp_path, "environment: {modules: [gcc]}\n")
    assert found["modules"]["state"] == "not checked"
    assert "command not found" in str(found["modules"]["lines"])


def test_a_set_up_that_hangs_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("sleep 1000 & echo $! >sleeper; wait\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(JOB + "environment: {source: [setup.sh]}\n")
    prepared = prepare_job(tmp_path / "job.yaml")
    result = try_setup(prepared.plan, [], str(tmp_path), limit_s=1.0)
    assert result.error == "no answer within 1 s"
    sleeper = int((tmp_path / "sleeper").read_text())
    wait_until(lambda: gone(sleeper))


def gone(process: int) -> bool:
    """Whether a process has ended, even if nobody has waited for it."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def test_imports_are_found_without_running_the_script(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import csv\n")
    program = "import json, beside\nfrom os import path\nopen('ran', 'w')\n"
    found = levels(tmp_path, program=program)["imports"]
    assert found["state"] == "ok", found
    assert "finds the 3 modules" in str(found["lines"])
    assert not (tmp_path / "ran").exists()


def test_a_missing_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import not_there_too\n")
    found = levels(tmp_path, program="import not_there, beside\ntry:\n    import optional\nexcept ImportError: pass\n")
    assert found["imports"]["state"] == "failed"
    assert str(found["imports"]["lines"]).endswith("finds no module not_there, not_there_too']")
    assert "queue" not in found


@pytest.mark.parametrize("program", ["import (\n", "\0", "(" * 5000])
def test_a_script_that_cannot_be_read_is_not_checked(tmp_path: Path, program: str) -> None:
    found = levels(tmp_path, program=program)["imports"]
    assert found["state"] == "not checked"
    assert "cannot read" in str(found["lines"])


def test_an_image_without_its_runtime_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "uname", "sh"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    (tmp_path / "image.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + bytes(200))
    found = levels(tmp_path, "container: {image: image.sif, runtime: apptainer}\n")
    assert "imports" not in found
    assert found["image"]["state"] == "not checked", found
    assert "apptainer not found on this machine" in str(found["image"]["lines"])
