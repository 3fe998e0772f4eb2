"""Packages that add to hpc-launch, as pip leaves them: modules and a `.dist-info` in a folder of the Python path."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_launch.plugins import entry_points
from hpc_launch.script.template_environment import template_environment

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin"


def install(folder: Path, name: str, version: str, entry_points: str, modules: Mapping[str, str] | None = None) -> Path:
    """Install a package in a folder: `entry_points` as in its entry_points.txt, and modules by name. Returns it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, text in (modules or {}).items():
        (folder / f"{module}.py").write_text(text)
    return folder


def install_example(folder: Path) -> Path:
    """Install the package of examples/plugin."""
    project = (EXAMPLE / "pyproject.toml").read_text()
    groups = re.findall(r'^\[project\.entry-points\."([^"]*)"\]\n(.*?\n)\n', project, re.DOTALL | re.MULTILINE)
    text = "\n".join(f"[{group}]\n{entries.replace(chr(34), '')}" for group, entries in groups)
    shutil.copytree(EXAMPLE / "hpc_launch_example", folder / "hpc_launch_example")
    return install(folder, "hpc-launch-example", "1.0", text)


@contextmanager
def on_path(folder: Path) -> Iterator[Path]:
    """Let this process find the packages of a folder, and forget them afterwards."""
    cached = (entry_points._entries, entry_points._load, template_environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for one in cached:
            one.cache_clear()
        yield folder
    for one in cached:
        one.cache_clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
