"""Install this hpc-launch on a cluster: a virtual environment from wheels that are copied there.

Many login nodes reach no package index, so that the wheels come from here: the own one from where it was installed
from, the others as pip downloads them for the cluster's Python.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
import time
from importlib.metadata import distribution
from pathlib import Path

from hpc_launch import __version__
from hpc_launch.base.errors import UsageError
from hpc_launch.base.installed import module_command
from hpc_launch.job.shell_text import quote
from hpc_launch.remote.clusters import Cluster, ConnectionLost, ask_host, connection, keep
from hpc_launch.service.listener import Listener

_FOUND = (
    'for python in python3 python3.{14,13,12,11,10}; do "$python" -c \'import sys, venv, ensurepip, platform as p; '
    "print(sys.executable, *sys.version_info[:2], p.machine(), *p.libc_ver()[1:]) if sys.version_info >= (3, 10) "
    'else sys.exit(1)\' 2>/dev/null && break; done; echo "$HOME"; '
    'dirname "${HPC_LAUNCH_HOME:-$HOME/hpc-launch/runs}"'
)
"""Prints the Python that can be used and its platform, the home, and the folder that has the runs."""
PIP_S = 600.0
LOST = (10, 12, 30, 255)
"""Exit codes of rsync(1) for a connection that ended; 255 is that of ssh."""


def add(name: str, listener: Listener, *, host: str | None = None, site: str | None = None) -> Cluster:
    """Check the login, install this version there, and store the cluster. Raises Unreachable, UsageError, OSError."""
    host = host or name
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", name) or host.startswith("-"):
        raise UsageError(f"{name!r} cannot be the name of a cluster", "use letters, digits, `.`, `-` and `_`")
    python, *answer = ask_host(host, _FOUND).splitlines()[-3:]
    found = re.fullmatch(r"(/\S+) (\d+) (\d+) (\w+) (\d+)\.(\d+)", python)
    if found is None or len(answer) != 2:
        raise UsageError(
            f"{host} has no Python of version 3.10 or newer with venv",
            "load one in ~/.bash_profile there, with `module load`, say",
        )
    home, runs = answer
    listener.say(f"{host}: {found[1]}, Python {found[2]}.{found[3]} on {found[4]}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = _own_wheel(Path(folder))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()[:8]
        environment = f"{home}/.local/share/hpc-launch/{__version__}-{digest}"
        if ask_host(host, f"test -e {quote(environment)}/complete && echo yes || true").strip():
            listener.say(f"{environment} is there already")
        else:
            with listener.doing(f"installing hpc-launch {__version__} on {host}"):
                _install(host, found.groups()[0], environment, Path(folder), found.groups()[1:])
            listener.say(f"installed {environment}")
    cluster = Cluster(
        name=name,
        host=host,
        version=f"{__version__}-{digest}",
        environment=environment,
        code=f"{runs}/code",
        site=site,
        added=time.time(),
    )
    keep(cluster)
    return cluster


def _install(host: str, python: str, environment: str, wheels: Path, platform: tuple[str, ...]) -> None:
    """Copy the wheels, and create the environment; the file `complete` comes last."""
    major, minor, machine, *libc = platform
    tags = [f"--platform=manylinux_{libc[0]}_{one}_{machine}" for one in range(int(libc[1]), 16, -1)]
    target = [f"--python-version={major}.{minor}", "--only-binary=:all:", *tags, f"--platform=manylinux2014_{machine}"]
    own = next(wheels.glob("*.whl"))
    _pip("download", "--quiet", "--dest", str(wheels), *target, str(own))
    there = quote(f"{environment}.wheels")
    ask_host(host, f"rm -rf {there} {quote(environment)}; mkdir -p -m 700 {there}")
    copy_to(host, [f"{wheels}/"], f"{environment}.wheels/")
    ask_host(
        host,
        f"{quote(python)} -m venv {quote(environment)} && {quote(environment)}/bin/python -m pip install --quiet "
        f"--no-index --find-links {there} hpc-launch && rm -rf {there} && touch {quote(environment)}/complete",
        timeout_s=PIP_S,
    )


def copy_to(host: str, words: list[str], folder: str, text: str = "") -> None:
    """Copy by rsync to a folder of a login node; `words` are its options and what is copied. Raises UsageError."""
    shell = " ".join(connection(ask=True))
    command = ["rsync", "-a", "--no-owner", "--no-group", "-e", shell, *words, f"{host}:{folder}"]
    try:
        done = subprocess.run(command, input=text.encode("utf-8", "surrogateescape"), capture_output=True, check=False)
    except OSError as error:
        raise UsageError(f"cannot run rsync: {error.strerror}", "install rsync here and on the cluster") from error
    if done.returncode in LOST:
        raise ConnectionLost(f"the connection to {host} was lost while copying")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise UsageError(f"cannot copy to {host}: {said}", "rsync must be installed there, too")


def _pip(*words: str) -> None:
    done = subprocess.run([*module_command("pip"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"pip {words[0]} failed: {done.stderr.strip()[-2000:]}", "it needs a package index here")


def _own_wheel(folder: Path) -> Path:
    """The wheel of this hpc-launch, from where it was installed from (direct_url.json of PEP 610)."""
    direct = json.loads(distribution("hpc-launch").read_text("direct_url.json") or "{}")
    source = direct.get("url", f"hpc-launch=={__version__}")
    if vcs := direct.get("vcs_info"):
        source = f"{vcs['vcs']}+{source}@{vcs['commit_id']}"
    _pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), source)
    return next(folder.glob("*.whl"))
