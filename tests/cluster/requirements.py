"""What a cluster needs of the machine, and of which paths the Python environment is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.config import SYSTEM_PATH
from tests.cluster.settings import UNSHARE, ClusterUnavailable

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
    "ip": "iproute2",
}
"""Program to the Debian package that has it."""

ACCOUNTING_PACKAGES = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}

REPOSITORY = Path(__file__).resolve().parents[2]
"""The root of the checkout."""


def check_machine(accounting: bool) -> None:
    """Raise ClusterUnavailable with a sentence if a cluster cannot run here."""
    if not sys.platform.startswith("linux"):
        raise ClusterUnavailable("a test cluster needs Linux")
    if os.geteuid() != 0:
        raise ClusterUnavailable("a test cluster needs root, to make namespaces and mounts")
    programs = {**PACKAGES, **(ACCOUNTING_PACKAGES if accounting else {})}
    missing = {name: package for name, package in programs.items() if not _found(name)}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        names = ", ".join(missing)
        raise ClusterUnavailable(f"a test cluster needs {names} (Debian packages: {packages})")
    _check_namespaces()


def _found(program: str) -> bool:
    return shutil.which(program, path=SYSTEM_PATH) is not None


def _check_namespaces() -> None:
    trial = "mount --make-rprivate / && mount -t tmpfs none /mnt && ip link add br0 type bridge"
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", trial],
        env={"PATH": SYSTEM_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        raise ClusterUnavailable(f"a test cluster needs namespaces, mounts and a bridge: {why}")


def python_needs() -> tuple[str, ...]:
    """Every folder that this Python and this checkout are made of, links followed."""
    paths = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, str(REPOSITORY)]
    program = Path(sys.executable)
    while program.is_symlink():
        program = program.parent / program.readlink()
        paths.append(str(program.parent))
    return tuple(dict.fromkeys(paths))
