"""Ask an installed library which keys it reads, and whether it accepts a file, by the scripts in library_scripts/."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import msgspec

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.base.installed import ask_library
from hpc_launch.plan.strategies.config_file import LibraryKeys

Library = Literal["deepspeed", "accelerate", "transformers"]

_SCRIPTS = Path(__file__).parent / "library_scripts"


def is_installed(library: Library) -> bool:
    """Whether a library is installed beside hpc-launch. Does not import it."""
    try:
        version(library)
    except PackageNotFoundError:
        return False
    return True


def ask(library: Library, argument: str, python: str | None) -> tuple[LibraryKeys | None, list[Finding]]:
    """The keys that a library reads, and what it says about a file; None and a warning if it cannot be asked.

    Args: argument: what its script in library_scripts/ expects. python: the Python that has the library, else this one.
    """
    code = FindingCode.DEEPSPEED_REFUSES if library == "deepspeed" else FindingCode.ACCELERATE_REFUSES
    place = Place(library)
    done, reason = ask_library(_SCRIPTS / f"ask_{library}.py", [argument], python=python)
    if done is None:
        return None, [Finding(code, f"cannot run {library}: {reason}", place, None, "warning")]
    keys = None
    for line in done.stdout.splitlines():
        if line.startswith('{"mappings"'):
            keys = msgspec.json.decode(line, type=LibraryKeys)
    if done.returncode == 0:
        return keys, []
    lines = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
    last = lines[-1] if lines else f"exit code {done.returncode}, without a message"
    if keys is None or last.startswith("ModuleNotFoundError") or "ImportError" in last:
        return None, [Finding(code, f"cannot run {library}: {last}", place, None, "warning")]
    hint = "the installed release does not accept this file; a newer one may have options unknown to hpc-launch"
    return keys, [Finding(code, f"{library} refuses the file: {last}", place, hint)]
