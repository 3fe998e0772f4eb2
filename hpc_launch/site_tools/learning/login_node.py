"""What the login node tells beside Slurm: environment modules, container runtimes, and the user's folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

MODULE_TIMEOUT_S = 60.0
"""`module avail` reads every module file of a site once, from a shared file system."""

RUNTIMES = {
    "apptainer": "apptainer",
    "singularity": "singularity",
    "podman-hpc": "podman-hpc",
    "shifter": "shifter",
    "ch-run": "charliecloud",
}
"""Commands of container runtimes, and what a profile calls these."""

FOLDERS = {
    "scratch": ("SCRATCH", "PSCRATCH", "CINECA_SCRATCH"),
    "work": ("WORK",),
    "project": ("PROJECT", "PROJECTDIR"),
}
"""Variables in which sites name their file systems, the usual first."""

_WANTED = re.compile(
    r"(^|[/_-])(py)?torch|(^|/)(cuda|cudatoolkit|nvhpc|rocm|nccl|rccl|aws-ofi-nccl)(/|$|-)", re.IGNORECASE
)


@dataclass(frozen=True)
class Login:
    """What was found. `modules` are those of interest for a training."""

    module_system: str
    """`lmod`, `environment-modules` or `none`."""
    modules: tuple[str, ...]
    runtimes: tuple[str, ...]
    folders: Mapping[str, str]
    """The variable that names each folder."""

    @property
    def torch_modules(self) -> tuple[str, ...]:
        """Those that bring PyTorch."""
        return tuple(name for name in self.modules if re.search("torch", name, re.IGNORECASE))


def look(environment: Mapping[str, str]) -> Login:
    """Look around on this host. Nothing that is missing is a fault."""
    system, words = _module_command(environment)
    return Login(
        module_system=system,
        modules=_modules(words, environment) if words else (),
        runtimes=tuple(name for command, name in RUNTIMES.items() if shutil.which(command)),
        folders=_folders(environment),
    )


def _module_command(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The program behind the shell function `module`: it writes names of modules to stderr."""
    lmod = environment.get("LMOD_CMD")
    if lmod and os.access(lmod, os.X_OK):
        return "lmod", [lmod, "bash", "--terse", "avail"]
    home = environment.get("MODULESHOME", "")
    for command in (
        environment.get("MODULES_CMD", ""),
        os.path.join(home, "libexec", "modulecmd.tcl"),
        os.path.join(home, "bin", "modulecmd"),
    ):
        if os.path.isabs(command) and os.access(command, os.X_OK):
            return "environment-modules", [command, "bash", "avail", "--terse"]
    return "none", []


def _modules(words: list[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    try:
        done = subprocess.run(
            words,
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
    # Lmod prints a name without its version too, with a slash behind; both mark defaults in brackets.
    lines = (re.sub(r"\([^)]*\)$", "", line.strip()) for line in f"{done.stderr}\n{done.stdout}".splitlines())
    names = [line for line in lines if re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", line) and _WANTED.search(line)]
    return tuple(dict.fromkeys(names))


def _folders(environment: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, variables in FOLDERS.items():
        for variable in variables:
            path = environment.get(variable, "")
            if os.path.isabs(path) and os.path.isdir(path):
                found[name] = variable
                break
    return found
