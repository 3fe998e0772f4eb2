"""What a job asks for on a site, each value with its origin: the merge of all layers, typed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hpc_launch.base.findings import Place
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.merge import Merged
from hpc_launch.spec.merge import Path as KeyPath
from hpc_launch.spec.origin import Origin


class Resolved(Struct, frozen=True):
    """The job on its site. `names` fills `${…}`; `job_folder` is what relative paths start from."""

    job: JobSpec
    site: SiteProfile
    merged: Merged
    site_places: Mapping[KeyPath, Place]
    names: Mapping[str, str]
    job_folder: str
    torch: tuple[int, int] | None = None
    """PyTorch's version where it is declared or was found."""

    def origin(self, *path: str | int) -> Origin:
        """Where a job value comes from."""
        return self.merged.origin(*path)

    def place(self, *path: str | int) -> Place | None:
        """Where a job value, or what holds it, was written; without a path the job file."""
        return self.origin(*path).place or self.merged.places.get(())

    def site_origin(self, *path: str | int) -> Origin:
        """Where a fact of the site profile was written."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.site_places:
                return Origin(f"site {self.site.name}", self.site_places[path[:end]])
        return Origin(f"site {self.site.name}", note=f"site {self.site.name}: default")
