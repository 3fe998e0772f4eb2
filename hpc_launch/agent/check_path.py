"""The check of a path among the arguments of the training, for check.py. Standard library of Python 3.6."""

import os

from hpc_launch.agent.check_host import Result, result
from hpc_launch.agent.file_system import LOCAL, file_system

MISSING = "missing"


def readable(path: str) -> Result:
    """Whether a path exists; a file server that is down never answers. The value says where it is."""
    try:
        if os.path.isdir(path):
            os.scandir(path).close()
        os.stat(path)
    except OSError as error:
        value = MISSING if isinstance(error, FileNotFoundError) else None
        return result(False, "%s: %s" % (path, error.strerror), value)
    return result(True, path, "local" if file_system(path) in LOCAL else "shared")
