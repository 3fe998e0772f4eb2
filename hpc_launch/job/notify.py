"""`notify:` and `trackers:` of a job file: messages about a run, and experiment trackers."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import Duration, short_form

NotifyEvent = Literal["start", "first_step", "end", "stop", "no_progress"]
WebhookFormat = Literal["slack", "mattermost", "teams", "ntfy", "json"]


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A web address that gets a POST request for each message. It is a secret: who has it can write to the channel."""

    secret: Annotated[str, Meta(examples=["SLACK_URL"])]
    """Name of the variable with the address. Its value comes from the submitting shell or from `secrets.env` in the
    configuration folder (mode 0600), and is written to no file of the run."""
    format: WebhookFormat = "json"
    """What the other side expects."""

    __short_forms__ = short_form("`webhook: HOOK_URL`: the variable with the address.", {str: "secret"})


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages about a run. Each is sent once, by whoever sees the event first: the job itself, or a driver."""

    events: list[NotifyEvent] = []
    """`start`: the job runs. `first_step`: its log shows a step (needs `progress.step`). `end`: the run is over.
    `stop`: it was given up, and a person must act. `no_progress`: nothing new for too long. Default: all."""
    no_progress: Annotated[Duration, Meta(ge=1)] = 1200
    """How long there may be no new step before a message; no output, without `progress.step`."""
    mail: Annotated[str | None, Meta(pattern=r"^[A-Za-z0-9_+.%-]+(@[A-Za-z0-9.-]+)?$", examples=["me@example.org"])] = (
        None
    )
    """Address for Slurm's own mails (`--mail-user`). They are about jobs, and cover `start`, `end` and `stop`."""
    webhook: Webhook | None = None
    """A webhook."""
    command: Annotated[list[str], Meta(examples=[["~/bin/tell-me"]])] = []
    """A program and its arguments. It gets the event as JSON on standard input, and 10 seconds."""
    each_point: bool = False
    """Send messages about each point of a sweep. Default: about the sweep as a whole."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The events that are told."""
        return tuple(dict.fromkeys(self.events or get_args(NotifyEvent)))


class Tracker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment tracker that the training writes to. hpc-launch sets the variables that it needs on the site."""

    name: Literal["wandb", "tensorboard", "mlflow", "neptune"]
    """`wandb` is Weights & Biases; `tensorboard` writes files to the run folder. All attempts continue one run of
    the tracker ([details](continuation.md#one-run-of-the-tracker))."""
    mode: Literal["online", "offline"] | None = None
    """wandb: `online` sends data while the job runs; `offline` writes to the run folder for a later `wandb sync`.
    Default: as the site's `internet` allows."""

    __short_forms__ = short_form("`trackers: [wandb]`.", {str: "name"})
