"""`containers build`: a recipe becomes an image file, or says what is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.base.resources import shipped
from hpc_launch.images.apptainer_tool import Tool, missing_to_build, run
from hpc_launch.images.architecture import architecture
from hpc_launch.images.image_record import ImageRecord, digest_of, now, put
from hpc_launch.images.probe import versions_in

ENDING = ".def"


def recipes() -> list[str]:
    """The names of the recipes that ship with the package."""
    return sorted(path.stem for path in shipped("containers").glob(f"*{ENDING}"))


def find_recipe(name: str) -> Path:
    """A recipe by its file or by the name of a shipped one. Raises UsageError where there is none, or it is no .def."""
    path = Path(name)
    if "/" not in name and not path.exists() and name in recipes():
        return shipped("containers") / f"{name}{ENDING}"
    if not path.is_file():
        raise UsageError(f"there is no recipe {name}", f"a file, or one of {', '.join(recipes())}")
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ENDING and re.search(r"^\s*FROM\s", text, re.MULTILINE | re.IGNORECASE):
        hint = f"such as `podman build -f {name} -t NAME .`, `podman save NAME -o NAME.tar`, then "
        hint += "`hpc-launch containers pull docker-archive:NAME.tar`"
        raise UsageError(f"{name} is a Containerfile, which podman, buildah or docker builds", hint)
    if not re.search(r"^\s*bootstrap\s*:", text, re.MULTILINE | re.IGNORECASE):
        raise UsageError(f"{name} is no recipe: no line of it begins with `Bootstrap:`", "apptainer-build(1)")
    return path


def build(recipe: Path, image: Path, tool: Tool, arguments: Sequence[str], say: Callable[[str], None]) -> ImageRecord:
    """Build beside the image's place, then put it there with its record. `arguments`: `KEY=VALUE` for the recipe.

    Raises UserError where the build fails, with what it said and what is missing here; OSError.
    """
    lacking = list(missing_to_build(tool))
    words = [tool.path, "build", "--force"]
    # Apptainer does so by itself for an ordinary user; SingularityCE has to be told.
    words += ["--fakeroot"] if os.geteuid() != 0 and tool.name != "apptainer" else []
    words += [word for argument in arguments for word in ("--build-arg", argument)]
    draft = image.with_name(f".{image.name}.{os.getpid()}.draft")
    say(f"building {image} from {recipe} with {tool}")
    try:
        try:
            run([*words, str(draft), str(recipe)])
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
            versions=versions_in(tool, draft),
        )
        put(draft, image, record)
    finally:
        draft.unlink(missing_ok=True)
    return record
