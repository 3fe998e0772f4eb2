"""What comes into a plan from outside of all files, the folder and this machine's names: it has to be text."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.sites.resolved import Resolved


def undecodable_names(resolved: Resolved) -> Iterator[Finding]:
    """HL007 for a name with bytes that are not UTF-8: no script, record or log could hold it."""
    place = resolved.merged.places.get(())
    if _torn(resolved.job_folder):
        message = f"the folder of the job has a byte in its name that is not UTF-8: {resolved.job_folder}"
        yield Finding(FindingCode.INVALID_CHARACTER, message, place, "rename it, or start from another folder")
    for name, text in resolved.names.items():
        if _torn(text):
            message = f"`${{{name}}}` has a byte in it that is not UTF-8: {text}"
            yield Finding(FindingCode.INVALID_CHARACTER, message, place, "set it to another value")


def _torn(text: str) -> bool:
    """Whether Python had to keep a byte of it as half a surrogate pair (PEP 383)."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)
