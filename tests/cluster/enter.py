"""Run one command inside a cluster as one of its users, as if it were started here.

Run as ``python -m tests.cluster.enter MANAGER NODE USER FOLDER COMMAND...`` with the command's
whole environment as its own; NODE is the number of a node's process 1 inside the cluster, or 0
for the login node. `nsenter` would do, but for signals: they must reach the command, and its
way of ending must reach the caller. This process stays outside as its stand-in.
"""

from __future__ import annotations

import os
import pwd
import resource
import signal
import sys

from tests.cluster.syscalls import die_with_parent, join_namespaces

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def join(manager: int, node: int) -> None:
    """Have the children of this process in the cluster, on a node by its process 1 there; 0 is the login node."""
    join_namespaces(manager)
    if node:
        # /proc is the cluster's own by now, with the cluster's own numbers.
        join_namespaces(node)


def become(user: str) -> str:
    """Make this process one of `user`, and return the user's home."""
    entry = pwd.getpwnam(user)  # the cluster's own /etc/passwd by now
    os.umask(0o022)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    die_with_parent()  # after the change of user, which would clear it
    for number in (*PASSED_ON, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    return entry.pw_dir


def end_like(status: int) -> None:
    """End as the command ended: with its exit status, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    """Enter, run, wait."""
    manager, node, user, folder, *command = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    join(int(manager), int(node))
    child = os.fork()
    if child == 0:
        try:
            home = become(user)
            os.chdir(folder or home)
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    for number in PASSED_ON:
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    end_like(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main()
