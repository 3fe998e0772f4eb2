"""A site profile, typed: what differs from cluster to cluster, as data. Docs and JSON schema are made from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.sites.containers import Containers
from hpc_launch.sites.network import Launch, Network
from hpc_launch.sites.nodes import NodeClass
from hpc_launch.sites.queues import Account, Queue
from hpc_launch.spec.values import NAME_PATTERN


class SchedulerFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who runs the jobs here."""

    type: Annotated[Literal["slurm", "local"], Meta(description="Slurm, or this machine without any scheduler.")]
    requeue: Annotated[
        Literal["never", "scheduler"],
        Meta(
            description="Who starts a job again after its node failed or it was preempted: `never` Slurm (the script "
            "says `--no-requeue`), or the `scheduler` itself."
        ),
    ] = "never"

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`scheduler: slurm`."""
        return {"type": value} if isinstance(value, str) else None


class SiteProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster, or this machine."""

    name: Annotated[
        str, Meta(description="What `--site` calls it.", pattern=NAME_PATTERN, max_length=64, examples=["juwels"])
    ]
    title: Annotated[str, Meta(description="The name in full.")] = ""
    kind: Annotated[
        Literal["system", "template", "base"],
        Meta(description="A real `system`, a `template` to be filled in, or a `base` that others build on."),
    ] = "system"
    status: Annotated[
        Literal["verified", "documented", "draft"],
        Meta(description="`verified` on the system, `documented` from its published pages, or a `draft`."),
    ] = "draft"
    grade: Annotated[
        Literal["A", "B", "C"] | None, Meta(description="How good the sources are: A the centre's own, C hearsay.")
    ] = None
    source: Annotated[str | None, Meta(description="Where the facts come from.")] = None
    as_of: Annotated[str | None, Meta(description="The day they were read, YYYY-MM-DD.")] = None
    contact: Annotated[str | None, Meta(description="Who keeps the profile.")] = None
    url: Annotated[str | None, Meta(description="The site's own documentation.")] = None
    scheduler: Annotated[SchedulerFacts, Meta(description="Who runs the jobs.")]
    node_classes: Annotated[dict[str, NodeClass], Meta(description="The kinds of nodes, by a name.")]
    queues: Annotated[dict[str, Queue], Meta(description="The places to run, by a name that job files use.")]
    default_queue: Annotated[
        str | None, Meta(description="The queue of a job that names none; the first one if left out.")
    ] = None
    account: Annotated[Account, Meta(description="Rules for the account.")] = Account()
    paths: Annotated[
        dict[str, str],
        Meta(
            description="Folders that job files name as `${paths.NAME}`. `${user}`, `${home}`, `${account}` and "
            "`${env.NAME}` may stand in them.",
            examples=[{"scratch": "/scratch/${user}"}],
        ),
    ] = {}
    network: Annotated[Network, Meta(description="How processes find each other.")] = Network()
    launch: Annotated[Launch, Meta(description="How the step is started.")] = Launch()
    containers: Annotated[Containers, Meta(description="How images run here, and which there are.")] = Containers()
    defaults: Annotated[
        dict[str, Any],
        Meta(description="Keys of a job file that hold here unless the job says otherwise, such as `env`."),
    ] = {}


class Overlay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's own `user.yaml`: what no shared profile should hold, such as the account."""

    defaults: Annotated[dict[str, Any], Meta(description="Keys of a job file that hold on every site.")] = {}
    sites: Annotated[
        dict[str, dict[str, Any]], Meta(description="Keys of a job file that hold on one site, by its name.")
    ] = {}
