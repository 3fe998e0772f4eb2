"""Parts of a launch plan that plan.json records, in a module that drivers and views can import without the planner."""

from __future__ import annotations

from msgspec import Struct, field

from hpc_launch.job.retry import Retry
from hpc_launch.job.shell_text import RUNTIME, Text


class CodePlan(Struct, frozen=True):
    """The folder that is copied at submission, and the patterns excluded from the copy."""

    root: str
    exclude: tuple[str, ...] = ()
    limit_mib: int = 100


class CheckpointPlan(Struct, frozen=True, kw_only=True):
    """Where checkpoints are and when one is complete; `job.checkpoint` describes each field."""

    dir: tuple[str | None, ...] = ()
    """Parts of the folder's path. None stands for the run folder, which is not known when the plan is made."""
    pattern: str = ""
    complete: tuple[str, ...] = ()
    latest: str | None = None

    def folder(self, run: str) -> str:
        """The folder with the checkpoints of the run in this folder."""
        return "".join(run if part is None else part for part in self.dir)

    @property
    def text(self) -> Text:
        """The folder, for the script."""
        return tuple(RUNTIME["run.dir"] if part is None else part for part in self.dir)


class BatchPlan(Struct, frozen=True):
    """Where the job file sets its batch size: dotted keys and values."""

    micro_key: str
    micro: int
    accumulation_key: str | None = None
    """None if the training derives it."""
    accumulation: int = 1


class RetryPlan(Struct, frozen=True):
    """The retry policy of the job file, and the values that a changed attempt starts from."""

    retry: Retry = Retry()
    batch: BatchPlan | None = None
    memory: int | None = None
    """MiB per node; 0 means all of it, None not requested."""
    node_memory: int | None = None
    time_s: int | None = None
    most_time_s: int | None = None
    nodes: int | None = None
    """None for an elastic run."""
    least_nodes: int = 1
    """The fewest nodes that the job can run on."""
    max_nodes: int | None = field(default=None, name="most_nodes")
    site_hosts: int | None = None
    """The number of hosts of a site without a scheduler."""
    queue: str | None = None
    partition: str | None = None
    exclude: tuple[str, ...] = ()
    """Host lists excluded by the job file and the site profile."""
    listed: tuple[str, ...] = ()
    """Nodes named in the site's `bad_nodes.file`. Others may write to it, so that they count like reports."""
    ledger: str | None = None
    """The site's folder for notes on bad nodes; None: the user's own."""
    sentinel: tuple[str, ...] | None = None
    """sbatch options of the sentinel job; None if the site does not use one."""
    successor: bool = False
    """Whether the run's next job waits in the queue while the current one runs."""

    @property
    def elastic(self) -> bool:
        """Whether the run can continue with fewer nodes."""
        return self.nodes is None


class WebhookPlan(Struct, frozen=True):
    """The variable with the address of a webhook, and what the other side expects."""

    secret: str
    format: str


class NotifyChannels(Struct, frozen=True):
    """Who gets messages, besides Slurm's mails."""

    webhook: WebhookPlan | None = None
    command: tuple[str, ...] = ()


class NotifyPlan(Struct, frozen=True):
    """What is sent, as `agent/notify.py` reads it."""

    events: tuple[str, ...] = ()
    no_progress_s: int = 0
    each_point: bool = False
    channels: NotifyChannels = NotifyChannels()

    @property
    def secret(self) -> str | None:
        """The variable with the address of the webhook."""
        return self.channels.webhook.secret if self.channels.webhook is not None else None
