"""`detect:` and `hosts:` of a site profile: how to recognize the site's hosts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class DetectionRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One detection rule. All of its keys must match; one matching rule is enough."""

    env: Annotated[
        dict[str, str], Meta(description="Variables that the site sets, with their values. `*` is a wildcard.")
    ] = {}
    host: Annotated[
        str | None,
        Meta(description="Fully qualified host name, with `*` and `?` as wildcards.", examples=["*.alps.cscs.ch"]),
    ] = None
    path: Annotated[str | None, Meta(description="A file or folder that exists.")] = None
    cluster: Annotated[str | None, Meta(description="Slurm's ClusterName. Queried last and with a time limit.")] = None


class Hosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host names of the site, with `*` and `?` as wildcards."""

    login: Annotated[list[str], Meta(description="Login nodes.")] = []
    compute: Annotated[list[str], Meta(description="Compute nodes.")] = []
    login_internet: Annotated[
        bool | None, Meta(description="Whether login nodes have internet access. Unknown if omitted.")
    ] = None
    login_containers: Annotated[
        bool | None, Meta(description="Whether images can be run and built on login nodes. Unknown if omitted.")
    ] = None


class Parameter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter of a template, used as `${param.NAME}`."""

    about: Annotated[str, Meta(description="What the parameter is, and how to find its value.")] = ""
    pattern: Annotated[str | None, Meta(description="Regular expression that must match the whole value.")] = None
    default: Annotated[str | None, Meta(description="Default value. Without one, the parameter is required.")] = None
    example: Annotated[
        str | None, Meta(description="Example value for the profile page and for `sites check`. Jobs never use it.")
    ] = None


class UnusableNodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes to exclude."""

    nodes: Annotated[list[str], Meta(description="Slurm host lists.")] = []
    file: Annotated[
        str | None,
        Meta(
            description="File with one host list per line, read when a job is planned. "
            "Its nodes count like reports: at most a tenth of a queue is excluded."
        ),
    ] = None
