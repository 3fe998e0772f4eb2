"""Where everything of a run lies on disk. The folders are the truth; whatever else there is can be made from them.

    RUN/                            named NAME-YYMMDD-HHMMSS-xxxx, on shared storage
    ├── job.yaml                    the job file as submitted
    ├── resolved.yaml               every merged value with its origin
    ├── site.yaml                   the site as it was resolved then
    ├── run.json                    {"run", "name", "site", "scheduler", "created", "version"}
    ├── hooks/hpc_launch_hooks.py   what a training may import
    │         hpc_launch_watch.py   the watcher that each node runs beside the launcher
    ├── code/  code.json            the training's code at submission, which all attempts run
    ├── journal/HOST-PID-xxxx.jsonl a file a writer, only ever appended to by that writer
    └── attempts/NNN/               mkdir is the claim of the number
        ├── script.sh  plan.json    what was submitted, and the plan behind it
        ├── intent.json             {"token", "job_name", "time", "options", "overrides", "host", "pid", "pid_start"}:
        │                           written before sbatch
        ├── job.json                {"job_id", "submitted", "restart", "cluster"}: written after sbatch, by
        │                           whoever found the token, or by the job itself when Slurm requeued it
        ├── claim                   one line, created once: a job id (the job started), or `void REASON` (it never will)
        ├── start.json  end.json    written by the job itself
        ├── final.json              the last word of the scheduler, kept because the scheduler forgets
        ├── batch.log               the batch shell
        ├── logs/node-K.log         all ranks of node K; `[rankR]:` at the start of a line of rank R
        ├── logs/node-K.rank-R.log  rank R alone, with the launcher srun
        ├── stop                    appears when the job is asked to save and end
        ├── done                    the training may make it when no step is left
        ├── ending                  appears when the job is being ended: a SIGTERM is then no warning
        ├── cancel.json             {"time", "by", "host"}: a person asked for the end of this attempt
        ├── diagnosis.json          what ended the attempt, once the scheduler's last word is known
        ├── verdict.json            what ended the attempt and what follows, created once by the first driver there
        └── hook.log                what the job's own end hook said

`claim` is the one lock there is: a job trains only if it created the file, and whoever gives an attempt up creates
it first. So a driver that was frozen before sbatch and wakes up later submits a job that ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptFolder:
    """The folder of one attempt, and the names in it."""

    path: Path

    @property
    def number(self) -> int:
        """Counted from 1."""
        return int(self.path.name)

    @property
    def script(self) -> Path:
        return self.path / "script.sh"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def intent(self) -> Path:
        return self.path / "intent.json"

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def claim(self) -> Path:
        return self.path / "claim"

    @property
    def start(self) -> Path:
        return self.path / "start.json"

    @property
    def end(self) -> Path:
        return self.path / "end.json"

    @property
    def final(self) -> Path:
        return self.path / "final.json"

    @property
    def batch_log(self) -> Path:
        return self.path / "batch.log"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def stop(self) -> Path:
        return self.path / "stop"

    @property
    def cancel(self) -> Path:
        return self.path / "cancel.json"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def first_log(self) -> Path:
        """The output of rank 0: with its node's other ranks, or alone where srun starts each process."""
        alone = self.logs / "node-0.rank-0.log"
        return alone if alone.exists() else self.logs / "node-0.log"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def info(self) -> Path:
        return self.path / "run.json"

    @property
    def job_yaml(self) -> Path:
        return self.path / "job.yaml"

    @property
    def resolved_yaml(self) -> Path:
        return self.path / "resolved.yaml"

    @property
    def site_yaml(self) -> Path:
        return self.path / "site.yaml"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def after(self) -> Path:
        """The command that the job runs when it ends."""
        return self.path / "after.sh"

    @property
    def hooks(self) -> Path:
        return self.path / "hooks"

    def attempt(self, number: int) -> AttemptFolder:
        """The folder of attempt `number`, whether it exists or not."""
        return AttemptFolder(self.path / "attempts" / f"{number:03d}")

    def attempts(self) -> list[AttemptFolder]:
        """All attempts there are, by number."""
        try:
            names = sorted(entry.name for entry in (self.path / "attempts").iterdir() if entry.name.isdecimal())
        except OSError:
            return []
        return [AttemptFolder(self.path / "attempts" / name) for name in names]
