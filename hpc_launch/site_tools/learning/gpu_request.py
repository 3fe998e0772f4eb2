"""In which words GPUs are asked for: the cluster's own sbatch says which of them it takes, without submitting a job."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpc_launch.base.errors import Refused, SchedulerError
from hpc_launch.base.files import write_atomic
from hpc_launch.drive.prepare import make_ready
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.site_tools.learning.draft_profile import ProfileDraft

DIALECTS = ("gpus-per-node", "gpus-per-node-type", "gres", "gres-type", "gpus", "none")


def settle(draft: ProfileDraft, scheduler: Scheduler) -> None:
    """Try the dialect of each node class with GPUs, then others, by `sbatch --test-only`; keep the first that is taken.

    Where none is taken, or sbatch does not answer, the draft keeps what it has and says what was heard.
    """
    for name, node in draft.data["node_classes"].items():
        queue = next((key for key, one in draft.data["queues"].items() if one["node_class"] == name), None)
        if not node.get("gpus") or queue is None:
            continue
        first = node["gpu_request"]
        path = ("node_classes", name, "gpu_request")
        heard: str | None = None
        for dialect in _candidates(first, typed="gpu_type" in node):
            draft.put(dialect, *path)
            refusal = _refusal(draft, queue, scheduler)
            if refusal is None:
                draft.notes[path] = f"{draft.notes.get(path, '')}; sbatch --test-only takes it".lstrip("; ")
                break
            heard = heard or refusal
        else:
            draft.put(first, *path)
            draft.notes[path] = f"{draft.notes.get(path, '')}; sbatch --test-only said: {heard}".lstrip("; ")


def _candidates(first: str, *, typed: bool) -> Iterator[str]:
    """The dialect that Slurm's settings speak for, then the others. One with the type stays one with the type."""
    yield first
    for dialect in DIALECTS:
        with_type = dialect.endswith("-type")
        if dialect != first and (typed or not with_type) and (with_type or not first.endswith("-type")):
            yield dialect


def _refusal(draft: ProfileDraft, queue: str, scheduler: Scheduler) -> str | None:
    """Why sbatch would refuse a job of the queue; None where it takes it."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        profile, job = Path(folder, f"{draft.name}.yaml"), Path(folder, "job.yaml")
        write_atomic(profile, draft.text())
        asked = {"name": "dialect", "queue": queue, "nodes": 1, "time": "00:01:00", "launcher": "srun"}
        write_atomic(job, json.dumps({**asked, "command": ["true"]}))
        try:
            ready = make_ready(job, site=str(profile))
            scheduler.test_only(Submission(ready.script, Path(folder), ready.plan.name))
        except (Refused, SchedulerError) as error:
            return str(error)
    return None
