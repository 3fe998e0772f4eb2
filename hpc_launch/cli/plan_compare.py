"""`plan --compare` and `--write`: list the layouts of a job that fit, and write one into the job file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.cli.shared_options import echo_json
from hpc_launch.cli.warn import print_note
from hpc_launch.prepare.job_layouts import JobLayouts, job_layouts
from hpc_launch.view.layout_table import layout_lines, layouts_json
from hpc_launch.view.terminal import write_lines

if TYPE_CHECKING:
    from hpc_launch.estimate.compare_layouts import ComparedLayout
    from hpc_launch.performance.measured_pace import MeasuredPace
    from hpc_launch.prepare.prepare import CheckedJob


def show_comparison(
    checked: CheckedJob, job: Path, pace: MeasuredPace | None, *, write: int | None, as_json: bool
) -> int:
    """Print the layouts, and write one of them if `write` is a row, or 0 for the recommended one."""
    layouts = job_layouts(checked, pace)
    if as_json:
        echo_json(layouts_json(layouts))
    else:
        write_lines(list(layout_lines(layouts)))
    if write is not None:
        _write(checked, layouts, job, write)
    return 0 if layouts.found.layouts else Refused.exit_code


def _write(checked: CheckedJob, layouts: JobLayouts, job: Path, row: int) -> None:
    """Raises UsageError if there is no such row, or if the job file cannot say it."""
    from hpc_launch.base.files import write_output
    from hpc_launch.job.yaml_source import parse_document
    from hpc_launch.layouts.write_layout import with_edits
    from hpc_launch.plan.layout_edits import layout_edits

    chosen = _chosen(layouts, row)
    try:
        with job.open(encoding="utf-8", newline="") as stream:
            text = stream.read()
        document, _ = parse_document(text, str(job))
        data = document.data if document is not None else {}
        edits, notes = layout_edits(checked.loaded.resolved.job, data, layouts.now, chosen.setup)
        text = with_edits(text, edits, str(job))
        if not os.access(job, os.W_OK) or not job.stat().st_mode & stat.S_IWUSR:
            raise PermissionError(errno.EACCES, "it is read-only")
        write_output(job, text, mode=stat.S_IMODE(job.stat().st_mode))
    except OSError as error:
        raise UsageError(f"cannot write {job}: {error.strerror}") from error
    blocks = " and ".join(dict.fromkeys(f"`{edit.path[0]}:`" for edit in edits))
    print_note(f"wrote the layout into {blocks} of {job}" if edits else f"{job} has this layout already")
    for note in notes:
        print_note(note)


def _chosen(layouts: JobLayouts, row: int) -> ComparedLayout:
    if row == 0 and layouts.recommended is not None:
        return layouts.recommended
    if not 0 < row <= len(layouts.found.layouts):
        raise UsageError(f"there is no row {row}" if row else "no layout fits", "see the list of `plan --compare`")
    return layouts.found.layouts[row - 1]
