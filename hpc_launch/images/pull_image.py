"""`containers pull`: download an image once, and record and verify its digest.

Resuming: an http(s) download resumes at the last byte. A pull from a registry (`docker://`, `oras://`, `library://`)
is Apptainer's: it caches complete layers of a `docker://` image, but restarts the layer in progress and the files of
`oras://` and `library://` (apptainer 1.6, internal/pkg/client/{net,oras,library}/pull.go,
internal/pkg/cache/entry.go `CleanTmp`).
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
from hpc_launch.images.draft_folder import DraftFolder, draft_folder
from hpc_launch.images.image_record import ImageRecord, digest_of, now, put, read_record
from hpc_launch.images.probe import versions_in

BY_TOOL = ("docker", "oras", "library", "shub", "docker-archive", "oci", "oci-archive", "docker-daemon")
"""URI schemes that Apptainer handles (apptainer-pull(1); the last four take a path, without `//`)."""


def scheme(uri: str) -> str | None:
    """`docker` for `docker://…`; None if this is not an image URI."""
    match = re.match(r"([a-z][a-z-]*):", uri)
    known = match is not None and match[1] in ("http", "https", *BY_TOOL)
    return match[1] if match is not None and known else None


def file_name(uri: str) -> str:
    """The default file name of an image: `pytorch_2.13.0.sif` for `docker://pytorch/pytorch:2.13.0`."""
    rest = uri.partition(":")[2]
    name = urlsplit(uri).path if scheme(uri) in ("http", "https") else rest.partition("@")[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name.rstrip("/").rpartition("/")[2])
    for ending in (".sif", ".tar", ".tar.gz"):
        name = name.removesuffix(ending)
    if not name.strip("._"):
        raise UsageError(f"cannot derive a file name from {uri}", "name the file with `-o FILE.sif`")
    return f"{name}.sif"


def recorded(uri: str) -> str:
    """The URI without its query, which may be a signature, for the record. Raises UsageError for a password in it."""
    if scheme(uri) not in ("http", "https"):
        return uri
    parts = urlsplit(uri)
    if parts.username is not None or parts.password is not None:
        raise UsageError("the URL contains a password, which others could see in the process list", "use a signed URL")
    return parts._replace(query="", fragment="").geturl()


def existing_record(image: Path, uri: str, wanted: str | None, say: Callable[[str], None]) -> ImageRecord | None:
    """The record of an existing image after verifying its digest; None if the image does not exist.

    Raises Refused with HL471 if the digest differs from the record's or from `wanted`.
    """
    if not os.path.exists(image):
        return None
    record = read_record(image)
    say(f"{image} exists; verifying its digest")
    digest = digest_of(image)
    for expected, source in ((wanted, "the expected one is"), (record.digest if record else None, "its record says")):
        if expected is not None and expected != digest:
            hint = "it was modified or damaged: pull it again with --force, or name another file with -o"
            raise _digest_mismatch(image, f"the file's digest is {digest}, but {source} {expected}", hint)
    if record is None:
        raise UsageError(
            f"{image} already exists, without a record of its source",
            "pull it again with --force, or name another file with -o",
        )
    if record.source != recorded(uri):
        raise UsageError(
            f"{image} already exists, from {record.source}", "name another file with -o, or overwrite it with --force"
        )
    return record


def pull(uri: str, image: Path, wanted: str | None, say: Callable[[str], None]) -> ImageRecord:
    """Download the image and write its record. The caller holds the lock of `image`.

    Raises Refused (HL471: digest mismatch; HL472: no program to pull with), UserError, OSError.
    """
    recorded(uri)
    with draft_folder(image) as folder:
        if scheme(uri) not in ("http", "https"):
            tool = find_tool(purpose="pull images")
            say(f"pulling {uri} with {tool}")
            run([tool.path, "pull", "--force", str(folder.path / image.name), uri])
            return _finish(uri, folder, image.name, image, wanted, tool)
        fetch(uri, folder.part, say)
        with folder.part.open("rb") as stream:
            if not is_sif(stream.read(SIF_ARCH_AT)):
                _delete_partial(folder)
                raise UserError(f"{uri} is not a SIF image", "open the URL in a browser: it may be a web page")
        if cut_short(folder.part):
            _delete_partial(folder)
            raise UserError(f"{uri} is truncated: its header states a larger size", "try again later")
        return _finish(uri, folder, folder.part.name, image, wanted, None)


def _finish(  # noqa: PLR0917 - private
    uri: str, folder: DraftFolder, name: str, image: Path, wanted: str | None, tool: Tool | None
) -> ImageRecord:
    draft = folder.own / name
    digest = digest_of(draft)
    if wanted is not None and digest != wanted:
        _delete_partial(folder)
        hint = "check the digest with its publisher; the download was deleted"
        raise _digest_mismatch(image, f"the digest of {uri} is {digest}, expected {wanted}", hint)
    record = ImageRecord(
        digest=digest,
        size=draft.stat().st_size,
        source=recorded(uri),
        kind="uri",
        made=now(),
        architecture=architecture(draft),
        by=str(tool) if tool else "",
        versions=versions_in(tool, folder.path / name),
    )
    put(draft, image, record)
    _delete_partial(folder)
    return record


def _digest_mismatch(image: Path, message: str, hint: str) -> Refused:
    return Refused([Finding(FindingCode.WRONG_IMAGE_DIGEST, message, Place(str(image)), hint)])


def _delete_partial(folder: DraftFolder) -> None:
    for path in folder.own.glob(f"{folder.part.name}*"):
        path.unlink()
