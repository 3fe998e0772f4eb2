"""Find and run Apptainer or Singularity on this machine, and list what an unprivileged build lacks."""

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
"""Number of output lines that the error of a failed program includes."""


class Tool(Struct, frozen=True):
    """A program that builds and pulls images. `name` comes from its --version output, because many sites link one name
    to the other program."""

    path: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_tool(wanted: str | None = None, purpose: str = "build images") -> Tool:
    """Find the program; `wanted` is tried first. Raises Refused with HL472 if there is none."""
    names = [wanted, *PROGRAMS] if wanted in PROGRAMS else PROGRAMS
    for name in dict.fromkeys(names):
        path = shutil.which(name or "")
        if path is None:
            continue
        with suppress(OSError, subprocess.SubprocessError):
            # `apptainer version 1.4.5`, `singularity-ce version 4.3.1`, `singularity version 3.8.7`.
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
            match = re.match(r"(\S+) version (\S+)", done.stdout)
            if match:
                return Tool(path, match[1], match[2])
    hint = "load its module, e.g. `module load apptainer`; some sites provide it only on compute nodes"
    raise Refused(
        [Finding(FindingCode.NO_APPTAINER, f"cannot {purpose}: neither apptainer nor singularity found", hint=hint)]
    )


def run(command: Sequence[str]) -> None:
    """Run the program, echoing its output to stderr. Raises UserError with the last lines of output if it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines = [*lines[-TAIL:], line.rstrip()]
            _echo(line)
    if process.returncode != 0:
        output = "\n".join(line for line in lines if line)
        program = f"{os.path.basename(command[0])} {command[1]}"
        raise UserError(f"{program} failed with exit code {process.returncode}:\n{output}")


def _echo(line: str) -> None:
    import sys

    from hpc_launch.job.shell_text import visible

    print(visible(line.rstrip()), file=sys.stderr, flush=True)


def missing_to_build(tool: Tool) -> Iterator[str]:
    """Describe what an unprivileged build lacks here, with a remedy each; the build may still succeed.

    Apptainer builds as root of a user namespace, using /etc/subuid or mapping only the user to root (Apptainer User
    Guide, fakeroot, "Summary of the modes"). SingularityCE needs /etc/subuid or proot.
    """
    if os.geteuid() == 0:
        return
    for path, bad, why in (
        ("/proc/sys/user/max_user_namespaces", "0", "user namespaces are disabled (user.max_user_namespaces is 0)"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "only root may create user namespaces on this machine"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor allows user namespaces only to programs that have a profile",
        ),
    ):
        with suppress(OSError):
            if Path(path).read_text(encoding="ascii").strip() == bad:
                yield f"{why}; ask the site's support, or build elsewhere and copy the file"
    mapped = _has_subuid()
    if not mapped and tool.name != "apptainer":
        yield "Singularity needs an entry for this user in /etc/subuid; ask the site's support, or use Apptainer"
    if not mapped and shutil.which("fakeroot") is None:
        yield (
            "this user has no entry in /etc/subuid and there is no `fakeroot` command: recipe steps that change file "
            "owners, such as apt-get for some packages, may fail"
        )


def _has_subuid() -> bool:
    user = str(os.geteuid())
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    with suppress(OSError):
        lines = Path("/etc/subuid").read_text(encoding="utf-8", errors="replace").splitlines()
        return any(line.split(":")[0] in (user, str(os.geteuid())) for line in lines)
    return False
