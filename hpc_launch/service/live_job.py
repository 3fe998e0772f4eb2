"""Commands where a job runs: as one of its ranks, in an allocation of its own, and the stacks of all ranks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from hpc_launch.agent.job_processes import environment_of
from hpc_launch.base.errors import Unreachable, UsageError
from hpc_launch.base.findings import Place
from hpc_launch.base.installed import ARCHIVE
from hpc_launch.base.json_records import line_record
from hpc_launch.base.run_program import run_program
from hpc_launch.diagnose.hang_stacks import late, stand
from hpc_launch.job.job_file import refuse_made_up, refuse_sweep
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.prepare.find_secrets import secrets_of
from hpc_launch.prepare.prepare import prepare_job
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.node_records import watcher_events
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.run_info import RunInfo, read_info, why_not_own
from hpc_launch.runs.run_index import Index
from hpc_launch.schedulers.local.local_jobs import read_local_state
from hpc_launch.schedulers.slurm.run_command import ask, on_cluster, submission_environment
from hpc_launch.schedulers.ssh.ssh_hosts import MAX_HOSTS_AT_ONCE, SSH
from hpc_launch.script.parts import part
from hpc_launch.script.template_environment import template_environment
from hpc_launch.service.check import announce
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.logs import attempt_with_logs
from hpc_launch.service.poll import poll_runs
from hpc_launch.service.submit import confirm_cost
from hpc_launch.sites.read_profile import load_site_profile
from hpc_launch.sites.search_path import is_file_name

STEP = ("srun", "--overlap", "--mem=0", "--job-name=hpc-launch", "--cpu-bind=none", "--mpi=none")
"""A step beside the training. Its name keeps its exit code out of the job's (schedulers/slurm/parse_jobs.py)."""
OVERLAP = (20, 11)
"""The first release of Slurm with `--overlap` (its RELEASE_NOTES)."""
STACKS_S = 60.0
"""For all nodes to answer."""


OF_BATCH = frozenset("output error open-mode requeue no-requeue signal export array".split())
"""Options of sbatch that salloc lacks, or that are about a script (salloc(1) and sbatch(1), 22.05)."""
BESIDE = "env -u SLURM_GPUS -u SLURM_MEM_PER_CPU srun --overlap --nodes=1 --ntasks=1 --mem=0 --cpu-bind=none --mpi=none"
IN_ALLOCATION = f'export HPC_LAUNCH_ALLOCATION=$(declare -p "${{!SLURM_@}}"); exec {BESIDE} "$@"'
"""What salloc runs: a shell on the first node, which later steps share with it."""


class LiveJob(Struct, frozen=True):
    """An attempt that runs, or one role of it, and the way to its nodes: `srun`, `ssh`, or '' for this machine."""

    run: RunFolder
    attempt: AttemptFolder
    way: str
    job_id: str
    nodes: tuple[str, ...]
    cluster: str | None = None
    """Slurm's cluster, where a login reaches several."""

    def command(self, nodes: Sequence[int], words: Sequence[str], *, terminal: bool = False) -> list[str]:
        """The command that starts the agent on nodes, by number: on several at a time by srun alone."""
        attempt, above = map(os.path.realpath, (self.attempt.path, self.run.path.parent))
        command = ["-I", str(self.run.hooks / ARCHIVE), "enter", os.path.relpath(attempt, above), *words]
        hosts = [self.nodes[node] for node in nodes if node < len(self.nodes)]
        if self.way == "srun":
            where = [f"--clusters={self.cluster}"] if self.cluster is not None else []
            place = [*where, f"--jobid={self.job_id}", f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}"]
            return [*STEP, *place, f"--ntasks={len(hosts)}", *(["--pty"] if terminal else []), "python3", *command]
        if not self.way:
            return [sys.executable, *command]
        return ["ssh", "-t" if terminal else "-T", *SSH[2:], "--", *hosts, shlex.join(["python3", *command])]

    def place(self, node: int | None, rank: int | None) -> tuple[int, int]:
        """The number of a rank's node and the rank, by the watchers: of the first rank of the node if none is given."""
        each, seen = (plan.processes_of(0) if (plan := plan_of(self.attempt)) else 1), dict[int, int]()
        for at, path in self.attempt.watcher_files():
            found = [event.ranks for event in watcher_events(path) if event.event == "ranks"]
            seen |= {int(one): at for ranks in found if isinstance(ranks, dict) for one in ranks if one.isdecimal()}
        if rank is None:
            rank = min((one for one, at in seen.items() if at == (node or 0)), default=(node or 0) * each)
        return seen.get(rank, rank // each) if node is None else node, rank


def live_job(run: RunFolder, index: Index, listener: Listener = QUIET, *, role: str | None = None) -> LiveJob:
    """The job of a run. Raises UsageError where it does not run, is not the user's own, or cannot be reached."""
    if (reason := why_not_own(run)) is not None:
        raise UsageError(reason, "only its owner can look into its processes")
    (status,) = poll_runs([run], index, listener, drive=False)
    files = next((one for one in map(Reader().read, reversed(run.attempts())) if one.start is not None), None)
    if files is None or files.own_end is not None or status.state not in ("STARTING", "RUNNING", "ENDING"):
        raise UsageError(f"{run.name} does not run: {status.state}", f"hpc-launch status {run.name} shows why")
    attempt = attempt_with_logs(run, files.attempt.number, role)
    if role is None and os.path.isdir(attempt.role("main").path):
        attempt = attempt.role("main")
    info = read_info(run) or RunInfo()
    job_id, kind = files.job_id or "", info.scheduler
    state = read_local_state(files.attempt.path, job_id)
    if state is not None and not state.here and kind != "ssh":
        raise UsageError(f"{run.name} runs on {state.place}", "run the command there")
    way = _access(run) if kind == "slurm" else {"allocation": "srun", "ssh": "ssh"}.get(kind, "")
    if kind == "allocation" and state is not None:
        job_id = environment_of(state.pid or 0).get("SLURM_JOB_ID", "")
    elif way == "srun" and "_" in job_id:  # srun wants the number that a task has besides (squeue(1), %A)
        with on_cluster(info.cluster):
            job_id = ask(["squeue", "--noheader", "--format=%A", f"--jobs={job_id}"]).strip()
    return LiveJob(run, attempt, way, job_id, Reader().read(attempt).nodes or files.nodes, info.cluster)


def _access(run: RunFolder) -> str:
    """How the site lets users get to the nodes of their jobs. Raises UsageError."""
    site = load_site_profile(str(run.site_yaml), Place(str(run.site_yaml)), Path.cwd())
    way, version = site.scheduler.node_access, site.scheduler.version
    if way == "none":
        hint = f"`hpc-launch why {run.name}` and `logs` show what it does"
        raise UsageError(f"site {site.name} lets nobody onto the nodes of a job (`scheduler.node_access`)", hint)
    if way == "srun" and version and tuple(map(int, version.split(".")[:2])) < OVERLAP:
        hint = "if the site allows ssh to the nodes of a job, set `scheduler: {node_access: ssh}` in its profile"
        raise UsageError(f"Slurm {version} of site {site.name} has no `srun --overlap`, which this needs", hint)
    return way


class RankText(Struct, frozen=True):
    """What the agent prints of a rank."""

    rank: int
    host: str
    text: str


def stacks(job: LiveJob) -> tuple[list[dict[str, Any]], list[str]]:
    """Ranks with equal stacks now, as in `stacks --json`, those that differ first; and what gave no answer.

    Raises Unreachable.
    """
    alone = [[at] for at in range(len(job.nodes))] if job.way == "ssh" else [range(max(len(job.nodes), 1))]
    with ThreadPoolExecutor(MAX_HOSTS_AT_ONCE) as pool:
        answers = list(pool.map(lambda nodes: _printed(job.command(nodes, ["stacks"])), alone))
    lines = (line_record(line.encode(), RankText) for text, _ in answers for line in text.splitlines())
    texts = {one.rank: one for one in lines if one is not None}
    stands, faults = {rank: stand(texts[rank].text) for rank in sorted(texts)}, [why for _, why in answers if why]
    if not texts:
        why = next(iter(faults), "its processes are not there yet, or have ended")
        raise Unreachable(f"no rank of {job.run.name} answers: {why}", "try again")
    outside, groups = late(stands, some_left=False), dict[tuple[object, ...], dict[str, Any]]()
    for rank, one in stands.items():
        place = {"state": one.state, "waits_in": one.kernel, "frames": to_builtins(one.frames)}
        new = {"ranks": [], "hosts": [], "others_wait": rank in outside, **place}
        group = groups.setdefault((rank in outside, one.frames or (one.state, one.kernel)), new)
        group["ranks"].append(rank)
        group["hosts"] = list(dict.fromkeys([*group["hosts"], texts[rank].host]))
    heard = {one.host.partition(".")[0] for one in texts.values()}
    silent = [f"{node}: no answer" for node in job.nodes if job.way and node.partition(".")[0] not in heard]
    return sorted(groups.values(), key=lambda one: (not one["others_wait"], len(one["ranks"]))), [*silent, *faults]


def _printed(words: Sequence[str]) -> tuple[str, str]:
    """What a program prints within STACKS_S, and why that is not all."""
    try:
        done = run_program(words, STACKS_S, environment=submission_environment())
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode("utf-8", "replace"), f"{words[0]}: no answer within {STACKS_S:g} s"
    except OSError as error:
        return "", f"cannot run {words[0]}: {error.strerror}"
    return done.stdout, " ".join(done.stderr.split()[-40:]) if done.returncode else ""


def allocation(
    job: Path, command: Sequence[str], listener: Listener = QUIET, *, site: str | None, sets: Sequence[str], pty: bool
) -> tuple[list[str], dict[str, str]]:
    """What starts a command, or else a shell, in an allocation with a job's resources, and the environment for that.

    `pty`: with a terminal of its own. Raises Refused, and UsageError on hosts without a scheduler.
    """
    refuse_sweep(job, sets, "shell")
    refuse_made_up(job, "shell")
    ready = prepare_job(job, site=site, sets=sets)
    announce(ready, listener, ready.warnings)
    if ready.plan.scheduler == "ssh":
        raise UsageError(f"site {ready.plan.site} has no allocations", "submit the job, then `hpc-launch shell RUN`")
    named = os.path.abspath(site) if site is not None and is_file_name(site) else ready.plan.site
    environment = submission_environment(secrets_of(ready.plan.notify, ready.plan.secrets))
    environment["HPC_LAUNCH_SITE"] = named  # for `hpc-launch run` on the node, which may look like no site
    shell = environment_shell(ready.plan, os.path.dirname(sys.executable))
    words = ["bash", "-lc" if ready.plan.around.login_shell else "-c", shell, "hpc-launch", *command]
    if ready.plan.scheduler == "slurm":
        confirm_cost(ready, listener)
        asked = [one for one in ready.plan.directives if one.option not in OF_BATCH]
        options = [f"--{one.option}" if one.value is None else f"--{one.option}={one.value}" for one in asked]
        inside = ["bash", "-c", IN_ALLOCATION, "bash", *(["--pty"] if pty else []), *words]
        words = ["salloc", *options, *inside]
    return words, environment


def environment_shell(plan: LaunchPlan, programs: str) -> str:
    """A script that becomes a shell, or its arguments, in a plan's environment. `programs`: one more folder in PATH."""
    parts = part("in_place") + part("private_folder")
    template = template_environment().get_template("interactive.sh.j2")
    return template.render(plan=plan, parts=parts, programs=programs, resume_exports=[])
