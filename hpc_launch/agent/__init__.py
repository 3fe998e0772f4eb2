"""Programs for the job, of which a run folder gets a copy: one file, `agent.pyz`.

Standard library of Python 3.6 or later. They import nothing else of hpc_launch, which no node needs to have.
"""

import os
import sys
import time
from importlib import import_module
from typing import List

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
"""First words of a program for `python -c`: anybody may have put a module into the current folder."""
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


def main() -> None:
    """Start a program of the agent, `python3 -I agent.pyz NAME ARGUMENTS`: import that module alone, and run its
    `main`."""
    sys.exit(import_module("hpc_launch.agent." + sys.argv[1]).main(sys.argv[2:]))
