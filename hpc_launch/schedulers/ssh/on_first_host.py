"""What the other hosts ask of a job on its first host.

    python -m hpc_launch.schedulers.ssh.on_first_host state|cancel|warn JOB_ID ATTEMPT_FOLDER
    python -m hpc_launch.schedulers.ssh.on_first_host check RUN_FOLDER HOST...

`check` prints a line of JSON for each host that cannot be reached from here, or that another run uses. The others print
the state as one line of JSON, or nothing if there is none. On this host, the loss of the supervisor is noticed and ends
the job.
"""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec

from hpc_launch.schedulers.local.local_jobs import LocalJob
from hpc_launch.schedulers.local.local_scheduler import current_state, end_job, warn_job
from hpc_launch.schedulers.ssh.check_hosts import problem_of


def main(arguments: list[str]) -> int:
    """Do it."""
    if arguments[0] == "check":
        _, run_folder, first = arguments[:3]
        with ThreadPoolExecutor(max_workers=32) as pool:
            found = pool.map(lambda host: problem_of(host, run_folder, first), arguments[2:])
            for problem in filter(None, found):
                sys.stdout.write(msgspec.json.encode(problem).decode() + "\n")
        return 0
    action, job_id, folder = arguments
    here = socket.gethostname()
    state = current_state(
        LocalJob(job_id=job_id, name="", path=folder, host=here, submitted=0.0, submitter=os.getpid())
    )
    if state is None:
        return 0
    if not state.over and state.here:
        if action == "cancel":
            end_job(state)
        elif action == "warn":
            warn_job(state)
    sys.stdout.write(msgspec.json.encode(state).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
