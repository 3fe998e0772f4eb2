"""Information from the login node besides Slurm: environment modules, container runtimes and the user's folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

MODULE_TIMEOUT_S = 60.0
"""`module avail` may read every module file of a site from a shared file system."""

RUNTIMES = {
    "apptainer": "apptainer",
    "singularity": "singularity",
    "podman-hpc": "podman-hpc",
    "shifter": "shifter",
    "ch-run": "charliecloud",
}
"""Commands of container runtimes, and their names in a profile."""

FOLDERS = {
    "scratch": ("SCRATCH", "PSCRATCH", "CINECA_SCRATCH"),
    "work": ("WORK",),
    "project": ("PROJECT", "PROJECTDIR"),
}
"""Variables that name a site's file systems, most common first."""

_RELEVANT = re.compile(
    r"(^|[/_-])(py)?torch|(^|/)(cuda|cudatoolkit|nvhpc|rocm|nccl|rccl|aws-ofi-nccl)(/|$|-)", re.IGNORECASE
)


@dataclass(frozen=True)
class LoginNode:
    """Findings. `modules` are those relevant for a training."""

    module_system: str
    """`lmod`, `environment-modules` or `none`."""
    modules: tuple[str, ...]
    runtimes: tuple[str, ...]
    folders: Mapping[str, str]
    """Variable that names each folder."""

    @property
    def torch_modules(self) -> tuple[str, ...]:
        """Modules that provide PyTorch."""
        return tuple(name for name in self.modules if re.search("torch", name, re.IGNORECASE))


def inspect_login_node(environment: Mapping[str, str]) -> LoginNode:
    """Inspect this host. Missing things are not errors."""
    system, command = _module_command(environment)
    return LoginNode(
        module_system=system,
        modules=_modules(command, environment) if command else (),
        runtimes=tuple(name for command, name in RUNTIMES.items() if shutil.which(command)),
        folders=_folders(environment),
    )


def _module_command(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Program behind the shell function `module`, which writes module names to stderr."""
    lmod = environment.get("LMOD_CMD")
    if lmod and os.access(lmod, os.X_OK):
        return "lmod", [lmod, "bash", "--terse", "avail"]
    home = environment.get("MODULESHOME", "")
    for candidate in (
        environment.get("MODULES_CMD", ""),
        os.path.join(home, "libexec", "modulecmd.tcl"),
        os.path.join(home, "bin", "modulecmd"),
    ):
        if os.path.isabs(candidate) and os.access(candidate, os.X_OK):
            return "environment-modules", [candidate, "bash", "avail", "--terse"]
    return "none", []


def _modules(command: list[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MODULE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # Lmod also prints names without a version, with a trailing slash; both mark defaults in parentheses.
    lines = (re.sub(r"\([^)]*\)$", "", line.strip()) for line in f"{done.stderr}\n{done.stdout}".splitlines())
    names = [line for line in lines if re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", line) and _RELEVANT.search(line)]
    return tuple(dict.fromkeys(names))


def _folders(environment: Mapping[str, str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, variables in FOLDERS.items():
        for variable in variables:
            path = environment.get(variable, "")
            if os.path.isabs(path) and os.path.isdir(path):
                result[name] = variable
                break
    return result
