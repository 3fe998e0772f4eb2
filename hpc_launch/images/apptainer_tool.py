"""Apptainer or Singularity on this machine: which one, which release, and what it lacks to build as this user."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import Refused, UserError
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding

PROGRAMS = ("apptainer", "singularity")

TAIL = 12
"""Lines of a failed program that its error repeats."""


class Tool(Struct, frozen=True):
    """A program that builds and pulls images. `name` is whose it is, which its own word tells: many sites link one name
    to the other program."""

    path: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_tool(wanted: str | None = None, purpose: str = "build images") -> Tool:
    """The program; `wanted` is tried first. Raises Refused with HL472 where there is none."""
    names = [wanted, *PROGRAMS] if wanted in PROGRAMS else PROGRAMS
    for name in dict.fromkeys(names):
        path = shutil.which(name or "")
        if path is None:
            continue
        with suppress(OSError, subprocess.SubprocessError):
            # `apptainer version 1.4.5`, `singularity-ce version 4.3.1`, `singularity version 3.8.7`.
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
            said = re.match(r"(\S+) version (\S+)", done.stdout)
            if said:
                return Tool(path, said[1], said[2])
    hint = "load its module first, such as `module load apptainer`; some sites have it on compute nodes alone"
    raise Refused(
        [Finding(FindingCode.NO_APPTAINER, f"neither apptainer nor singularity is here to {purpose}", hint=hint)]
    )


def run(words: Sequence[str]) -> None:
    """Run the program to its end; what it says goes to stderr. Raises UserError with the last of it where it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines = [*lines[-TAIL:], line.rstrip()]
            _echo(line)
    if process.returncode != 0:
        said = "\n".join(line for line in lines if line)
        raise UserError(f"{os.path.basename(words[0])} {words[1]} failed with exit code {process.returncode}:\n{said}")


def _echo(line: str) -> None:
    import sys

    from hpc_launch.spec.shell_text import visible

    print(visible(line.rstrip()), file=sys.stderr, flush=True)


def missing_to_build(tool: Tool) -> Iterator[str]:
    """What an ordinary user's build lacks here, each as a sentence with its cure; the build may still work without.

    Apptainer builds as root of a user namespace: by /etc/subuid, or with the user mapped to root alone (apptainer's
    user guide, fakeroot, "Summary of the modes"). SingularityCE wants /etc/subuid, or proot.
    """
    if os.geteuid() == 0:
        return
    for path, bad, why in (
        ("/proc/sys/user/max_user_namespaces", "0", "user namespaces are turned off (user.max_user_namespaces is 0)"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "user namespaces are for root alone on this machine"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor restricts user namespaces to programs with a profile of their own",
        ),
    ):
        with suppress(OSError):
            if Path(path).read_text(encoding="ascii").strip() == bad:
                yield f"{why}; ask the site, or build elsewhere and copy the file"
    mapped = _has_subuid()
    if not mapped and tool.name != "apptainer":
        yield "this user is not in /etc/subuid, which Singularity needs to build; ask the site, or use Apptainer"
    if not mapped and shutil.which("fakeroot") is None:
        yield (
            "this user is not in /etc/subuid and there is no `fakeroot` command: steps of a recipe that change owners, "
            "as apt-get does for some packages, may fail"
        )


def _has_subuid() -> bool:
    user = str(os.geteuid())
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    with suppress(OSError):
        lines = Path("/etc/subuid").read_text(encoding="utf-8", errors="replace").splitlines()
        return any(line.split(":")[0] in (user, str(os.geteuid())) for line in lines)
    return False
