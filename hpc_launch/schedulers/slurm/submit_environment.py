"""What this whole process lends Submitit while it runs sbatch: its variables, and its stdout and stderr."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator, Mapping

from hpc_launch.schedulers.slurm.command_environment import submission_environment

_process_wide = threading.Lock()


@contextlib.contextmanager
def surroundings(more: Mapping[str, str]) -> Iterator[None]:
    """This process's variables without leaks and with `more`, and nothing printed, while Submitit runs sbatch.

    Submitit starts the command with the variables of this process, and prints a failing command's stderr.
    """
    with _process_wide:
        before = dict(os.environ)
        wanted = submission_environment(more)
        try:
            _set_environment(wanted)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            _set_environment(before)


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)
