"""Start Python without its habit of importing from the current folder, where anybody may have put a `json.py`."""

from __future__ import annotations

import sys

WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
"""First words of a program for `python -c`. Python 3.11 has `-P` for this; `-I` would also ignore PYTHONPATH, by which
modules of a centre provide packages."""
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def module_command(module: str) -> list[str]:
    """The command `python -m MODULE` with this interpreter, without the current folder in `sys.path`."""
    return [sys.executable, "-c", f"{WITHOUT_CURRENT_FOLDER}{_RUN_MODULE}", module]
