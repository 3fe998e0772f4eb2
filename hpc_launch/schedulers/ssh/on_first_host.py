"""What the other hosts ask of a job on its first host.

    python -m hpc_launch.schedulers.ssh.on_first_host state|cancel|warn JOB_ID ATTEMPT_FOLDER

Prints the state as one line of JSON, or nothing if there is none. On this host, the loss of the supervisor is noticed
and ends the job.
"""

from __future__ import annotations

import os
import socket
import sys

import msgspec

from hpc_launch.schedulers.local.local_jobs import LocalJob
from hpc_launch.schedulers.local.local_scheduler import current_state, end_job, warn_job


def main(arguments: list[str]) -> int:
    """Do it."""
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
