"""`detect:` and `hosts:` of a site profile: what a login node of the site is known by."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Probe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to know the site. All keys that are there must agree; one of the probes is enough."""

    env: Annotated[
        dict[str, str], Meta(description="Variables that the site sets, each with its value; `*` is any.")
    ] = {}
    host: Annotated[
        str | None, Meta(description="The full name of the host, with `*` and `?`.", examples=["*.alps.cscs.ch"])
    ] = None
    path: Annotated[str | None, Meta(description="A file or folder that is there.")] = None
    cluster: Annotated[str | None, Meta(description="Slurm's ClusterName, asked late and with a time limit.")] = None


class Hosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the site's hosts, with `*` and `?`."""

    login: Annotated[list[str], Meta(description="Login nodes.")] = []
    compute: Annotated[list[str], Meta(description="Compute nodes.")] = []
    login_internet: Annotated[
        bool | None, Meta(description="Whether login nodes reach the internet; left out, it is not known.")
    ] = None
    login_containers: Annotated[
        bool | None, Meta(description="Whether images can be run and built on login nodes; left out, it is not known.")
    ] = None


class Parameter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a template must be told: `${param.NAME}` in its texts."""

    about: Annotated[str, Meta(description="What it is, and how to find it out.")] = ""
    pattern: Annotated[str | None, Meta(description="A regular expression that the whole value matches.")] = None
    default: Annotated[str | None, Meta(description="The value where none is given; without it one must be.")] = None
    example: Annotated[
        str | None, Meta(description="A value that fits, for the profile's page and for `sites check`; no job gets it.")
    ] = None


class Unusable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes to keep off."""

    nodes: Annotated[list[str], Meta(description="Slurm host lists.")] = []
    file: Annotated[str | None, Meta(description="A file with a host list a line, read when a job is planned.")] = None
