"""`agent.pyz`: Python 3.6, nothing but the standard library, and the same bytes for the same release."""

from __future__ import annotations

import ast
import subprocess
import sys
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
    first = agent_archive()
    agent_archive.cache_clear()
    assert agent_archive() == first


def test_a_program_imports_what_it_needs_only(tmp_path: Path) -> None:
    words = program("notify")
    words[1:1] = ["-X", "importtime"]
    done = subprocess.run([*words, "deliver", str(tmp_path)], capture_output=True, text=True, check=True)
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert {one for one in imported if one.startswith("hpc_launch.agent.")} == {
        "hpc_launch.agent.notify_event"  # and notify itself, by import_module
    }
