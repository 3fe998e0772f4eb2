"""Submit many job files in one process, as `hpc-launch submit` does one: `python -m tests.slurm.submit_all JOB...`.

Prints a line for each: the run's folder and the job id.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpc_launch.prepare.attempts import first_attempt
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import scheduler_for


def main(jobs: list[str]) -> None:
    for job in jobs:
        prepared = first_attempt(prepare_job(Path(job)), ())
        run, _, job_id = submit_new(prepared, scheduler_for(prepared.scheduler), index=user_index(os.environ))
        print(run.path, job_id, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
