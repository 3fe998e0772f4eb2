"""What a training's source tells of it: its options and its framework. The file is parsed, never imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.images.script_imports import top_imports

MAX_BYTES = 2 << 20
_DECLARES = frozenset({"add_argument", "option", "argument"})
"""argparse's method and click's decorators."""


class TrainingOption(Struct, frozen=True):
    """One option of the training's command line."""

    name: str
    """Without dashes, as a key of `args:`."""
    positional: bool = False
    required: bool = False
    default: str | None = None
    """As the source has it."""
    help: str = ""


class TrainingSource(Struct, frozen=True):
    """What the source of a training tells."""

    options: tuple[TrainingOption, ...]
    modules: frozenset[str]
    distributed: bool
    """Whether it uses several processes."""

    @property
    def launcher(self) -> Literal["torchrun", "deepspeed", "none"]:
        """The launcher that starts such a training."""
        if "deepspeed" in self.modules:
            return "deepspeed"
        several = {"accelerate", "transformers", "lightning", "pytorch_lightning", "megatron", "torchtitan", "trl"}
        return "torchrun" if self.distributed or self.modules & several else "none"

    @property
    def framework(self) -> str:
        """The library that the launcher was chosen for."""
        known = ("deepspeed", "megatron", "lightning", "pytorch_lightning", "accelerate", "trl", "transformers")
        return next((name for name in known if name in self.modules), "torch.distributed" if self.distributed else "")


def read_training(path: Path) -> TrainingSource:
    """Read a Python file. Raises UsageError if it cannot be parsed."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"{path} is not a file", "name the training's Python file")
        if os.path.getsize(path) > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB", "name the training's Python file")
        tree = ast.parse(path.read_bytes(), filename=str(path))
        modules = frozenset(top_imports(path))
        options = tuple(_options(tree))
        distributed = any(_is_distributed(node) for node in ast.walk(tree))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name the training's Python file") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is not Python that can be parsed: {error}", "name a Python file") from error
    return TrainingSource(options, modules, distributed)


def _is_distributed(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.startswith("torch.distributed") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        name = node.module or ""
        return name.startswith("torch.distributed") or (
            name == "torch" and "distributed" in {a.name for a in node.names}
        )
    if isinstance(node, ast.Constant):
        return node.value in {"LOCAL_RANK", "WORLD_SIZE", "RANK"}
    return isinstance(node, ast.Attribute) and node.attr == "init_process_group"


def _options(tree: ast.Module) -> Iterator[TrainingOption]:
    seen = set()
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or node.func.attr not in _DECLARES
        ):
            continue
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        found = _option(names, given, click=node.func.attr == "argument")
        if found is not None and found.name not in seen:
            seen.add(found.name)
            yield found


def _option(names: list[str], given: dict[str, ast.expr], *, click: bool) -> TrainingOption | None:
    if not names:
        return None
    long = next((name for name in names if name.startswith("--")), None)
    positional = long is None and not names[0].startswith("-")
    default = given.get("default")
    text = None if default is None else ast.unparse(default)
    optional = _constant(given.get("nargs")) in {"?", "*"} or default is not None
    required = (positional and not optional) or _constant(given.get("required")) is True
    if click and _constant(given.get("required")) is False:
        required = False
    about = _constant(given.get("help"))
    name = (long or names[0]).lstrip("-").partition("/")[0]
    return TrainingOption(name, positional, required, text, about if isinstance(about, str) else "")


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def likely_trainings(folder: Path) -> list[str]:
    """Python files of a folder that look like programs: those named after training first."""
    found = []
    for path in sorted(folder.glob("*.py"))[:200]:
        try:
            if os.path.isfile(path) and path.stat().st_size <= MAX_BYTES and b"__main__" in path.read_bytes():
                found.append(path.name)
        except OSError:
            continue
    return sorted(found, key=lambda name: ("train" not in name, "main" not in name, name))
