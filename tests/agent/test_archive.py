"""`agent.pyz`: Python 3.6, nothing but the standard library, and the same bytes for the same release."""

from __future__ import annotations

import ast
import compileall
import subprocess
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from hpc_launch.base.installed import AGENT, HOOKS, PHASES, agent_archive
from hpc_launch.preflight.bench import MODULES
from hpc_launch.schedulers.ssh.ssh_hosts import PROGRAM as LEASE
from hpc_launch.site_tools.learn_hosts import PROGRAM as DESCRIBE
from tests.agent.program import program

ALONE = {AGENT / "folders.py", HOOKS, PHASES, LEASE, DESCRIBE, *MODULES.values()}
"""What also runs as a single file."""


@pytest.mark.parametrize("file", sorted(AGENT.glob("*.py")), ids=lambda file: file.stem)
def test_it_is_python_3_6_and_imports_the_standard_library(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 6))
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert all(name == "hpc_launch.agent" or name.startswith("hpc_launch.agent.") for name in ours)
    assert not ours or file not in ALONE


def test_it_has_the_same_bytes_each_time() -> None:
    assert compileall.compile_dir(AGENT, quiet=2), "as pip does"
    agent_archive.cache_clear()
    first = agent_archive()
    agent_archive.cache_clear()
    assert agent_archive() == first


@pytest.mark.parametrize(("magic", "loaded"), [(MAGIC_NUMBER, "lease.pyc"), (b"\0\0\r\n", "lease.py")])
def test_hosts_compile_it_only_for_another_python(tmp_path: Path, magic: bytes, loaded: str) -> None:
    assert compileall.compile_dir(AGENT, quiet=2), "as pip does"
    agent_archive.cache_clear()
    (tmp_path / "agent.pyz").write_bytes(agent_archive())
    with zipfile.ZipFile(tmp_path / "agent.pyz") as one, zipfile.ZipFile(tmp_path / "other.pyz", "w") as other:
        for name in one.namelist():
            data = one.read(name)
            other.writestr(name, data.replace(MAGIC_NUMBER, magic, 1) if name.endswith(".pyc") else data)
    code = "import sys; sys.path[0:0] = sys.argv[1:]; import hpc_launch.agent.lease as one; print(one.__file__)"
    words = [sys.executable, "-I", "-c", code, str(tmp_path / "other.pyz")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.endswith(f"/{loaded}\n")


def test_a_program_imports_what_it_needs_only(tmp_path: Path) -> None:
    words = program("notify")
    words[1:1] = ["-X", "importtime"]
    done = subprocess.run([*words, "deliver", str(tmp_path)], capture_output=True, text=True, check=True)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert {one for one in imported if one.startswith("hpc_launch.agent.")} == {
        "hpc_launch.agent.notify_event"  # and notify itself, by import_module
    }
