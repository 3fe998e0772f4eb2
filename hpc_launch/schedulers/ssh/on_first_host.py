"""What the other hosts ask of a job on its first host.

    python -m hpc_launch.schedulers.ssh.on_first_host state|cancel|warn JOB_ID ATTEMPT_FOLDER
    python -m hpc_launch.schedulers.ssh.on_first_host check RUN_FOLDER HOST...

`check` prints a line for each host that cannot be reached from here, or that another run uses. The others print the
state as one line of JSON, or nothing if there is none. On this host, the loss of the supervisor is noticed and ends the
job.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.local.local_jobs import LocalJob
from hpc_launch.schedulers.local.local_scheduler import current_state, end_job, warn_job
from hpc_launch.schedulers.ssh.ssh_command import on_host
from hpc_launch.spec.shell_text import quote


def main(arguments: list[str]) -> int:
    """Do it."""
    if arguments[0] == "check":
        with ThreadPoolExecutor(max_workers=32) as pool:
            for line in pool.map(lambda host: problem_of(host, arguments[1]), arguments[2:]):
                sys.stdout.write(line)
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


def problem_of(host: str, run_folder: str) -> str:
    """Why a run cannot use a host, as a line; '' if it can."""
    words = (
        ["true"]
        if not run_folder
        else ["python3", "-I", f"{run_folder}/hooks/hpc_launch_lease.py", os.path.basename(run_folder)]
    )
    try:
        answer = on_host(host, [f"exec {' '.join(map(quote, words))}"], timeout_s=40)
    except Unreachable as error:
        return f"{error}; {error.hint}\n"
    except (OSError, subprocess.TimeoutExpired):
        return f"{host} does not answer over ssh\n"
    if answer.code != 0:
        return f"{host}: {answer.error or f'exit code {answer.code}'}\n"
    used = answer.output.strip().splitlines()
    return f"{host}: {used[0]}\n" if used else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
