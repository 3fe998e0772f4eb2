"""Jinja's environment for slurm_templates/: sandboxed, with the filters that quote values for bash."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

from jinja2 import ChoiceLoader, FileSystemLoader, FunctionLoader, StrictUndefined
from jinja2.bccache import Bucket, BytecodeCache, FileSystemBytecodeCache
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import cache_folder, make_own_folder, make_private
from hpc_launch.base.installed import shipped
from hpc_launch.job.document import Origin
from hpc_launch.job.shell_text import Text, here_document, inside_quotes, quote, readable, visible
from hpc_launch.plan.launchers.descriptor import descriptor

_COMMENT_COLUMN = 60
"""Where the comment of a short line begins."""


@cache
def template_environment() -> ImmutableSandboxedEnvironment:
    """The templates and their filters, once for a process."""
    environment = _Environment(
        bytecode_cache=_bytecode(),
        loader=ChoiceLoader([FileSystemLoader(shipped("slurm_templates")), FunctionLoader(_of_plugin)]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",  # {# is bash's own: ${#array[@]}
        comment_end_string="#>",
        autoescape=False,
    )
    environment.filters.update(
        q=quote,
        inside_quotes=inside_quotes,
        show=lambda text: visible(readable(text)),
        aligned=_aligned,
        oneline=visible,
        origin=_origin,
        starred=_starred,
        here=_here,
    )
    return environment


def _of_plugin(file: str) -> str | None:
    """The template of another package's launcher. Raises UsageError where one for a start by hand is wanted."""
    folder, _, name = file.removesuffix(".sh.j2").rpartition("/")
    if folder == "by_hand":
        raise UsageError(f"the job cannot be started by hand: `launcher: {name}` has no script for that")
    return descriptor(name).template if folder == "launcher" else None


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that asks a Struct only for the underscore: a script reads a hundred fields of the plan."""

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, Struct):
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)


def _bytecode() -> BytecodeCache | None:
    """Keep compiled templates in the user's cache folder: compiling takes a fifth of the time of `render`."""
    try:
        folder = make_private(cache_folder() / "templates")
        make_own_folder(folder)
    except OSError:
        return None
    return _QuietCache(str(folder)) if os.access(folder, os.W_OK) else None


class _QuietCache(FileSystemBytecodeCache):
    """A cache without which it works, too: the disk may be full. Its folder is the user's own: pickle and marshal run
    code."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _origin(origin: Origin) -> str:
    return visible(origin.short())


def _aligned(line: str, origin: Origin) -> str:
    """A line with its origin as a comment, aligned if the line is short enough."""
    return f"{line:<{_COMMENT_COLUMN}} # {_origin(origin)}"


def _here(text: Text, command: str) -> str:
    """A command line with a here-document in place of `<<`."""
    word, _, lines = here_document(text).partition("\n")
    return f"{command.replace('<<', '<<' + word)}\n{lines}"


def _starred(name: str) -> str:
    """A file name quoted for bash, except `*`."""
    return "*".join(quote(part) if part else "" for part in name.split("*"))
