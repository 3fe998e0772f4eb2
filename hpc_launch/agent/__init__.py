"""Programs for the job, of which a run folder gets a copy: one file, `agent.pyz`.

Standard library of Python 3.6 or later. They import nothing else of hpc_launch, which no node needs to have.
"""

import os
import stat
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import IO, List, Union

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
"""First words of a program for `python -c`: anybody may have put a module into the current folder. Python 3.11 has `-P`
for this; `-I` would also ignore PYTHONPATH, by which modules of a centre provide packages."""
Path = Union[str, "os.PathLike[str]"]
_START = "sys.path.append(%r); from hpc_launch.agent import main; main()"


def program(name: str, *, isolated: bool = True) -> List[str]:
    """The arguments of Python that start another program of the agent."""
    options = ["-I"] if isolated else []
    if os.path.isfile(_ROOT):
        return [*options, _ROOT, name]
    return [*options, "-c", WITHOUT_CURRENT_FOLDER + _START % _ROOT, name]


def say(text: str) -> None:
    """Write a line to the log of the job."""
    print("[hpc-launch %s] %s" % (time.strftime("%Y-%m-%d %H:%M:%S"), text), file=sys.stderr, flush=True)


def write_atomic(path: Path, content: Union[str, bytes], *, mode: int = 0o644, sync: bool = True) -> None:
    """Replace the content of `path` atomically: write a temporary file in the same folder, fsync it, rename it.

    The umask applies to `mode`, which by default lets nobody else write. On OSError (full disk, missing folder) the
    old content is unchanged. Without `sync` the file may be empty after a crash of the machine: for what a later file
    that is synced completes, and for what can be made again.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".%s.%d.%s" % (name, os.getpid(), os.urandom(4).hex()))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            if sync:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def create_once(path: Path, text: str, *, sync: bool = True) -> bool:
    """Create `path` with `text` unless it exists. Returns True only to the one writer that created it. Raises OSError.

    Uses a hard link to a complete file rather than O_EXCL, so that a reader never finds it empty; link(2) is atomic on
    NFS, too (open(2), section O_EXCL). Falls back to O_EXCL if links are not supported. `sync`: as in `write_atomic`.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".%s.%d.%s" % (name, os.getpid(), os.urandom(4).hex()))
    write_atomic(temporary, text, sync=sync)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        try:
            with open(path, "x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            return False
    finally:
        os.unlink(temporary)
    return True


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read; nothing that would block, such as a pipe. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("%s is not a regular file" % path)
    return open(descriptor, "rb")


def main() -> None:
    """Start a program of the agent, `python3 -I agent.pyz NAME ARGUMENTS`: import that module alone, and run its
    `main`."""
    sys.exit(import_module("hpc_launch.agent." + sys.argv[1]).main(sys.argv[2:]))
