"""`containers pull` and `containers build`: download or build an image once, and record and verify its digest.

Resuming: an http(s) download resumes at the last byte. A pull from a registry (`docker://`, `oras://`, `library://`)
is Apptainer's: it caches complete layers of a `docker://` image, but restarts the layer in progress and the files of
`oras://` and `library://` (apptainer 1.6, internal/pkg/client/{net,oras,library}/pull.go,
internal/pkg/cache/entry.go `CleanTmp`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from hpc_launch import __version__
from hpc_launch.agent.checkpoints import size_of
from hpc_launch.base.errors import Refused, UsageError, UserError
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.installed import shipped
from hpc_launch.images.image_record import (
    SIF_ARCH_AT,
    DraftFolder,
    ImageRecord,
    architecture,
    cut_short,
    digest_of,
    draft_folder,
    is_sif,
    put,
    read_record,
)
from hpc_launch.images.probe import Tool, find_tool, run, versions_in

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
    if not re.search(r"^\s*bootstrap\s*:", text, re.MULTILINE | re.IGNORECASE):
        message = f"{name} is not a definition file: no line starts with `Bootstrap:`"
        raise UsageError(message, "write it as apptainer-build(1) describes; podman builds a Containerfile")
    return path


def build(recipe: Path, image: Path, tool: Tool, arguments: Sequence[str], say: Callable[[str], None]) -> ImageRecord:
    """Build beside the destination, then move the image there with its record. `arguments`: `KEY=VALUE` build args.

    Raises UserError with the output if the build fails; OSError.
    """
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
            hint = "unprivileged builds need user namespaces, or an entry in /etc/subuid (Apptainer's guide, Fakeroot)"
            raise UserError(str(error), hint if os.geteuid() else error.hint) from error
        return _put(folder, image.name, image, tool, digest_of(draft), str(recipe), recipe)


def _put(  # noqa: PLR0917 - private
    folder: DraftFolder, name: str, image: Path, tool: Tool | None, digest: str, source: str, recipe: Path | None = None
) -> ImageRecord:
    """Move a draft to its place with a record of what it is. Raises OSError."""
    draft = folder.own / name
    record = ImageRecord(
        digest=digest,
        size=draft.stat().st_size,
        source=source,
        kind="uri" if recipe is None else "recipe",
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        architecture=architecture(draft),
        recipe_digest=None if recipe is None else digest_of(recipe),
        by=str(tool or ""),
        versions=versions_in(tool, folder.path / name),
    )
    put(draft, image, record)
    return record


ATTEMPTS = 5
"""Maximum number of consecutive attempts that receive no data."""
PAUSE = 2.0
"""Seconds between attempts."""

REFUSED, NO_RANGES = 22, 33
"""Exit codes of curl(1): the server answered with an error; it sends all of the file or nothing."""
OPTIONS = """
silent
show-error
fail
location
speed-limit = 1
speed-time = 60
retry = 4
retry-delay = 2
"""


def fetch(url: str, part: Path, say: Callable[[str], None]) -> None:
    """Download `url` to `part`, in a folder that only this user can use; resume if the server still has the same file.

    Beside it, `part.HASH` holds the header of the server's answer: the name stands for the URL, and the version in it
    (ETag or Last-Modified) for the content. Raises UserError if the server refuses or the connection is interrupted
    repeatedly; OSError for the disk.
    """
    curl = shutil.which("curl")
    if curl is None:
        raise UserError("curl, which downloads images, not found", "pull the image on another machine")
    header = part.with_name(f"{part.name}.{hashlib.sha256(url.encode()).hexdigest()[:16]}")
    attempts = 0
    while True:
        version = _version(header)
        if version is None:
            part.unlink(missing_ok=True)
        before = size_of(part)
        settings = [f"url = {_quoted(url)}", f"output = {part.name}", f"dump-header = {header.name}"]
        settings += [f'user-agent = "hpc-launch/{__version__}"']
        if before:
            settings += ["continue-at = -", f"header = {_quoted(f'If-Range: {version}')}"]
        # The URL may be a secret, so it is no argument. By its descriptor, the folder stays the same if it is renamed.
        done = subprocess.run(
            [curl, "--disable", "--config", "-"], input=OPTIONS + "\n".join(settings), cwd=part.parent,
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return
        reason = done.stderr.strip().rpartition("curl: ")[2] or f"curl ended with code {done.returncode}"
        if done.returncode == REFUSED:
            raise UserError(f"{url}: {reason}")
        if done.returncode == NO_RANGES:
            say("the file has changed on the server, or it does not send parts; starting over")
            header.unlink(missing_ok=True)
        attempts = 1 if size_of(part) > before else attempts + 1
        if attempts >= ATTEMPTS:
            message = f"{url}: the connection was interrupted {attempts} times without receiving data: {reason}"
            raise UserError(message, f"run the same command again to resume from byte {size_of(part)}")
        say(f"{reason}; resuming from byte {size_of(part)}")
        time.sleep(PAUSE)


def _version(header: Path) -> str | None:
    """The last strong entity tag, or date, in the headers of an answer (RFC 9110, section 13.1.5)."""
    try:
        lines = header.read_text(encoding="latin-1").splitlines()
    except OSError:
        return None
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    tag = fields.get("etag", "")
    return tag if tag and not tag.startswith("W/") else fields.get("last-modified")


def _quoted(text: str) -> str:
    """A value of curl's configuration file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
        hint = "pull it again with --force, or name another file with -o"
        raise UsageError(f"{image} already exists, without a record of its source", hint)
    if record.source != recorded(uri):
        hint = "name another file with -o, or overwrite it with --force"
        raise UsageError(f"{image} already exists, from {record.source}", hint)
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
    digest = digest_of(folder.own / name)
    if wanted is not None and digest != wanted:
        _delete_partial(folder)
        hint = "check the digest with its publisher; the download was deleted"
        raise _digest_mismatch(image, f"the digest of {uri} is {digest}, expected {wanted}", hint)
    record = _put(folder, name, image, tool, digest, recorded(uri))
    _delete_partial(folder)
    return record


def _digest_mismatch(image: Path, message: str, hint: str) -> Refused:
    return Refused([Finding(FindingCode.WRONG_IMAGE_DIGEST, message, Place(str(image)), hint)])


def _delete_partial(folder: DraftFolder) -> None:
    for path in folder.own.glob(f"{folder.part.name}*"):
        path.unlink()
