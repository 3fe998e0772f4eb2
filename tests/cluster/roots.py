"""Other Debian releases as root file systems, for clusters with a newer Slurm than this machine's.

Each is made once by debootstrap, from the mirror that the machine's own apt uses, and kept in
``.test-roots`` of the checkout or the folder that HPC_LAUNCH_TEST_ROOTS names. Clusters never
write to it: each lays its own, forgetful layer over it (see `mounts`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.config import SYSTEM_PATH
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.syscalls import die_with_parent, locked

CACHE = "HPC_LAUNCH_TEST_ROOTS"
"""The variable that names another folder for the roots, so that several checkouts share them."""

BUILD_TIMEOUT = 600.0
"""Seconds after which a build counts as failed; it takes 40 to 150, by network and processors."""

SLURM = "slurmctld slurmd slurmdbd slurm-client munge mariadb-server iproute2 procps hostname"

# What a Python that was built on another Debian loads: the test process's own runs in there too.
LIBRARIES = "libbz2-1.0 libexpat1 libffi8 liblzma5 libreadline8t64 libsqlite3-0 libssl3t64 libstdc++6 libuuid1 zlib1g"

APPTAINER = "apptainer squashfs-tools squashfuse fuse3 uidmap"

SSH = "openssh-server openssh-client"

UNUSED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
"""A third of what debootstrap leaves, and nothing in it is ever read."""


@dataclass(frozen=True)
class System:
    """A Debian release, by its suite, and which of its packages are wanted."""

    suite: str
    packages: str

    @property
    def folder_name(self) -> str:
        """Another list of packages is another root."""
        return f"{self.suite}-{hashlib.sha256(self.packages.encode()).hexdigest()[:8]}"


SYSTEMS = {
    "trixie": System("trixie", f"{SLURM} {LIBRARIES}"),  # Slurm 24.11
    "sid": System("sid", f"{SLURM} {LIBRARIES} {APPTAINER} {SSH}"),  # Slurm 26.05 or newer, Apptainer 1.4 or newer
}


def root_of(system: str, repository: Path) -> Path:
    """The root folder of a system; it is built if it is not there yet, by one process at a time.

    Raises:
        ClusterUnavailable: It is not there and cannot be built; the message says why.
    """
    wanted = SYSTEMS[system]
    cache = Path(os.environ.get(CACHE) or repository / ".test-roots").resolve()
    root = cache / wanted.folder_name
    if root.exists():
        return root
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    with locked(cache / f"{wanted.suite}.lock"):
        if not root.exists():
            _build(wanted, root)
    return root


def _build(system: System, root: Path) -> None:
    """Make a root in a folder beside its place, and put it there in one step."""
    if shutil.which("debootstrap", path=SYSTEM_PATH) is None:
        raise ClusterUnavailable("a root of another Debian needs debootstrap (Debian package: debootstrap)")
    source = mirror()
    for left_over in root.parent.glob(f"{system.suite}.draft-*"):
        shutil.rmtree(left_over, ignore_errors=True)  # of a build that was killed: this one holds the lock
    draft = Path(tempfile.mkdtemp(prefix=f"{system.suite}.draft-", dir=root.parent))
    try:
        draft.chmod(0o755)
        _debootstrap(system, draft, source)
        for name in UNUSED:
            shutil.rmtree(draft / name, ignore_errors=True)
        draft.rename(root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _debootstrap(system: System, target: Path, source: str) -> None:
    # In namespaces of its own: what it mounts and starts ends with it, however it ends.
    words = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase"]
    words += [f"--include={','.join(system.packages.split())}", system.suite, str(target), source]
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    try:
        done = subprocess.run(
            words,
            # A root that is lost in a power cut is built again: dpkg need not wait for the disk.
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "DPKG_FORCE": "unsafe-io", **proxies},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_TIMEOUT,
            preexec_fn=die_with_parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterUnavailable(f"debootstrap {system.suite} took more than {BUILD_TIMEOUT:g} s") from None
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines()
        faults = [line for line in lines if line.startswith("E: ")] or lines or ["it said nothing"]
        raise ClusterUnavailable(f"debootstrap {system.suite} failed: {faults[-1].removeprefix('E: ')}")


def mirror() -> str:
    """The address of the Debian archive that this machine's own apt uses."""
    try:
        done = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ClusterUnavailable(f"the Debian mirror of this machine is not known: {error}") from None
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME")
    for line in done.stdout.splitlines():
        address, release = line.split(maxsplit=1)
        if release == codename:
            return address
    raise ClusterUnavailable("the apt sources of this machine name no Debian mirror")
