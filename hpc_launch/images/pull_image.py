"""`containers pull`: an image from somewhere else, once, with its digest written down and looked at.

What goes on after a cut: over http(s) every byte that came is kept, as the download is ours. From a registry
(`docker://`, `oras://`, `library://`) it is Apptainer's: layers of a `docker://` image that came whole stay in its
cache, the one in flight and files of `oras://` and `library://` begin anew (apptainer 1.6,
internal/pkg/client/{net,oras,library}/pull.go, internal/pkg/cache/entry.go `CleanTmp`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.images.apptainer_tool import Tool, find_tool, run
from hpc_launch.images.architecture import SIF_ARCH_AT, architecture, cut_short, is_sif
from hpc_launch.images.download import fetch
from hpc_launch.images.image_record import ImageRecord, digest_of, now, put, read_record
from hpc_launch.images.probe import versions_in

BY_TOOL = ("docker", "oras", "library", "shub", "docker-archive", "oci", "oci-archive", "docker-daemon")
"""What Apptainer reads itself (apptainer-pull(1); the last four by a path, without `//`)."""


def scheme(uri: str) -> str | None:
    """`docker` of `docker://…`; None for what is no URI of an image."""
    found = re.match(r"([a-z][a-z-]*):", uri)
    known = found is not None and found[1] in ("http", "https", *BY_TOOL)
    return found[1] if found is not None and known else None


def file_name(uri: str) -> str:
    """The name that an image gets where none is asked for: `pytorch_2.13.0.sif` of `docker://pytorch/pytorch:2.13.0`."""
    rest = uri.partition(":")[2]
    name = urlsplit(uri).path if scheme(uri) in ("http", "https") else rest.partition("@")[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name.rstrip("/").rpartition("/")[2])
    for ending in (".sif", ".tar", ".tar.gz"):
        name = name.removesuffix(ending)
    if not name.strip("._"):
        raise UsageError(f"{uri} gives the file no name", "say one with `-o FILE.sif`")
    return f"{name}.sif"


def recorded(uri: str) -> str:
    """The URI as a record may hold it, without a signature behind a `?`. Raises UsageError for a password in it."""
    if scheme(uri) not in ("http", "https"):
        return uri
    parts = urlsplit(uri)
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "a name and password in an address would stand in the list of processes", "use a signed address"
        )
    return parts._replace(query="", fragment="").geturl()


def there(image: Path, uri: str, wanted: str | None, say: Callable[[str], None]) -> ImageRecord | None:
    """The record of an image that is there already and is what it is said to be; None where none is there.

    Raises Refused with HL471 where the file is not what its record or `wanted` says.
    """
    if not image.exists():
        return None
    record = read_record(image)
    say(f"{image} is there; reading it to compare its digest")
    digest = digest_of(image)
    for named, what in ((wanted, "it should be"), (record.digest if record else None, "its record says")):
        if named is not None and named != digest:
            hint = "it was changed or damaged: pull it again with --force, or name another file with -o"
            raise _other(image, f"the file is {digest}, and {what} {named}", hint)
    if record is None:
        raise UsageError(f"{image} is there, and nothing says what it is", "pull it again with --force, or use -o")
    if record.source != recorded(uri):
        raise UsageError(
            f"{image} is there, and came from {record.source}", "name another file with -o, or use --force"
        )
    return record


def pull(uri: str, image: Path, wanted: str | None, say: Callable[[str], None]) -> ImageRecord:
    """Bring the image to its place, with its record. The caller holds the lock of `image`.

    Raises Refused (HL471: not the digest that was wanted; HL472: no program for it), UserError, OSError.
    """
    recorded(uri)
    if scheme(uri) in ("http", "https"):
        draft, tool = image.with_name(f".{image.name}.part"), None
        fetch(uri, draft, say)
        with draft.open("rb") as stream:
            if not is_sif(stream.read(SIF_ARCH_AT)):
                _forget(draft)
                raise UserError(
                    f"{uri} is no SIF image", "the server may have sent a page; open the address in a browser"
                )
        if cut_short(draft):
            _forget(draft)
            raise UserError(f"{uri} ends too early: its header says that it is longer", "try again, or ask the server")
    else:
        tool = find_tool(purpose="pull images")
        draft = image.with_name(f".{image.name}.{os.getpid()}.draft")
        say(f"pulling {uri} with {tool}")
        run([tool.path, "pull", "--force", str(draft), uri])
    try:
        return _finish(uri, draft, image, wanted, tool)
    finally:
        if tool is not None:
            draft.unlink(missing_ok=True)


def _finish(uri: str, draft: Path, image: Path, wanted: str | None, tool: Tool | None) -> ImageRecord:
    digest = digest_of(draft)
    if wanted is not None and digest != wanted:
        _forget(draft)
        hint = "nothing was kept: ask whoever gave the digest, or the server"
        raise _other(image, f"{uri} came as {digest}, and should be {wanted}", hint)
    draft.chmod(0o777 & ~_umask())
    record = ImageRecord(
        digest=digest,
        size=draft.stat().st_size,
        source=recorded(uri),
        kind="uri",
        made=now(),
        architecture=architecture(draft),
        by=str(tool) if tool else "",
        versions=versions_in(tool, draft),
    )
    put(draft, image, record)
    draft.with_name(f"{draft.name}.json").unlink(missing_ok=True)
    return record


def _other(image: Path, message: str, hint: str) -> Refused:
    return Refused([Finding(FindingCode.WRONG_IMAGE_DIGEST, message, Place(str(image)), hint)])


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(f"{part.name}.json").unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
