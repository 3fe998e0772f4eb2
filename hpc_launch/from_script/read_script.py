"""Read an sbatch script as text. Its bytes are hostile: no encoding, length or content is assumed."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import UsageError

MAX_BYTES = 4 << 20
"""Slurm's default limit of a script (slurm.conf(5), max_script_size)."""
LONGEST_LINE = 100_000


class ScriptText(Struct, frozen=True):
    """The text of a script, with LF line ends, and remarks on what was changed to read it."""

    text: str
    remarks: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return self.text.split("\n")


def read_script(path: Path) -> ScriptText:
    """The script's text. Raises UsageError for a file that sbatch would refuse too, or that cannot be read."""
    try:
        if not os.path.isfile(path):
            raise UsageError(f"{path} is not a file", "name an sbatch script")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name an sbatch script") from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> ScriptText:
    """The text of a script's bytes. Raises UsageError as `read_script` does."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, Slurm's limit of a script", "name a script")
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        hint = f"convert it: iconv -f UTF-16 -t UTF-8 {name}"
        raise UsageError(f"{name} is UTF-16, which neither bash nor sbatch reads", hint)
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise UsageError(f"{name}:{line}: a NUL byte; sbatch refuses such a script", "name a text file")
    remarks = []
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
        remarks.append("the script begins with a byte order mark; sbatch refuses such a script")
    text = data.decode("utf-8", "replace")
    if "\ufffd" in text:
        remarks.append("the script is not valid UTF-8; the invalid bytes are shown as \ufffd")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        remarks.append("the script has DOS line ends; sbatch refuses such a script")
    for number, row in enumerate(text.split("\n"), 1):
        if len(row) > LONGEST_LINE:
            raise UsageError(f"{name}:{number}: a line of {len(row)} characters", "name an sbatch script")
    return ScriptText(text, tuple(remarks))
