"""What the command line tells on stderr: warnings, notes, questions, errors and crash reports.

Modules that only the error path needs are imported there, to keep `--help` and completion fast.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_launch.cli.shared_options import is_set
from hpc_launch.job.shell_text import visible
from hpc_launch.service.listener import Listener
from hpc_launch.view.terminal import is_terminal, waiting_notice

if TYPE_CHECKING:
    from hpc_launch.base.errors import UserError
    from hpc_launch.base.findings import Finding


def write_text(output: Path | None, text: str, *, executable: bool = False) -> None:
    """Write to the file named with -o, else to stdout. Raises UsageError."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.base.files import write_output

    if output is None:
        click.echo(text, nl=False)
        return
    try:
        write_output(output, text, mode=0o777 if executable else 0o666)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", "name another file with -o") from error


def print_note(text: str) -> None:
    """Print a line on stderr, after what stdout has, with control characters escaped; nothing with `--quiet`."""
    if not is_set("quiet"):
        sys.stdout.flush()
        click.echo(visible(text), err=True)


def show_findings(findings: Sequence[Finding], *, err: bool) -> None:
    """Print each finding and its hint on a line of its own, with control characters escaped."""
    for finding in findings:
        click.echo(visible(str(finding)), err=err)
        if finding.hint:
            click.echo(f"  hint: {visible(finding.hint)}", err=err)


class Terminal(Listener):
    """Prints what a service does, and asks the user at the terminal."""

    def say(self, text: str) -> None:
        print_note(text)

    def warn(self, findings: Sequence[Finding]) -> None:
        show_findings(findings, err=True)

    def fail(self, error: UserError) -> None:
        print_error(error)

    def doing(self, what: str) -> AbstractContextManager[Callable[[str], None]]:
        return super().doing(what) if is_set("quiet") else waiting_notice(what)

    @property
    def answers(self) -> bool:
        return is_terminal(sys.stdin) and is_terminal(sys.stderr)

    def confirm(self, question: str) -> bool:
        return click.confirm(visible(question), err=True)


TERMINAL = Terminal()

INTERNAL_ERROR = 5
INTERRUPTED = 130
_WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def run_guarded(group: click.Group, arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default `sys.argv`, and return its exit code (listed in `hpc-launch --help`)."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    # Python sets a stream that the caller closed (`>&-`) to None.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    try:
        result = group.main(args, prog_name="hpc-launch", standalone_mode=False, obj=args)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; run `hpc-launch list` to see what was submitted", err=True)
        return INTERRUPTED
    except Exception as error:
        from hpc_launch.base.errors import UsageError, UserError

        if isinstance(error, UserError):
            from hpc_launch.runs.find_run import RunElsewhere, UnknownRun

            if isinstance(error, RunElsewhere):
                # The run's first host does the same, with the folder of the run there.
                return run_there(error.host, [str(error.folder) if one == error.text else one for one in sys.argv[1:]])
            if isinstance(error, UnknownRun):
                from hpc_launch.remote.forward import cluster_of

                if cluster := cluster_of(error.text):
                    at = 1 + next(at for at, word in enumerate(args) if not word.startswith("-"))  # after the verb
                    return run_guarded(group, [*args[:at], f"--on={cluster}", *args[at:]])
            print_error(error)
            return error.exit_code
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS and error.filename is None:
            # Stdout or stderr: an error on a file would name the file. Otherwise flushing the buffer fails again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            hint = "free disk space, or redirect the output elsewhere"
            print_error(UsageError(f"cannot write the output: {error.strerror}", hint))
            return UsageError.exit_code
        _save_crash_report(error)
        return INTERNAL_ERROR
    return result if isinstance(result, int) else 0


def print_error(error: UserError) -> None:
    """Print the error and its hint on stderr."""
    from hpc_launch.base.errors import Refused

    if isinstance(error, Refused):
        show_findings(error.findings, err=True)
        return
    for label, text in (("error", str(error)), ("hint", error.hint)):
        if text:
            # A message may quote file names or program output: keep its line breaks and escape control characters.
            click.echo("\n".join(map(visible, f"{label}: {text}".splitlines())), err=True)


def _save_crash_report(error: Exception) -> None:
    import platform
    import tempfile
    import traceback

    from hpc_launch import __version__
    from hpc_launch.base.files import make_private, state_folder

    text = "".join(traceback.format_exception(error))
    report = (
        f"hpc-launch {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {' '.join(sys.argv[1:2])}\n\n{text}"
    )
    try:
        folder = make_private(state_folder() / "faults")
        handle, where = tempfile.mkstemp(prefix="fault-", suffix=".log", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(report)
    except OSError:
        click.echo("\n".join(map(visible, report.splitlines())), err=True)
        where = "the report above"
    click.echo(visible(f"error: internal error: {type(error).__name__}: {error}"), err=True)
    click.echo(f"hint: report this bug and attach {where}; check it for private data first", err=True)


def run_on_cluster(name: str, given: Mapping[str, Any], *, takes_site: bool) -> int:
    """Run the verb of this command line on a cluster. `given`: the values of its parameters. Returns its exit code."""
    from hpc_launch.remote.forward import Call, run_on
    from hpc_launch.runs.rank_logs import LogFile, RankLogLine
    from hpc_launch.view.run_details import log_text
    from hpc_launch.view.terminal import tolerant

    context = click.get_current_context()
    verb, args = str(context.info_name), context.find_root().obj
    left_out = ["--on", name, f"--on={name}"]
    at = args.index(verb)
    words = [verb, *(one for one in (*args[:at], *args[at + 1 :]) if one not in left_out)]
    output = given.get("output")
    if output is not None:
        words = [
            one for one in words if one not in ("-o", "--output", str(output), f"--output={output}", f"-o{output}")
        ]
    job = given.get("job")
    named = next((one for one in words[1:] if job is not None and os.path.normpath(one) == os.path.normpath(job)), None)
    one_node, one_rank = given.get("node") is not None, given.get("rank") is not None
    as_json, out = given.get("as_json", False), tolerant(sys.stdout)

    def show(item: dict[str, Any]) -> None:
        file = LogFile(item["attempt"], Path(f"{item['file']}.log"), item["node"], item["rank"])
        line = RankLogLine(file, item["text"])
        out.write(log_text(line, one_node=one_node, one_rank=one_rank, as_json=as_json))
        out.flush()

    return run_on(name, Call(tuple(words), named, takes_site, output), TERMINAL, show)


def run_there(host: str, arguments: Sequence[str]) -> int:
    """Run hpc-launch on a host. Returns its exit code, or that of Unreachable."""
    import shlex
    import subprocess

    from hpc_launch.agent.fan_out import SSH_FAILED
    from hpc_launch.base.errors import Unreachable
    from hpc_launch.base.installed import module_command
    from hpc_launch.schedulers.ssh.ssh_hosts import SSH

    command = shlex.join(["exec", *module_command("hpc_launch"), *arguments])
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    ssh = [word for word in SSH if word != "-T" or not terminal]
    code = subprocess.run([*ssh, *terminal, "--", host, shlex.join(["bash", "-c", command])], check=False).returncode
    return Unreachable.exit_code if code == SSH_FAILED else code
