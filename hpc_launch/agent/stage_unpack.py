"""Unpack an archive on a node, rewrite the paths that have to move with it, and verify the copy."""

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List

from hpc_launch.agent.stage_disk import (
    CHUNK,
    Deadline,
    NotStaged,
    broadcast_file,
    check_room,
    open_own,
    read_description,
    write_json,
)
from hpc_launch.agent.stage_tree import ask_python, counted, walk

LINE_LIMIT = 127
"""Bytes of a script's first line that every Linux reads (BINPRM_BUF_SIZE, before Linux 5.1)."""


def is_complete(root: str, key: str) -> bool:
    """Whether the copy is there with every file: programs that clear temporary folders may delete some of them."""
    folder = os.path.join(root, key)
    try:
        about = read_description(os.path.join(folder, "complete"))
        if about["kind"] == "image":
            return bool(os.path.getsize(os.path.join(folder, "copy")) == about["bytes"])
        _check_tree(folder, about)
        _check_python(os.path.join(folder, "copy"), about)
        return True
    except (OSError, ValueError, KeyError, NotStaged):
        return False


def _check_tree(folder: str, about: Dict[str, Any]) -> None:
    entries = list(counted(walk(os.path.join(folder, "copy"))))
    if [len(entries), sum(one.size for one in entries)] != about["tree"]:
        raise NotStaged("the copy in %s is not complete" % folder)


def _check_python(copy: str, about: Dict[str, Any]) -> None:
    """Whether the moved interpreter takes the copy for its prefix, and finds its packages there."""
    python = about["python"]
    answer = ask_python(os.path.join(copy, "bin", python["name"]))
    if answer["prefix"] != copy or answer["version"] != python["version"]:
        raise NotStaged("moved to %s, its Python reports the prefix %s" % (copy, answer["prefix"]))
    if answer["found"] and not any(str(origin).startswith(copy + "/") for _, origin in answer["found"]):
        raise NotStaged("moved to %s, its Python does not find its packages" % copy)


def unpack(store: str, key: str, root: str, deadline: Deadline) -> None:
    """Make FOLDER/KEY/copy, whole and tested. Raises NotStaged; then nothing is left."""
    for name in os.listdir(root):  # of processes that were killed: only one that holds the lock writes here
        if name == key or name.startswith(key + ".tmp"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    about = read_description(os.path.join(store, key + ".json"))
    check_room(root, about["bytes"])
    with contextlib.suppress(OSError):
        if os.path.getsize(broadcast_file(root, key)) == about["archive_bytes"]:
            about["archive"] = broadcast_file(root, key)
    partial = os.path.join(root, "%s.tmp.%d" % (key, os.getpid()))
    os.mkdir(partial, 0o700)
    try:
        if about["kind"] == "image":
            _copy_image(about, os.path.join(partial, "copy"), deadline)
        else:
            _extract(about, partial, deadline)
            _rewrite_paths(os.path.join(partial, "copy"), os.path.join(root, key, "copy"), about["source"])
            _check_python(os.path.join(partial, "copy"), about)
            entries = list(counted(walk(os.path.join(partial, "copy"))))
            if len(entries) != about["files"]:
                raise NotStaged("the archive holds %d files and not %d" % (len(entries), about["files"]))
            about["tree"] = [len(entries), sum(one.size for one in entries)]
        write_json(os.path.join(partial, "complete"), about)
        os.rename(partial, os.path.join(root, key))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class Source:
    """A file to read that is hashed."""

    def __init__(self, stream: Any, digest: Any, deadline: Deadline) -> None:
        self.stream, self.digest, self.deadline = stream, digest, deadline

    def read(self, size: int = -1) -> bytes:
        self.deadline.check()
        data = self.stream.read(size)  # type: bytes
        self.digest.update(data)
        return data


def _extract(about: Dict[str, Any], folder: str, deadline: Deadline) -> None:
    digest = hashlib.sha256()
    with open_own(about["archive"]) as stream:
        source = Source(stream, digest, deadline)
        if shutil.which("tar") is not None:
            extract_by_tar(source, folder)
        else:
            extract_by_python(source, folder)
    if digest.hexdigest() != about["sha256"]:
        raise NotStaged("%s is damaged" % about["archive"])


def extract_by_tar(source: Source, folder: str) -> None:
    """Ten times faster than Python's own module. -p: keep modes; -o: files belong to this user."""
    words = ["tar", "-xpof", "-", "-C", folder]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as tar, ThreadPoolExecutor(1) as pool:
        said = pool.submit(tar.stderr.read)  # type: ignore[union-attr]
        try:
            with contextlib.suppress(BrokenPipeError), tar.stdin as pipe:  # type: ignore[union-attr]
                for data in iter(lambda: source.read(CHUNK), b""):
                    pipe.write(data)
        except BaseException:
            tar.kill()
            raise
        message = said.result().decode("utf-8", "replace").strip()
    if tar.returncode:
        raise NotStaged((message.splitlines() or ["tar failed"])[0])


def extract_by_python(source: Source, folder: str) -> None:
    """For nodes without tar."""
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as tar:  # type: ignore[call-overload]
        tar.chown = lambda *_: None
        tar.extraction_filter = lambda member, _: member  # this user's own archive, with absolute links
        for member in tar:
            tar.extract(member, folder)
    while source.read(CHUNK):
        pass


def _copy_image(about: Dict[str, Any], to: str, deadline: Deadline) -> None:
    with open(about["archive"], "rb") as source, open(to, "wb") as copy:
        for data in iter(lambda: source.read(CHUNK), b""):
            deadline.check()
            copy.write(data)
    made = os.stat(about["source"])
    if (made.st_size, made.st_mtime_ns) != (about["bytes"], about["mtime_ns"]) or os.path.getsize(to) != made.st_size:
        raise NotStaged("%s changed while it was copied" % about["source"])


def _rewrite_paths(tree: str, final: str, source: str) -> None:
    """The interpreter in the first lines of console scripts, and folders of the environment in .pth files."""
    old = sorted({os.fsencode(source), os.fsencode(os.path.realpath(source))}, key=len, reverse=True)
    new = os.fsencode(final)
    programs = os.path.join(tree, "bin")
    for name in os.listdir(programs) if os.path.isdir(programs) and _is_inside(programs, tree) else ():
        _rewrite(os.path.join(programs, name), lambda text: _new_first_lines(text, old, new), only=b"#!")
    for folder, names, files in os.walk(os.path.join(tree, "lib")):
        if not _is_inside(folder, tree):
            names[:] = []
        elif os.path.basename(folder) == "site-packages":
            names[:] = []
            place = os.path.join(source, os.path.relpath(folder, tree))
            for name in files:
                if name.endswith(".pth"):
                    _rewrite(os.path.join(folder, name), lambda text, p=place: _new_lines(text, old, new, p))  # type: ignore[misc]


def _is_inside(folder: str, tree: str) -> bool:
    """Whether a folder is in the copy: a link may lead to the original, or to files of another environment."""
    return (os.path.realpath(folder) + "/").startswith(os.path.realpath(tree) + "/")


def _rewrite(path: str, change: Callable[[bytes], bytes], only: bytes = b"") -> None:
    """Replace a file by a changed one. A link is left alone."""
    if os.path.islink(path) or not os.path.isfile(path):
        return
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        if stream.read(len(only)) != only:
            return
        text = only + stream.read()
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
    changed = change(text)
    if changed != text:
        new = "%s.%s" % (path, os.urandom(8).hex())
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as stream:
            stream.write(changed)
            os.fchmod(stream.fileno(), mode)
        os.rename(new, path)


def _new_first_lines(text: bytes, old: List[bytes], new: bytes) -> bytes:
    # The second line names the interpreter if the path is long or has a space (pip, distlib: `'''exec' PATH`).
    lines = text.split(b"\n", 2)
    for at, line in enumerate(lines[:2]):
        if at == 0 or line.startswith(b"'''exec'"):
            lines[at] = _moved(line, old, new)
    return text if len(lines[0]) > LINE_LIMIT else b"\n".join(lines)


def _moved(line: bytes, old: List[bytes], new: bytes) -> bytes:
    for path in old:
        if path + b"/" in line:
            return line.replace(path + b"/", new + b"/")
    return line


def _new_lines(text: bytes, old: List[bytes], new: bytes, place: str) -> bytes:
    """Lines of a .pth file (site.py, addpackage): folders of the environment move, folders outside it stay."""
    return b"\n".join(_new_line(line, old, new, os.fsencode(place)) for line in text.split(b"\n"))


def _new_line(line: bytes, old: List[bytes], new: bytes, place: bytes) -> bytes:
    if line.startswith(tuple(path + b"/" for path in old)):
        return _moved(line, old, new)
    outside = os.path.normpath(os.path.join(place, line.rstrip()))
    leaves = line.startswith(b"../") and not outside.startswith(tuple(path + b"/" for path in old))
    return outside if leaves else line
