"""`containers`: build and pull images, and look whether one fits a job before anything is queued."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.lazy_group import LazyGroup
from hpc_launch.cli.shared_options import echo_json, json_option, set_option, site_option
from hpc_launch.cli.warn import say

if TYPE_CHECKING:
    from hpc_launch.drive.container_images import BuiltImage

output_option = click.option(
    "-o", "--output", metavar="FILE", help="Where the image goes: a file, or a folder with a `/`."
)
force_option = click.option("--force", is_flag=True, help="Replace an image that is there.")


COMMANDS = {
    "build": "build an image from a recipe",
    "pull": "bring an image to shared storage, once",
    "check": "look into the image of a job, or into an image by itself",
}
"""The commands by name; the function of `NAME` is `NAME_command`."""


@click.group("containers", cls=LazyGroup, about=COMMANDS, load=lambda name: globals()[f"{name}_command"])
def command() -> None:
    """Build and pull images for Apptainer and Singularity, and check one before a job is queued with it.

    \b
    hpc-launch containers build cuda -o images/cuda.sif
    hpc-launch containers check job.yaml
    """


@click.command("build")
@click.argument("recipe", metavar="RECIPE")
@output_option
@click.option(
    "--build-arg", "arguments", metavar="KEY=VALUE", multiple=True, help="A value for the recipe; repeatable."
)
@force_option
@site_option
@json_option
def build_command(
    recipe: str, output: str | None, arguments: tuple[str, ...], force: bool, site: str | None, as_json: bool
) -> None:
    """Build an image from a recipe: a .def file, or the name of a shipped one (cuda, rocm, cpu).

    \b
    hpc-launch containers build rocm -o images/rocm.sif
    hpc-launch containers build my.def --site mycluster
    """
    from hpc_launch.drive.container_images import make, site_profile

    _show(make(recipe, output, site_profile(site), arguments, say, force=force), as_json)


@click.command("pull")
@click.argument("image", metavar="URI|NAME")
@output_option
@click.option("--digest", metavar="sha256:HEX", help="What the file must come to.")
@force_option
@site_option
@json_option
def pull_command(
    image: str, output: str | None, digest: str | None, force: bool, site: str | None, as_json: bool
) -> None:
    """Bring an image to shared storage, once: by a URI, or by the name of one of the site's that has a `uri`.

    \b
    hpc-launch containers pull docker://pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime -o images/
    hpc-launch containers pull pytorch-26.05 --site mycluster
    """
    import re

    from hpc_launch.base.errors import UsageError
    from hpc_launch.drive.container_images import bring, site_profile

    if digest is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise UsageError(f"{digest} is no digest", "sha256: and 64 digits, as `sha256sum` prints them")
    _show(bring(image, output, site_profile(site), digest, say, force=force), as_json)


@click.command("check")
@click.argument("what", metavar="JOB.yaml|IMAGE")
@site_option
@set_option
@json_option
def check_command(what: str, site: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Look into the image of a job, or into an image by itself. Exit code 3 where something would fail.

    \b
    hpc-launch containers check job.yaml --site mycluster
    hpc-launch containers check images/cuda.sif
    """
    from hpc_launch.drive.container_images import look_at_image, look_at_job, site_profile

    if what.endswith((".yaml", ".yml")):
        checks = look_at_job(Path(what), site, sets)
    else:
        checks = look_at_image(what, site_profile(site))
    if as_json:
        echo_json([one.as_json() for one in checks])
    else:
        from hpc_launch.view.check_list import lines

        for line in lines(checks):
            click.echo(line)
    return 3 if any(one.level == "fail" for one in checks) else 0


def _show(made: BuiltImage, as_json: bool) -> None:
    if as_json:
        echo_json(made.as_json())
        return
    say(f"{made.record.digest}, {made.record.size >> 20} MiB, {made.record.architecture or 'architecture not known'}")
    click.echo(made.path)
