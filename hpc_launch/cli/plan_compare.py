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
from hpc_launch.drive.job_layouts import JobLayouts, job_layouts
from hpc_launch.view.layout_table import layout_lines, layouts_json
from hpc_launch.view.terminal import write_lines

if TYPE_CHECKING:
    from hpc_launch.drive.prepare import CheckedJob
    from hpc_launch.estimate.compare_layouts import ComparedLayout
    from hpc_launch.performance.measured_pace import MeasuredPace


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
        _write(layouts, job, write)
    return 0 if layouts.found.layouts else Refused.exit_code


def _write(layouts: JobLayouts, job: Path, row: int) -> None:
    """Raises UsageError if there is no such row, or if the layout does not go into `parallel:`."""
    from hpc_launch.base.files import write_output
    from hpc_launch.layouts.write_layout import with_layout

    chosen = _chosen(layouts, row)
    if layouts.framework != "megatron":
        name = {"none": "ddp", "fsdp2": "fsdp", "hsdp": "fsdp"}.get(chosen.setup.sharding, chosen.setup.sharding)
        hint = f"set `strategy: {{name: {name}, micro_batch: {chosen.setup.layout.parallel.micro_batch}}}`"
        raise UsageError("only a layout for `strategy: megatron` can be written", hint)
    try:
        with job.open(encoding="utf-8", newline="") as stream:
            text = with_layout(stream.read(), chosen.setup.layout.parallel, str(job))
        if not os.access(job, os.W_OK) or not job.stat().st_mode & stat.S_IWUSR:
            raise PermissionError(errno.EACCES, "it is read-only")
        write_output(job, text, mode=stat.S_IMODE(job.stat().st_mode))
    except OSError as error:
        raise UsageError(f"cannot write {job}: {error.strerror}") from error
    print_note(f"wrote the layout into `parallel:` of {job}")
    if chosen.setup.recompute != "none":
        print_note(f"it needs recomputation: set `recompute-granularity: {chosen.setup.recompute}` in `args:`")


def _chosen(layouts: JobLayouts, row: int) -> ComparedLayout:
    if row == 0 and layouts.recommended is not None:
        return layouts.recommended
    if not 0 < row <= len(layouts.found.layouts):
        raise UsageError(f"there is no row {row}" if row else "no layout fits", "see the list of `plan --compare`")
    return layouts.found.layouts[row - 1]
