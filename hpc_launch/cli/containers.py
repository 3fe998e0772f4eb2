"""`containers`: build, pull and check container images."""

from __future__ import annotations

import re
from pathlib import Path

import click
from msgspec.structs import asdict

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import LazyGroup, echo_answer, json_option, set_option, site_option
from hpc_launch.cli.terminal import print_note
from hpc_launch.job.shell_text import visible
from hpc_launch.prepare.container_images import (
    BuiltImage,
    build_for_site,
    check_image_file,
    check_job_image,
    pull_for_site,
    site_profile,
)

output_option = click.option("-o", "--output", metavar="FILE", help="Image file to write, or a folder ending in `/`.")
force_option = click.option("--force", is_flag=True, help="Overwrite an existing image.")


@click.group("containers", cls=LazyGroup)
def command() -> None:
    """Build and pull images for Apptainer and Singularity, and check an image before queueing a job with it.

    \b
    hpc-launch containers build cuda -o images/cuda.sif
    hpc-launch containers check job.yaml
    """


@command.command("build", short_help="build an image from a recipe")
@click.argument("recipe", metavar="RECIPE")
@output_option
@click.option(
    "--build-arg", "arguments", metavar="KEY=VALUE", multiple=True, help="Build argument for the recipe. Repeatable."
)
@force_option
@site_option
@json_option
def build_command(
    recipe: str, output: str | None, arguments: tuple[str, ...], force: bool, site: str | None, as_json: bool
) -> None:
    """Build an image from a recipe: a .def file, or a shipped recipe by name (cuda, rocm, cpu).

    \b
    hpc-launch containers build rocm -o images/rocm.sif
    hpc-launch containers build my.def --site mycluster
    """
    _show(build_for_site(recipe, output, site_profile(site), arguments, print_note, force=force), as_json)


@command.command("pull", short_help="download an image to shared storage")
@click.argument("image", metavar="URI|NAME")
@output_option
@click.option("--digest", metavar="sha256:HEX", help="Expected digest of the image file.")
@force_option
@site_option
@json_option
def pull_command(
    image: str, output: str | None, digest: str | None, force: bool, site: str | None, as_json: bool
) -> None:
    """Download an image to shared storage, given a URI or the name of a site image that has a `uri`.

    \b
    hpc-launch containers pull docker://pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime -o images/
    hpc-launch containers pull pytorch-26.05 --site mycluster
    """
    if digest is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        hint = "write sha256: followed by the 64 hex digits that `sha256sum` prints"
        raise UsageError(f"{digest} is not a valid digest", hint)
    _show(pull_for_site(image, output, site_profile(site), digest, print_note, force=force), as_json)


@command.command("check", short_help="check the image of a job, or an image file")
@click.argument("what", metavar="JOB.yaml|IMAGE")
@site_option
@set_option
@json_option
def check_command(what: str, site: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Check the image of a job, or an image file. Exits with 3 if a check fails.

    \b
    hpc-launch containers check job.yaml --site mycluster
    hpc-launch containers check images/cuda.sif
    """
    if what.endswith((".yaml", ".yml")):
        checks = check_job_image(Path(what), site, sets)
    else:
        checks = check_image_file(what, site_profile(site))
    lines, width = list[str](), max((len(check.name) for check in checks), default=0)
    for check in checks:
        lines.append(f"{check.level:<4}  {check.name:<{width}}  {visible(check.message)}")
        if check.hint and check.level != "ok":
            lines.append(f"{'':<{width + 6}}  hint: {visible(check.hint)}")
    echo_answer([asdict(one) for one in checks], lines, as_json=as_json)
    return 3 if any(one.level == "fail" for one in checks) else 0


def _show(image: BuiltImage, as_json: bool) -> None:
    record = image.record
    note = f"{record.digest}, {record.size >> 20} MiB, {record.architecture or 'unknown architecture'}"
    echo_answer(image.as_json(), [str(image.path)], note, as_json=as_json)
