"""Which modules a verb may load: on a login node each imported file is a file on a slow, shared file system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parent.parent / "examples" / "tiny-gpt" / "job.yaml"
NEVER = {"torch", "deepspeed", "pydantic", "numpy", "asyncio", "importlib.metadata", "concurrent.futures"}
"""What no verb may load that submits nothing."""

LIGHT = NEVER | {"submitit", "rich", "sqlite3"}
FILES = LIGHT | {"dataclasses", "logging", "hpc_launch.runs", "hpc_launch.schedulers"}


def loaded(tmp_path: Path, *args: str) -> set[str]:
    """The modules in memory after a verb has run to its end, with the standard ones that Python always loads."""
    code = (
        "import sys, json\n"
        "from hpc_launch.cli.main import group\n"
        "try:\n"
        f"    group.main({list(args)!r}, prog_name='hpc-launch', standalone_mode=False)\n"
        "finally:\n"
        "    print('MODULES', json.dumps(sorted(sys.modules)))\n"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HPC_LAUNCH_HOME": str(tmp_path / "runs"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    return set(json.loads(done.stdout.rpartition("MODULES ")[2]))


@pytest.mark.parametrize(
    ("args", "forbidden"),
    [
        (["--help"], FILES | {"yaml", "jinja2", "msgspec"}),
        (["submit", "--help"], FILES | {"yaml", "jinja2"}),
        (["render", str(JOB), "--site", "local"], FILES),
        (["explain", str(JOB), "--site", "local"], FILES),
        (["validate", str(JOB), "--site", "local"], FILES | {"hpc_launch.estimate", "hpc_launch.model"}),
        (["submit", "--dry-run", str(JOB), "--site", "local"], FILES),
        (["config", "deepspeed", "--no-library"], LIGHT),
        (["config", "slurm", "--script", "x.py"], LIGHT),
        (["list", "--json"], NEVER | {"submitit", "rich", "yaml", "jinja2"}),
        (["status", "--json"], NEVER | {"submitit", "rich", "yaml", "jinja2"}),
        (["completion", "bash"], LIGHT | {"yaml", "jinja2", "msgspec"}),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_verb_loads_only_what_it_needs(tmp_path: Path, args: list[str], forbidden: set[str]) -> None:
    modules = loaded(tmp_path, *args)
    assert not {name for name in modules for no in forbidden if name == no or name.startswith(f"{no}.")}


def test_the_number_of_modules_stays_small(tmp_path: Path) -> None:
    """Room for a module or two; a new library shows here."""
    bare = loaded_bare()
    assert len(loaded(tmp_path, "--help") - bare) <= 105
    assert len(loaded(tmp_path, "render", str(JOB), "--site", "local") - bare) <= 279


def loaded_bare() -> set[str]:
    code = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code])))
