"""Install this hpc-launch on a cluster: a virtual environment from wheels that are copied there.

Many login nodes reach no package index, so that the wheels come from here: the own one from where it was installed
from, the others as pip downloads them for the cluster's Python. The code of a job, its git work tree, is copied into a
folder named by its content, so that it goes once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import tempfile
import time
from importlib.metadata import distribution
from pathlib import Path

from hpc_launch import __version__
from hpc_launch.agent.folders import is_private, is_skipped
from hpc_launch.base.errors import UsageError
from hpc_launch.base.installed import module_command
from hpc_launch.base.run_program import not_ignored
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


MOST_FILES = 50_000
MOST_BYTES = 2 << 30
"""More is data, not code."""


def copy_code(cluster: Cluster, job: Path, listener: Listener) -> str:
    """Copy the code of a job file, and return the folder there that stands for the folder of the job file.

    Raises UsageError where it is too large, or cannot be read or copied; Unreachable.
    """
    folder = Path(os.path.realpath(job)).parent
    root = next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), folder)
    names = _files(root)
    try:
        name = _digest(root, names)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error
    code, part = quote(cluster.code), f".{name}.part"
    # A copy that is not whole has another name. The newest copy has most files of the next.
    answer = ask_host(
        cluster.host,
        f"mkdir -p -m 700 {code} && cd {code} && if [ -d {name} ]; then echo there; "
        f"else mkdir -p -m 700 {part} && ls -t | head -n 1; fi",
    ).split()
    if answer != ["there"]:
        with listener.doing(f"copying {len(names)} files to {cluster.name}"):
            near = [f"--copy-dest=../{answer[0]}"] if answer else []
            copy_to(
                cluster.host,
                ["--files-from=-", "--from0", *near, f"{root}/"],
                f"{cluster.code}/{part}/",
                "\0".join(names),
            )
            ask_host(cluster.host, f"cd {code} && {{ mv -T {part} {name} 2>/dev/null || [ -d {name} ]; }}")
    return os.path.normpath(os.path.join(cluster.code, name, os.path.relpath(folder, root)))


def _files(root: Path) -> list[str]:
    """The files to copy: those that git does not ignore; without git all, but environments, runs and private files."""
    listed = not_ignored(root)
    if listed is not None:
        found = [one for one in listed if os.path.lexists(root / one) and not _is_folder(root / one)]
    else:
        found = []
        for folder, folders, files in os.walk(root):
            kept = [one for one in folders if not is_skipped(one) and not _is_made(os.path.join(folder, one))]
            found += [os.path.relpath(os.path.join(folder, one), root) for one in files]
            found += [os.path.relpath(path, root) for one in kept if os.path.islink(path := os.path.join(folder, one))]
            folders[:] = kept
            if len(found) > MOST_FILES:
                break
    found = sorted(one for one in found if not is_private(os.path.basename(one)) and not _is_device(root / one))
    size = sum((root / one).lstat().st_size for one in found[: MOST_FILES + 1])
    if len(found) > MOST_FILES or size > MOST_BYTES:
        raise UsageError(
            f"{root} holds more than {MOST_FILES:,} files or {MOST_BYTES >> 30} GiB, which is not only code",
            "put the job file into a git work tree whose .gitignore names the data, or into a folder of its own",
        )
    return found


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _is_made(folder: str) -> bool:
    return any(os.path.lexists(os.path.join(folder, one)) for one in ("pyvenv.cfg", "run.json"))


def _is_device(path: Path) -> bool:
    return not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISLNK(mode)


def _digest(root: Path, names: list[str]) -> str:
    """A name for these files: the same for the same names, contents and permissions. Raises OSError."""
    whole = hashlib.sha256()
    for name in names:
        path = root / name
        status = path.lstat()
        link = stat.S_ISLNK(status.st_mode)
        content = os.fsencode(os.readlink(path)) if link else hashlib.sha256(path.read_bytes()).digest()
        whole.update(os.fsencode(name) + b"\0%o\0" % (status.st_mode & 0o111) + content + b"\0")
    return whole.hexdigest()[:20]
