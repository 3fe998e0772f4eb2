"""What a job asks for on a site, each value with its origin: the merge of all layers, typed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import Place
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.provenance import Provenance
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.origin import Origin
from hpc_launch.spec.shell_text import Text


class Logins(Struct, frozen=True):
    """A login file (~/.netrc), and the hosts that it has a login for; never what these are."""

    file: str
    hosts: frozenset[str]


class Submitter(Struct, frozen=True):
    """Where a job is submitted from; empty where it does not matter."""

    folder: str = ""
    host: str = ""


class Resolved(Struct, frozen=True):
    """The job on its site. `names` fills `${…}`; `job_folder` is what relative paths start from.

    `profile` has the values of all layers of the site profile, `provenance` the sources that each of its files names.
    """

    job: JobSpec
    site: SiteProfile
    merged: Merged
    profile: Merged
    names: Mapping[str, str]
    job_folder: str
    torch: tuple[int, int] | None = None
    """PyTorch's version where it is declared or was found."""
    logins: Logins | None = None
    """The user's login file, where the job may need it and there is one."""
    provenance: Mapping[str, Provenance] = {}
    late: Mapping[str, Text] = {}
    """Folders of the site that only the job knows, by the name in `${…}`."""
    bad_nodes: tuple[str, ...] = ()
    submitter: Submitter = Submitter()

    def origin(self, *path: str | int) -> Origin:
        """Where a job value comes from."""
        return self.merged.origin(*path)

    def place(self, *path: str | int) -> Place | None:
        """Where a job value, or what holds it, was written; without a path the job file."""
        return self.origin(*path).place or self.merged.places.get(())

    def site_origin(self, *path: str | int) -> Origin:
        """Where a fact of the site profile was written, and what to know of its source."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.profile.origins:
                origin = self.profile.origins[path[:end]]
                known = self.provenance.get(origin.place.file) if origin.place else None
                return replace(origin, fact=known.warning(path)) if known else origin
        return Origin(f"site {self.site.name}", note=f"site {self.site.name}: default")
