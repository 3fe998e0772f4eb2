"""`hpc-launch` as a process of its own, forked from a server that has imported it: most of a short command is imports.

A server for each set of the variables that Python reads when it starts; it ends with the process that started it. What
a command prints, reads and returns is as if it had been executed, also inside a test cluster. Tests of imports, of
signals and of closed or odd outputs execute it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tests.cluster import enter
from tests.cluster.syscalls import own_proc_files
from tests.json_output import check_output

REPOSITORY = Path(__file__).parents[1]
_READ_AT_START = ("LANG", "LC_", "PYTHON")
_starting = threading.Lock()
_servers: dict[tuple[tuple[str, str], ...], tuple[socket.socket, subprocess.Popen[bytes]]] = {}


def inherited() -> dict[str, str]:
    """What Python reads when it starts, as this process has it: commands with the same share a server."""
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}


def hpc_launch(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    input: bytes = b"",  # noqa: A002 - as subprocess.run calls it
    timeout: float = 180,
    place: tuple[int, int, str] | None = None,
    module: str = "hpc_launch.cli.main",
) -> subprocess.CompletedProcess[bytes]:
    """Run `hpc-launch WORDS` to its end, in the `place` of a cluster if one is given (`Cluster.place`).

    With a `module`: its `main`, in place of that of hpc-launch.

    Raises:
        TimeoutExpired: It took longer than `timeout` seconds, and was killed.
    """
    told = {"words": list(words), "cwd": str(cwd or Path.cwd()), "env": dict(env), "place": place, "module": module}
    ours, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in range(3)]
    (stdin, feed), (out, stdout), (err, stderr) = pipes
    handed_over = (stdin, stdout, stderr, theirs.fileno())
    socket.send_fds(_server(env), [json.dumps(told).encode()], handed_over)
    for number in handed_over[:3]:
        os.close(number)
    theirs.close()
    read: dict[int, bytes] = {}
    threads = [threading.Thread(target=_read, args=(number, read)) for number in (out, err)]
    threads.append(threading.Thread(target=_feed, args=(feed, input)))
    for thread in threads:
        thread.start()
    with ours, ours.makefile("r") as answers:
        pid = int(answers.readline())
        ours.settimeout(timeout)
        try:
            status = int(answers.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["hpc-launch", *words], timeout) from None
        finally:
            for thread in threads:
                thread.join(timeout)
    check_output(words, read[out])
    return subprocess.CompletedProcess(["hpc-launch", *words], os.waitstatus_to_exitcode(status), read[out], read[err])


def hpc_launch_text(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """As `hpc_launch`, with its output as text."""
    done = hpc_launch(words, **options)
    texts = [stream.decode().replace("\r\n", "\n") for stream in (done.stdout, done.stderr)]
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


def _read(number: int, read: dict[int, bytes]) -> None:
    with open(number, "rb") as stream:
        read[number] = stream.read()


def _feed(number: int, data: bytes) -> None:
    try:
        with open(number, "wb") as stream:
            stream.write(data)
    except BrokenPipeError:
        pass  # it did not want to read all of it


def _server(env: Mapping[str, str]) -> socket.socket:
    kept = {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}
    key = tuple(sorted(kept.items()))
    with _starting:
        if key not in _servers:
            _servers[key] = _started(kept)
    return _servers[key][0]


def _started(kept: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
        cwd=REPOSITORY,
        # Without a cache of templates: it would be the user's own.
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": os.devnull, **kept},
        # Pipes, as the commands have: Python looks once whether its streams can seek. Nothing goes through these.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return ours, process


@atexit.register
def _end() -> None:
    for connection, process in _servers.values():
        connection.close()
        process.communicate()


def _serve(connection: socket.socket) -> str:
    """Fork for each request, until the other end is closed; returns its module in the process that is the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the attendants
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            words = json.loads(request)
            if words["place"]:
                enter.join(*words["place"][:2])
            if (command := os.fork()) != 0:
                _attend(command, descriptors)
            _become(words, descriptors)
            return str(words["module"])
        for number in descriptors:
            os.close(number)


def _attend(command: int, descriptors: list[int]) -> NoReturn:
    """Tell the requester the process id of the command, and its exit status in the end."""
    for number in descriptors[:3]:
        os.close(number)
    os.write(descriptors[3], f"{command}\n".encode())
    _, status = os.waitpid(command, 0)
    try:
        os.write(descriptors[3], f"{status}\n".encode())
    finally:
        os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    for target, number in enumerate(descriptors[:3]):
        os.dup2(number, target)
    for number in descriptors:
        os.close(number)
    if request["place"]:
        os.setsid()
        enter.become(request["place"][2])
        own_proc_files()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["hpc-launch", *request["words"]]


def _run(module: str) -> None:
    """The command, without the time that Python takes to tear the modules down."""
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        if isinstance(end.code, int):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise


def _prepare() -> None:
    """Import all, and read what a command would read again each time: types, the templates, the rules of failures."""
    import hpc_launch

    for module in pkgutil.walk_packages(hpc_launch.__path__, "hpc_launch."):
        if not any(
            part in module.name for part in (".agent.", "library_scripts", "probe_script", "__main__", "mcp_server")
        ):
            importlib.import_module(module.name)
    from msgspec import Struct

    from hpc_launch.base import json_records
    from hpc_launch.base.installed import agent_archive, shipped
    from hpc_launch.diagnose import rulebook
    from hpc_launch.job.type_hints import fields_of, members
    from hpc_launch.script.parts import runtime_digest
    from hpc_launch.script.template_environment import template_environment

    waiting = [Struct]
    for kind in waiting:
        waiting += kind.__subclasses__()
        with suppress(NameError):  # a type that no file has, and only type checkers look up
            for field in fields_of(kind).values():
                members(field.type)
            json_records._fields(kind)
    templates, folder = template_environment(), shipped("slurm_templates")
    for path in folder.rglob("*.j2"):
        templates.get_template(str(path.relative_to(folder)))
    rulebook.shipped().words_in(b"")
    agent_archive()
    runtime_digest()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _prepare()
        gc.freeze()  # or each command would look through, and so copy, all that was imported
        wanted = _serve(requests)
    _run(wanted)
