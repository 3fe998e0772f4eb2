"""Determine how to request GPUs: test with the cluster's sbatch which forms it accepts, without submitting a job."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpc_launch.base.errors import Refused, SchedulerError
from hpc_launch.base.files import write_atomic
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.site_tools.learning.draft_profile import ProfileDraft

REQUEST_FORMS = ("gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "none")


def choose_gpu_requests(draft: ProfileDraft, scheduler: Scheduler) -> None:
    """Test the GPU request of each node class with `sbatch --test-only`, then alternatives. Keep the first accepted
    one.

    If none is accepted, or sbatch does not respond, keep the original and note the error.
    """
    for name, node in draft.data["node_classes"].items():
        queue = next((key for key, one in draft.data["queues"].items() if one["node_class"] == name), None)
        if not node.get("gpus") or queue is None:
            continue
        first = node["gpu_request"]
        path = ("node_classes", name, "gpu_request")
        first_error: str | None = None
        for form in _candidates(first, typed="gpu_type" in node):
            draft.put(form, *path)
            rejection = _rejection(draft, queue, scheduler)
            if rejection is None:
                draft.notes[path] = f"{draft.notes.get(path, '')}; accepted by sbatch --test-only".lstrip("; ")
                break
            first_error = first_error or rejection
        else:
            draft.put(first, *path)
            draft.notes[path] = f"{draft.notes.get(path, '')}; sbatch --test-only failed: {first_error}".lstrip("; ")


def _candidates(first: str, *, typed: bool) -> Iterator[str]:
    """The form suggested by Slurm's settings, then the others. A request with the GPU type keeps the type."""
    yield first
    for form in REQUEST_FORMS:
        with_type = form.endswith("-type")
        if form != first and (typed or not with_type) and (with_type or not first.endswith("-type")):
            yield form


def _rejection(draft: ProfileDraft, queue: str, scheduler: Scheduler) -> str | None:
    """Why sbatch would reject a job in the queue, or None if it accepts it."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        profile, job = Path(folder, f"{draft.name}.yaml"), Path(folder, "job.yaml")
        write_atomic(profile, draft.text())
        job_keys = {"name": "dialect", "queue": queue, "nodes": 1, "time": "00:01:00", "launcher": "srun"}
        write_atomic(job, json.dumps({**job_keys, "command": ["true"]}))
        try:
            prepared_job = prepare_job(job, site=str(profile))
            scheduler.test_only(Submission(prepared_job.script, Path(folder), prepared_job.plan.name))
        except (Refused, SchedulerError) as error:
            return str(error)
    return None
