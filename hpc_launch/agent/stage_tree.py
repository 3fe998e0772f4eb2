"""The files of a Python environment, and what its interpreter reports of itself."""

import hashlib
import json
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional

from hpc_launch.agent.stage_disk import Deadline, NotStaged

VERSION = "1"
"""Part of each key: change it with the format of the archive or of the copy."""
THREADS = 32
"""Files that are listed or read at once: on a parallel file system most of the time is latency."""
TEST_S = 60.0
Entry = NamedTuple("Entry", [("path", str), ("mode", int), ("size", int), ("mtime_ns", int), ("target", str)])


def walk(prefix: str, deadline: Optional[Deadline] = None, bytecode: bool = False) -> List[Entry]:
    """Every file, folder and link below PREFIX by name; several folders are listed at once.

    Without compiled bytecode unless asked for: any process may write it.
    """
    result, level = [], [""]  # type: List[Entry], List[str]
    with ThreadPoolExecutor(THREADS) as pool:
        while level:
            found = list(pool.map(lambda folder: _list(prefix, folder), level))
            found = [[one for one in entries if bytecode or not _is_bytecode(one)] for entries in found]
            level = [one.path for entries in found for one in entries if stat.S_ISDIR(one.mode)]
            for entries in found:
                result += entries
            if deadline is not None:
                deadline.check()
    return sorted(result)


def _list(prefix: str, folder: str) -> List[Entry]:
    entries = []
    with os.scandir(os.path.join(prefix, folder)) as items:
        for item in items:
            made = item.stat(follow_symlinks=False)
            target = os.readlink(item.path) if stat.S_ISLNK(made.st_mode) else ""
            if target or stat.S_ISREG(made.st_mode) or stat.S_ISDIR(made.st_mode):
                path = os.path.join(folder, item.name)
                entries.append(Entry(path, made.st_mode, made.st_size, made.st_mtime_ns, target))
    return entries


def _is_bytecode(one: Entry) -> bool:
    return os.path.basename(one.path) == "__pycache__" and stat.S_ISDIR(one.mode)


def counted(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without folders, whose times change with the bytecode in them."""
    return (one for one in entries if not stat.S_ISDIR(one.mode))


def key_of(source: str, python: Dict[str, Any], entries: List[Entry]) -> str:
    """The digest that names a state of the environment."""
    digest = hashlib.sha256(repr((VERSION, source, python["version"], python["base"])).encode("utf-8", "replace"))
    for one in counted(entries):
        words = (one.path, str(one.mode), str(one.size), str(one.mtime_ns), one.target)
        digest.update(b"\0".join(map(os.fsencode, words)) + b"\n")
    return digest.hexdigest()[:32]


def python_of(prefix: str) -> Dict[str, Any]:
    """The interpreter of an environment: its name in bin/, version and prefixes."""
    if not any(os.path.exists(os.path.join(prefix, mark)) for mark in ("pyvenv.cfg", "conda-meta")):
        raise NotStaged("%s is neither a virtual environment nor a conda environment" % prefix)
    for name in ("python3", "python"):
        if os.path.exists(os.path.join(prefix, "bin", name)):
            return dict(ask_python(os.path.join(prefix, "bin", name), site=False), name=name)
    raise NotStaged("%s has no bin/python3" % prefix)


_QUESTION = """
import json, sys
found = []
for folder in sys.path:
    if folder.startswith(sys.prefix + "/") and folder.endswith("site-packages"):
        import importlib.util, os
        names = sorted(n for n in os.listdir(folder) if os.path.isfile(os.path.join(folder, n, "__init__.py")))
        for name in names[:5]:
            spec = importlib.util.find_spec(name) if name.isidentifier() else None
            found.append([name, spec.origin if spec else None])
print(json.dumps({"version": sys.version, "prefix": sys.prefix, "base": sys.base_prefix, "found": found}))
"""


def ask_python(program: str, site: bool = True) -> Dict[str, Any]:
    """What an interpreter reports of itself, and where it finds a few of its packages."""
    command = [program, "-I", *([] if site else ["-S"]), "-c", _QUESTION]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TEST_S, env=environment, check=False
        )
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])  # type: Dict[str, Any]
        return dict(answer)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        raise NotStaged("%s does not start" % program) from None
