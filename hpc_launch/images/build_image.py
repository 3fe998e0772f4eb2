"""`containers build`: build an image from a recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.base.installed import shipped
from hpc_launch.images.apptainer_tool import Tool, missing_to_build, run
from hpc_launch.images.architecture import architecture
from hpc_launch.images.image_record import ImageRecord, digest_of, draft_folder, now, put
from hpc_launch.images.probe import versions_in

ENDING = ".def"


def recipes() -> list[str]:
    """The names of the shipped recipes."""
    return sorted(path.stem for path in shipped("containers").glob(f"*{ENDING}"))


def find_recipe(name: str) -> Path:
    """A recipe by file or by the name of a shipped one. Raises UsageError if not found or not a definition file."""
    path = Path(name)
    if "/" not in name and not os.path.exists(path) and name in recipes():
        return shipped("containers") / f"{name}{ENDING}"
    if not os.path.isfile(path):
        raise UsageError(f"recipe {name} not found", f"name a file, or one of {', '.join(recipes())}")
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ENDING and re.search(r"^\s*FROM\s", text, re.MULTILINE | re.IGNORECASE):
        hint = f"build it with e.g. `podman build -f {name} -t NAME .`, export it with `podman save NAME -o NAME.tar`, "
        hint += "then run `hpc-launch containers pull docker-archive:NAME.tar`"
        raise UsageError(f"{name} is a Containerfile, which Apptainer cannot build", hint)
    if not re.search(r"^\s*bootstrap\s*:", text, re.MULTILINE | re.IGNORECASE):
        message = f"{name} is not a definition file: no line starts with `Bootstrap:`"
        raise UsageError(message, "write it as apptainer-build(1) describes")
    return path


def build(recipe: Path, image: Path, tool: Tool, arguments: Sequence[str], say: Callable[[str], None]) -> ImageRecord:
    """Build beside the destination, then move the image there with its record. `arguments`: `KEY=VALUE` build args.

    Raises UserError with the output and what is missing here if the build fails; OSError.
    """
    lacking = list(missing_to_build(tool))
    command = [tool.path, "build", "--force"]
    # Apptainer uses fakeroot by default for an unprivileged user; SingularityCE needs the option.
    command += ["--fakeroot"] if os.geteuid() != 0 and tool.name != "apptainer" else []
    command += [option for argument in arguments for option in ("--build-arg", argument)]
    say(f"building {image} from {recipe} with {tool}")
    with draft_folder(image) as folder:
        draft = folder.own / image.name
        try:
            run([*command, str(folder.path / image.name), str(recipe)])
        except UserError as error:
            raise UserError(str(error), "; ".join(lacking) or error.hint) from error
        record = ImageRecord(
            digest=digest_of(draft),
            size=draft.stat().st_size,
            source=str(recipe),
            kind="recipe",
            made=now(),
            architecture=architecture(draft),
            recipe_digest=digest_of(recipe),
            by=str(tool),
            versions=versions_in(tool, folder.path / image.name),
        )
        put(draft, image, record)
    return record
