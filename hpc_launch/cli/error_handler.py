"""Where every error ends: a line and a hint for what a person can mend, a log file to send for a fault of ours.

What only an error needs is imported when there is one: `--help` and completion should not wait for it.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_launch.base.errors import UserError

FAULT_OF_OURS = 5
INTERRUPTED = 130
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def run_guarded(group: click.Group) -> int:
    """Run the command line and return its exit code (the table is in `hpc-launch --help`)."""
    # Python has no stream where the caller closed one (`>&-`).
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    try:
        result = group.main(prog_name="hpc-launch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; `hpc-launch list` shows what was submitted", err=True)
        return INTERRUPTED
    except Exception as error:
        from hpc_launch.base.errors import UserError

        if isinstance(error, UserError):
            show(error)
            return error.exit_code
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            return _cannot_write(error)
        _report(error)
        return FAULT_OF_OURS
    return result if isinstance(result, int) else 0


def _cannot_write(error: OSError) -> int:
    """What reads our output cannot take it; of files that we write, the error names the file."""
    from hpc_launch.base.errors import UsageError

    # What is still in the buffer would fail again when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    show(UsageError(f"cannot write the output: {error.strerror}", "free some space, or write it to another place"))
    return UsageError.exit_code


def show(error: UserError) -> None:
    """The error on stderr: where, what, and what to do."""
    from hpc_launch.base.errors import Refused
    from hpc_launch.cli.warn import warn
    from hpc_launch.spec.shell_text import visible

    if isinstance(error, Refused):
        warn(error.findings)
        return
    for label, text in (("error", str(error)), ("hint", error.hint)):
        if text:
            # A message may quote a file's name or another program: its lines stay, nothing else moves the cursor.
            click.echo("\n".join(map(visible, f"{label}: {text}".splitlines())), err=True)


def _report(error: Exception) -> None:
    import platform
    import tempfile
    import traceback

    from hpc_launch import __version__
    from hpc_launch.base.user_dirs import state_folder

    text = "".join(traceback.format_exception(error))
    report = (
        f"hpc-launch {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {' '.join(sys.argv[1:2])}\n\n{text}"
    )
    try:
        folder = state_folder() / "faults"
        folder.mkdir(parents=True, exist_ok=True)
        handle, where = tempfile.mkstemp(prefix="fault-", suffix=".log", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(report)
    except OSError:
        from hpc_launch.spec.shell_text import visible

        click.echo("\n".join(map(visible, report.splitlines())), err=True)
        where = "the text above"
    from hpc_launch.spec.shell_text import visible

    click.echo(visible(f"error: a fault of hpc-launch itself: {type(error).__name__}: {error}"), err=True)
    click.echo(f"hint: please send {where} with a report; look first whether it shows something private", err=True)
