"""A driver in a process of its own, to be killed and frozen: `python -m tests.runs.driver SCHEDULER RUNS [RUN]`.

Ends with the exit code of the error, and prints the job id or the error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hpc_launch.base.errors import UserError
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.submitting.submit_attempt import submit_new, submit_next
from tests.runs.fake import FakeScheduler
from tests.runs.samples import prepared


def main(arguments: list[str]) -> int:
    scheduler = FakeScheduler(Path(arguments[0]))
    job = prepared(Path(arguments[1]))
    try:
        if len(arguments) > 2:
            _, _, job_id = submit_next(RunFolder(Path(arguments[2])), job, scheduler, lookup_s=0.1)
        else:
            _, _, job_id = submit_new(job, scheduler, lookup_s=0.1)
    except UserError as error:
        print(error)
        return error.exit_code
    print(job_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
