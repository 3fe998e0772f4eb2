"""Ask an installed library: which keys it reads, and whether it accepts a file.

The questions are the programs in library_scripts/. They run in a Python of their own, because importing a library
takes seconds, prints, and needs torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.base.python_command import WITHOUT_CURRENT_FOLDER
from hpc_launch.plan.strategies.key_tables import Library, LibraryKeys, shipped_keys

TIMEOUT_S = 120
"""An environment on a parallel file system may take a minute to import torch for the first time."""

_SCRIPTS = Path(__file__).parent / "library_scripts"
_RELEASE = f"{WITHOUT_CURRENT_FOLDER}import importlib.metadata; print(importlib.metadata.version(sys.argv[1]))"


def check_with_deepspeed(text: str, *, replicas: int | None, python: str | None) -> list[Finding]:
    """What DeepSpeed's own classes say about a configuration; nothing if DeepSpeed is not installed."""
    try:
        argument = json.dumps([json.loads(text), replicas])
    except ValueError:
        return []  # `parse_json` has reported it
    return _check("deepspeed", argument, FindingCode.DEEPSPEED_REFUSES, python)


def check_with_accelerate(text: str, *, python: str | None) -> list[Finding]:
    """What `accelerate launch` says about its YAML file; nothing if Accelerate is not installed."""
    return _check("accelerate", text, FindingCode.ACCELERATE_REFUSES, python)


def installed_keys(library: Library, *, python: str | None = None) -> LibraryKeys:
    """The keys of the installed release; those that ship with hpc-launch if it is the same release or none."""
    shipped = shipped_keys(library)
    if installed_release(library, python=python) in {None, shipped.release}:
        return shipped
    return list_keys(library, python=python) or shipped


def installed_release(library: Library, *, python: str | None = None) -> str | None:
    """The installed release, without importing the library; None if it is not installed."""
    if python is None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(library)
        except PackageNotFoundError:
            return None
    try:
        done = _run([python, "-c", _RELEASE, library])
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def list_keys(library: Library, *, python: str | None = None) -> LibraryKeys | None:
    """Import the library and list its keys; None if that fails. Takes seconds."""
    try:
        done = _run([python or sys.executable, "-W", "ignore", str(_SCRIPTS / f"list_{library}_keys.py")])
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=LibraryKeys)
    except (OSError, subprocess.TimeoutExpired, IndexError, msgspec.MsgspecError):
        return None


def _check(library: Library, argument: str, code: FindingCode, python: str | None) -> list[Finding]:
    if python is None and installed_release(library) is None:
        return []
    place = Place(library)
    try:
        done = _run([python or sys.executable, str(_SCRIPTS / f"check_{library}.py"), argument])
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"timed out after {TIMEOUT_S} s"
        return [Finding(code, f"cannot run {library}: {reason}", place, None, "warning")]
    if done.returncode == 0:
        return []
    lines = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
    last = lines[-1] if lines else f"exit code {done.returncode}, without a message"
    if last.startswith("ModuleNotFoundError") or "ImportError" in last:
        return [Finding(code, f"cannot run {library}: {last}", place, None, "warning")]
    hint = "the installed release does not accept this file; a newer one may have options unknown to hpc-launch"
    return [Finding(code, f"{library} refuses the file: {last}", place, hint)]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # The file is checked, not this machine: do not look for a GPU.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
