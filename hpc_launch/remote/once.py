"""Do something on a cluster once, however often the connection drops: python -m hpc_launch.remote.once TOKEN VERB ...

It runs on the login node. The first call with a token runs the verb in a session of its own, which a lost connection
does not end; each further call waits for that one, and prints what it printed. If its machine failed meanwhile, nobody
knows what it has done: it is not repeated. Later calls remove what an old one has left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.files import make_private, state_folder, write_atomic
from hpc_launch.base.installed import module_command

ASKED_S = 86_400.0
"""For how long a client may ask with one token. It may sleep for days between two calls."""
KEPT_S = 14 * ASKED_S
"""For how long the answer is kept. It must be longer: without the answer, a call with its token repeats the verb."""


def once(folder: Path, words: list[str]) -> int:
    """Run `hpc-launch WORDS` unless that was done, and print what it printed. Returns its exit code."""
    make_private(folder)
    keeper = os.fork()
    if keeper == 0:
        os.setsid()
        _run(folder, words)
        os._exit(0)
    os.waitpid(keeper, 0)
    try:
        code = int((folder / "code").read_text())
    except (OSError, ValueError):
        message = f"error: {' '.join(words[:1])} was interrupted on this machine, and is not repeated\n"
        sys.stderr.write(f"{message}hint: hpc-launch list shows what it has done\n")
        return Unreachable.exit_code
    sys.stderr.write((folder / "err").read_text("utf-8", "replace"))
    sys.stdout.write((folder / "out").read_text("utf-8", "replace"))
    return code


def _run(folder: Path, words: list[str]) -> None:
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.close(os.open(folder / "begun", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            command = [*module_command("hpc_launch"), *words]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False)
        write_atomic(folder / "code", str(done.returncode))
    oldest = time.time() - KEPT_S
    for request in folder.parent.iterdir():
        with suppress(OSError):  # another call removes it
            if request.lstat().st_mtime < oldest:
                shutil.rmtree(request)


if __name__ == "__main__":
    sys.exit(once(state_folder() / "requests" / sys.argv[1], sys.argv[2:]))
