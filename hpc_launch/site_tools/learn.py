"""Learning a site: the questions asked on the login node, the draft, the jobs on its nodes, and the profile's file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import write_output
from hpc_launch.base.user_dirs import config_folder
from hpc_launch.drive.detect_site import this_machine
from hpc_launch.schedulers.scheduler import Scheduler
from hpc_launch.schedulers.slurm.query_cluster import Survey, survey
from hpc_launch.site_tools.learning.draft_profile import Asked, ProfileDraft, can_do, draft, profile_name
from hpc_launch.site_tools.learning.gpu_request import settle
from hpc_launch.site_tools.learning.login_node import look
from hpc_launch.site_tools.learning.measured_facts import take
from hpc_launch.site_tools.learning.probe_jobs import Around, Smoked, Wish, shared_base, smoke
from hpc_launch.sites.this_machine import names
from hpc_launch.spec.units import parse_time


@dataclass
class Lesson:
    """What was learned: the draft, Slurm's own words behind it, and what went wrong on the nodes."""

    draft: ProfileDraft
    survey: Survey
    asked: Asked
    smoked: list[Smoked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def learn(name: str | None, scheduler: Scheduler) -> Lesson:
    """Draft a profile of this cluster; `scheduler` is asked whether it would take its jobs.

    Raises UsageError for a name that no profile can have, Unreachable where there is no Slurm here, or none that
    answers.
    """
    if name is not None and name != profile_name(name):
        raise UsageError(f"{name!r} is no name for a profile", "letters, digits, dots, dashes and underscores")
    user = names(os.environ)["user"]
    found = survey(user)
    asked = Asked(user, user_groups(), this_machine().hosts[0], time.strftime("%Y-%m-%d"))
    made = draft(name or profile_name(found.name), found, look(os.environ), asked)
    if not made.data["queues"]:
        raise UsageError("no partition of this cluster is open to you", "see `sinfo -a`, and ask for an account")
    settle(made, scheduler)
    return Lesson(made, found, asked)


def target(name: str) -> Path:
    """Where a profile goes if nobody says: among the user's own."""
    return config_folder() / "sites" / f"{name}.yaml"


def save(lesson: Lesson, path: Path) -> None:
    """Write the profile. Raises UsageError where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, lesson.draft.text())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "-o FILE names another place") from error


def measure(lesson: Lesson, path: Path, partitions: Sequence[str], patience_s: float, around: Around) -> None:
    """Run a job of two nodes in each partition, by the profile in `path`, and take over what these measured."""
    folders = {"home": os.path.expanduser("~")}
    for key in lesson.draft.data.get("paths", {}):
        variable = lesson.draft.data["paths"][key].removeprefix("${env.").removesuffix("}")
        folders[key] = os.environ.get(variable, "")
    base = shared_base(lesson.draft.name)
    lesson.smoked = smoke(path, wishes(lesson, partitions), folders, base, patience_s, around)
    lesson.faults = take(lesson.draft, lesson.smoked, lesson.asked.day, lesson.asked.user)


def wishes(lesson: Lesson, partitions: Sequence[str]) -> list[Wish]:
    """A queue for each kind of node of each partition that is asked for; all of them if none is.

    Raises UsageError for a partition that the draft does not have.
    """
    queues = lesson.draft.data["queues"]
    known = {queue["partition"] for queue in queues.values()}
    for name in partitions:
        if name not in known:
            raise UsageError(f"there is no partition {name} open to you", f"known are {', '.join(sorted(known))}")
    found = []
    for name, queue in queues.items():
        if "qos" not in queue and (not partitions or queue["partition"] in partitions):
            row = queue["limits"][0]
            most = int(row["nodes"].rpartition("-")[2])
            found.append(Wish(name, min(most, 2), parse_time(row["time"]) if "time" in row else None))
    return found


def summary(lesson: Lesson) -> dict[str, object]:
    """What `sites learn --json` says beside the file's place."""
    data = lesson.draft.data
    return {
        "name": lesson.draft.name,
        "status": data["status"],
        "slurm": lesson.survey.version,
        "can": dict(can_do(lesson.survey)),
        "node_classes": list(data["node_classes"]),
        "queues": list(data["queues"]),
        "accounts": list(lesson.survey.accounting.accounts) if lesson.survey.accounting else [],
        "unknown": data.get("unknown", []),
        "jobs": [{"queue": one.queue, "run": one.run, "fault": one.fault} for one in lesson.smoked],
        "faults": lesson.faults,
    }


def user_groups() -> frozenset[str]:
    """The groups of this user, by name."""
    import grp

    found = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            found.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(found)
