"""`apptainer exec …`, `singularity run …` and the options with which pyxis extends srun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpc_launch.from_script.old_job import OldContainer, OldLaunch
from hpc_launch.from_script.option_words import OptionTable, Split
from hpc_launch.from_script.values import Value, Word

_TABLE = OptionTable(
    frozenset(
        "bind env home pwd cwd workdir overlay scratch network add-caps drop-caps app dns hostname env-file mount "
        "security no-mount fusemount blkio-weight cpus memory".split()
    ),
    frozenset(
        "nv rocm nvccli containall contain cleanenv no-home writable-tmpfs writable fakeroot ipc pid uts userns compat "
        "keep-privs no-privs allow-setuid no-init no-umask no-eval unsquash disable-cache net sharens quiet silent "
        "debug verbose".split()
    ),
    {"B": "bind", "H": "home", "W": "workdir", "o": "overlay", "S": "scratch", "C": "containall", "c": "contain",
     "e": "cleanenv", "w": "writable", "f": "fakeroot", "i": "ipc", "p": "pid", "u": "userns", "q": "quiet",
     "s": "silent", "d": "debug", "v": "verbose"},
)  # fmt: skip


def apptainer(
    launch: OldLaunch, words: Sequence[Word], runtime: Literal["apptainer", "singularity"], folder: str
) -> Sequence[Word] | None:
    """The words of the command in the image; None if this starts none."""
    before = _TABLE.split(words)
    if not before.rest or before.rest[0].text not in {"exec", "run"}:
        return None
    split = _TABLE.split(before.rest[1:])
    if not split.rest:
        return None
    if before.rest[0].text == "run" and (len(split.rest) == 1 or split.rest[1].text.startswith("-")):
        launch.doubts.append((before.rest[0].line, f"`{runtime} run` starts the image's own program: name it"))
    image = split.rest[0].text
    found = OldContainer(runtime, image)
    for option in split.options:
        _option(launch, found, option.name, option.value, option.line, known=option.known)
    _inside(launch, found, split, folder)
    launch.container = found
    launch.keys += ["container"]
    return split.rest[1:]


def _option(launch: OldLaunch, found: OldContainer, name: str, value: Word | None, line: int, *, known: bool) -> None:
    text = value.text if value is not None else ""
    if not known:
        launch.doubts.append((line, f"`--{name}` of {found.runtime}"))
    elif name == "bind":
        found.binds += text.split(",")
    elif name == "env" and value is not None:
        for part in text.split(","):
            key, equals, setting = part.partition("=")
            if equals:
                launch.env[key] = Value(setting, value.value.known, value.value.uses)
    elif name == "no-home":
        found.home = False
    elif name in {"writable-tmpfs", "writable"}:
        found.writable = True
    elif name not in {"nv", "rocm", "pwd", "cwd", "quiet", "silent", "debug", "verbose"}:
        found.options.append(f"--{name}={text}" if value is not None else f"--{name}")


def _inside(launch: OldLaunch, found: OldContainer, split: Split, folder: str) -> None:
    """`--pwd`: a folder of the host has its own path in our container, so that relative paths stay right."""
    where = split.last("pwd", "cwd")
    if where is None:
        return
    for bind in found.binds:
        source, _, inside = bind.partition(":")
        if inside.partition(":")[0] == where.text.rstrip("/"):
            found.workdir = None if source == folder else source
            return
    if where.text != folder:
        launch.doubts.append((where.line, "a working directory inside the image: give the program's absolute path"))


def pyxis(launch: OldLaunch, split: Split) -> None:
    """`srun --container-image=…`."""
    image = split.last("container-image")
    if image is None:
        return
    found = OldContainer("pyxis", image.text)
    mounts = split.last("container-mounts")
    if mounts is not None:
        found.binds = mounts.text.split(",")
    workdir = split.last("container-workdir")
    if workdir is not None:
        found.workdir = workdir.text
        launch.doubts.append((workdir.line, "`--container-workdir`: the program starts in `workdir`, mounted there"))
    if split.has("container-mount-home", "no-container-mount-home"):
        found.home = split.has("container-mount-home")
    found.writable = split.has("container-writable")
    for name in ("container-name", "container-save", "container-env"):
        word = split.last(name)
        if word is not None:
            launch.doubts.append((word.line, f"`--{name}` of pyxis"))
    launch.container = found
    launch.keys += ["container"]
