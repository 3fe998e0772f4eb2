"""What a cluster needs of the machine, and of which paths the Python environment is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.cluster.config import CGROUPS, SYSTEM_PATH
from tests.cluster.settings import UNSHARE, ClusterUnavailable

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
    "ip": "iproute2",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
"""Program to the Debian package that has it."""

REPOSITORY = Path(__file__).resolve().parents[2]
"""The root of the checkout."""


allowed = True
"""Whether a cluster may start; pytest clears it for tests without the mark `cluster`."""

TRIAL = "mount --make-rprivate / && mount -t tmpfs none /mnt && ip link add br0 type bridge"
OVERLAY_TRIAL = (
    "mkdir /mnt/lower /mnt/upper /mnt/work && "
    "mount -t overlay overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work /mnt/lower"
)

SYSTEM_FOLDERS = frozenset(Path(name) for name in "/ /bin /lib /lib64 /sbin /usr /usr/bin /usr/lib".split())
"""What every root file system has of its own."""


def check_machine(system: str | None) -> None:
    """Raise ClusterUnavailable with a sentence if a cluster cannot run here."""
    if not allowed:
        raise RuntimeError("this test starts a cluster; mark it with @pytest.mark.cluster")
    if not sys.platform.startswith("linux"):
        raise ClusterUnavailable("a test cluster needs Linux")
    if os.geteuid() != 0:
        raise ClusterUnavailable("a test cluster needs root, to make namespaces and mounts")
    # The daemons of another system are its own; see `roots` for what making one needs.
    programs = PACKAGES if system is None else ("unshare", "ip")
    missing = {name: PACKAGES[name] for name in programs if shutil.which(name, path=SYSTEM_PATH) is None}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        names = ", ".join(missing)
        raise ClusterUnavailable(f"a test cluster needs {names} (Debian packages: {packages})")
    _check_namespaces(TRIAL if system is None else f"{TRIAL} && {OVERLAY_TRIAL}")


def check_cgroups(nodes: int) -> None:
    """Raise ClusterUnavailable with a sentence if Slurm cannot use the machine's cgroups."""
    if nodes > 1:
        raise ClusterUnavailable("with the machine's cgroups a test cluster has one node: Slurm names them by the host")
    missing = [name for name in ("freezer", "memory", "cpuset", "cpuacct") if not Path(CGROUPS, name).is_dir()]
    if missing:
        raise ClusterUnavailable(f"no cgroup (v1) controllers: {', '.join(missing)}")


def _check_namespaces(trial: str) -> None:
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


def python_needs(system: str | None = None) -> tuple[str, ...]:
    """Every folder that this Python and this checkout are made of, links followed.

    For another system a Python in the system's own folders is named file by file.
    """
    paths = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, str(REPOSITORY)]
    program = Path(sys.executable)
    links = [sys.executable]
    while program.is_symlink():
        program = program.parent / program.readlink()
        paths.append(str(program.parent))
        links.append(str(program))
    if system is not None:
        own = [path for path in paths if Path(path) not in SYSTEM_FOLDERS]
        paths = [*own, *links, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    return tuple(dict.fromkeys(paths))
