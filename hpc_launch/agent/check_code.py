"""The training's code on a node, for check.py: compared with that of the other nodes.

Standard library of Python 3.6 or later.
"""

import hashlib
import os
import time
from typing import Dict, Iterator

from hpc_launch.agent.check_host import Result, result, unknown
from hpc_launch.agent.file_system import LOCAL, file_system

SUFFIXES = tuple(".py .pyx .c .cc .cpp .cu .cuh .h .hpp .sh .yaml .yml .toml".split())
MOST_FILES, MOST_BYTES, LARGE = 4000, 32 << 20, 1 << 20
"""How many files and bytes are read; of a file that is larger than LARGE, the size counts."""
CODE_S = 3.0
MOST_DIGESTS = 500
"""Up to so many files, each is compared; beyond, each folder."""


def code(folder: str, runs: str) -> Result:
    """A digest of each source file, or of each folder, whose name ends with `/`. `runs` is left out."""
    if file_system(folder) not in LOCAL:
        return result(True, "%s is shared" % folder)
    end, size = time.monotonic() + CODE_S, 0
    digests: Dict[str, str] = {}
    for path in sources(folder, runs):
        if len(digests) >= MOST_FILES or size > MOST_BYTES or time.monotonic() > end:
            return unknown("%s has more than %d files, or is slow to read" % (folder, len(digests)))
        try:
            length = os.path.getsize(path)
            data = b"%d bytes" % length
            if length <= LARGE:
                with open(path, "rb") as file:
                    data = file.read(LARGE)
        except OSError as error:
            data = str(error.strerror).encode()
        size += len(data)
        digests[os.path.relpath(path, folder)] = hashlib.sha256(data).hexdigest()[:8]
    count = len(digests)
    digests = by_folder(digests) if count > MOST_DIGESTS else digests
    if len(digests) > MOST_DIGESTS:
        return unknown("%s has too many folders to compare" % folder)
    return result(True, "%d files in %s" % (count, folder), {"code": digests})


def sources(folder: str, runs: str) -> Iterator[str]:
    """The source files in a fixed order, without what is hidden, installed, or written by runs."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and os.path.join(place, name) != runs
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(place, name)


def by_folder(digests: Dict[str, str]) -> Dict[str, str]:
    """A digest for each folder."""
    texts: Dict[str, str] = {}
    for path in sorted(digests):
        folder = os.path.dirname(path) + "/"
        texts[folder] = "%s%s %s\n" % (texts.get(folder, ""), path, digests[path])
    return {name: hashlib.sha256(os.fsencode(text)).hexdigest()[:8] for name, text in texts.items()}
