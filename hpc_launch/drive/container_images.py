"""`containers` from its arguments: which site, which file, which image is meant, and who is at it already."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.findings import Place
from hpc_launch.drive.image_lock import only_one
from hpc_launch.images.apptainer_tool import find_tool
from hpc_launch.images.build_image import build, find_recipe
from hpc_launch.images.check_image import Requirements, check
from hpc_launch.images.compatibility import Check
from hpc_launch.images.image_record import ImageRecord
from hpc_launch.images.pull_image import existing_record, file_name, pull, recorded, scheme
from hpc_launch.plan.launch_plan import ContainerPlan
from hpc_launch.plan.launchers.descriptor import descriptor
from hpc_launch.sites import this_machine
from hpc_launch.sites.load_profile import load_site_profile
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.spec.shell_text import Text, UnknownName, interpolate, plain

Say = Callable[[str], None]


class BuiltImage(Struct, frozen=True):
    """An image that is in its place. `new`: it was not there before."""

    path: str
    record: ImageRecord
    new: bool

    def as_json(self) -> dict[str, object]:
        """What `containers build --json` and `pull --json` print."""
        return {"path": self.path, "new": self.new, **self.record.as_json()}


def site_profile(name: str | None) -> SiteProfile | None:
    """The profile that is asked for, or that $HPC_LAUNCH_SITE names; None where no site is named. Raises Refused."""
    name = name or os.environ.get("HPC_LAUNCH_SITE")
    return load_site_profile(name, Place("--site")) if name else None


def make(
    name: str, output: str | None, site: SiteProfile | None, arguments: Sequence[str], say: Say, *, force: bool
) -> BuiltImage:
    """Build a recipe to its place. Raises UsageError where an image is there already, unless `force`."""
    recipe = find_recipe(name)
    image = _place(output, f"{recipe.stem}.sif", site)
    tool = find_tool(site.containers.runtime if site else None)
    with only_one(image, say):
        if image.exists() and not force:
            raise UsageError(f"{image} is there already", "build it anew with --force, or name another file with -o")
        _left_over(image)
        return BuiltImage(str(image), build(recipe, image, tool, arguments, say), new=True)


def bring(
    name: str, output: str | None, site: SiteProfile | None, digest: str | None, say: Say, *, force: bool
) -> BuiltImage:
    """Pull an image to its place, once: whoever comes second waits, and finds it there. Raises as `pull` does."""
    named = site.containers.images.get(name) if site else None
    uri = named.uri if named else name
    if uri is None:
        raise UsageError(f"the profile does not say where {name} comes from", "add `uri:` to it, or give the URI")
    if scheme(uri) is None:
        known = ", ".join(site.containers.images) if site else "none, as no site is named"
        raise UsageError(f"{uri} is no URI of an image", f"such as docker://NAME:TAG; images of the site: {known}")
    recorded(uri)  # refuses one that must not be written down
    wanted = digest or (named.digest if named else None)
    if named is not None and output is None:
        image = Path(_filled(named.path, site))
    else:
        image = _place(output, file_name(uri), site)
    with only_one(image, say):
        record = None if force else existing_record(image, uri, wanted, say)
        if record is not None:
            return BuiltImage(str(image), record, new=False)
        _left_over(image)
        return BuiltImage(str(image), pull(uri, image, wanted, say), new=True)


def look_at_job(job_file: Path, site: str | None, sets: Sequence[str]) -> list[Check]:
    """The image of a job, for all that the job needs of it. What refuses the job is a failure as well."""
    from hpc_launch.drive.prepare import make_ready
    from hpc_launch.plan.fill_values import ValueFiller
    from hpc_launch.plan.job_size import job_size
    from hpc_launch.plan.site_context import condition_facts
    from hpc_launch.sites.fabric import overlay_fabric

    try:
        ready = make_ready(job_file, site=site, sets=sets)
    except Refused as refused:
        return [
            Check("job", "fail" if one.severity == "error" else "warn", str(one), one.hint) for one in refused.findings
        ]
    plan, resolved = ready.plan, ready.loaded.resolved
    filler = ValueFiller(resolved, [])
    form, job = job_size(filler), resolved.job
    if plan.container is None or job.container is None or form is None:
        raise UsageError(f"{job_file} runs in no image", "add `container:`, or name an image file")
    fabric = overlay_fabric(resolved.site.fabric, form.node_class.fabric)[0]
    site_says = resolved.site.containers
    declared = site_says.images.get(job.container.image)
    first = plain(plan.program.words[0]) if plan.program.kind == "command" else None
    wanted = Requirements(
        container=plan.container,
        python=plain(plan.python) or "python3",
        launcher=descriptor(plan.launcher).in_image,
        script=filler.file(job.script, ("script",)) if job.script is not None else None,
        module=job.module.partition(".")[0] if job.module is not None else None,
        program=first,
        arch=form.node_class.arch,
        vendor=_vendor(plan.gpus_per_node, form.node_class.gpu_vendor),
        driver=condition_facts(filler, form).versions.get("driver"),
        torch=job.environment.torch or (declared.torch if declared else None),
        fabric=fabric.kind if plan.nodes > 1 else None,
        plugin=fabric.plugin,
        net=fabric.net,
        libraries=tuple(site_says.libraries) if site_says.libraries is not None else None,
        variables=plan.variables,
        inside=plan.around.inside,
    )
    return list(check(wanted))


def look_at_image(name: str, site: SiteProfile | None) -> list[Check]:
    """An image by itself, for the site's default queue, or for this machine where no site is named."""
    named = site.containers.images.get(name) if site else None
    path = _filled(named.path, site) if named else name
    runtime = site.containers.runtime if site else "apptainer"
    if runtime == "none":
        raise UsageError(f"site {site.name if site else ''} runs no containers")
    queue = site.queues.get(site.default_queue or next(iter(site.queues), "")) if site else None
    node = site.node_classes.get(queue.node_class) if site and queue else None
    arch = node.arch if node else os.uname().machine
    libraries = site.containers.libraries if site else None
    return list(
        check(
            Requirements(
                container=_bare(os.path.abspath(path), runtime, site),
                arch=arch,
                vendor=_vendor(node.gpus, node.gpu_vendor) if node else None,
                driver=({**site.versions, **node.versions} if site and node else {}).get("driver"),
                torch=named.torch if named else None,
                fabric=site.fabric.kind if site else None,
                plugin=site.fabric.plugin if site else None,
                net=site.fabric.net if site else None,
                libraries=tuple(libraries) if libraries is not None else None,
            )
        )
    )


def _bare(image: str, runtime: str, site: SiteProfile | None) -> ContainerPlan:
    says = site.containers if site else None
    return ContainerPlan(
        runtime=runtime,  # type: ignore[arg-type]
        image=image,
        binds=tuple(_known_binds(says.binds, site)) if says else (),
        workdir="/",
        gpus=None,
        home=says.home if says else False,
        writable=says.writable if says else False,
        options=tuple(says.options) if says else (),
        variables=(),
    )


def _known_binds(binds: Sequence[str], site: SiteProfile | None) -> Iterator[Text]:
    """Those of the site's binds that are known without a job."""
    for bind in binds:
        with suppress(UsageError):
            yield (_filled(bind, site),)


def _vendor(gpus: int, vendor: str | None) -> str | None:
    return (vendor or "nvidia") if gpus else None


def _left_over(image: Path) -> None:
    """Take away what killed builds and pulls left. The caller holds the lock."""
    for draft in image.parent.glob(f".{glob.escape(image.name)}.*.draft"):
        draft.unlink(missing_ok=True)


def _place(output: str | None, name: str, site: SiteProfile | None) -> Path:
    """Where an image goes: as said, into the site's folder, or here. Raises UsageError where that is no folder."""
    if output is not None:
        image = Path(output).absolute()
        image = image / name if output.endswith("/") or image.is_dir() else image
    else:
        folder = site.containers.folder if site else None
        image = Path(_filled(folder, site) if folder else os.getcwd()) / name
    try:
        image.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {image.parent}: {error.strerror}", "name another place with -o") from error
    return image


def _filled(text: str, site: SiteProfile | None) -> str:
    """A path of the profile. Raises UsageError where a name in it is not known outside a job."""
    names = this_machine.names(os.environ)
    try:
        for key, folder in (site.paths if site else {}).items():
            if f"${{paths.{key}}}" in text:
                names[f"paths.{key}"] = plain(interpolate(folder.path, names)) or ""
        path = plain(interpolate(text, names))
    except UnknownName as unknown:
        raise UsageError(f"`${{{unknown.name}}}` in {text} is not known here", "name a file with -o") from unknown
    if path is None:
        raise UsageError(f"{text} is known only inside a job", "name a file with -o")
    return os.path.expanduser(path)
