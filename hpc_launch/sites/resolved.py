"""The job on its site: all layers merged and typed, each value with its origin."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import Place
from hpc_launch.job.document import Origin
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Merged
from hpc_launch.job.shell_text import Text
from hpc_launch.sites.network import JobHost
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.provenance import Provenance, third_party_note


class Logins(Struct, frozen=True):
    """A login file (~/.netrc) and the hosts it contains, without the credentials."""

    file: str
    hosts: frozenset[str]


class Submitter(Struct, frozen=True):
    """Folder and host from which a job is submitted. Empty if irrelevant."""

    folder: str = ""
    host: str = ""


class Resolved(Struct, frozen=True):
    """The job on its site. `names` are the values for `${…}`; relative paths start at `job_folder`.

    `profile` has the merged values of the site profile, `provenance` the sources that each of its files names.
    """

    job: JobSpec
    site: SiteProfile
    merged: Merged
    profile: Merged
    names: Mapping[str, str]
    job_folder: str
    torch: tuple[int, int] | None = None
    """PyTorch version, if declared or found."""
    logins: Logins | None = None
    """The user's login file, if it exists and the job may need it."""
    provenance: Mapping[str, Provenance] = {}
    late: Mapping[str, Text] = {}
    """Site folders that only the job knows, by their name in `${…}`."""
    listed_nodes: tuple[str, ...] = ()
    """Nodes named in the site's `bad_nodes.file`."""
    submitter: Submitter = Submitter()
    hosts: tuple[JobHost, ...] = ()
    """The hosts of the job, where the site has no scheduler (`scheduler: ssh`)."""
    spare_hosts: tuple[JobHost, ...] = ()
    """Those that it holds besides: a following attempt may have fewer than the job requests."""
    site_hosts: int | None = None
    """The number of hosts that such a site has."""
    elsewhere: bool = False
    """Whether this machine is not the site, so that the site's files and variables cannot be checked here."""
    role: str = ""
    """The role of a job that this is; empty for a whole job."""

    def origin(self, *path: str | int) -> Origin:
        """Origin of a job value."""
        return self.merged.origin(*path)

    def place(self, *path: str | int) -> Place | None:
        """Where a job value, or its closest parent, was written. Without a path: the job file."""
        return self.origin(*path).place or self.merged.places.get(())

    def site_origin(self, *path: str | int) -> Origin:
        """Origin of a fact of the site profile, with a note on its source."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.profile.origins:
                origin = self.profile.origins[path[:end]]
                known = self.provenance.get(origin.place.file) if origin.place else None
                return replace(origin, fact=third_party_note(known.fact(path))) if known else origin
        return Origin(f"site {self.site.name}", note=f"site {self.site.name}: default")
