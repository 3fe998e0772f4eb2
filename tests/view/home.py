"""A user's home with real runs on this machine, and the command line as that user calls it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpc_launch.base.errors import SubmitRefused
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, ProgressRecord
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.run_store import PreparedAttempt, create_run
from hpc_launch.runs.submitting.submit_attempt import submit_new, submit_next
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler
from hpc_launch.schedulers.scheduler import Submission
from tests.forked import hpc_launch_text

_SCRIPT = """#!/bin/bash
# What matters of the real script: the claim, both records, a log.
dir=$1 id=$HPC_LAUNCH_JOB_ID
(set -o noclobber; echo "$id" >"$dir/claim") 2>/dev/null || exit 75
mkdir -p "$dir/logs"
began=$(date +%s)
record() {{
    format='{{"job_id": "%s", "exit_code": %d, "signal": "%s", "started": %d, "ended": %d, "nodes": "{nodes}"}}'
    printf "$format" "$id" "$2" "$by" "$began" "$(date +%s)" >"$dir/.$1" && mv "$dir/.$1" "$dir/$1"
}}
record start.json 0
trap 'record end.json $?' EXIT
trap 'by=TERM; exit 143' TERM
say() {{ printf "$2\\n" >>"$dir/logs/node-$1.log"; }}
echo "batch shell of $id"
{body}
"""

TRAINING = """for i in 1 2 3 4; do say 0 "[rank0]: step $i/4 loss 0.$i"; say 1 "[rank1]: step $i/4"; sleep 0.3; done"""
LONG = """say 0 "[rank0]: step 1/100 loss 4.0"; for i in {1..300}; do sleep 0.2; done"""


class Refusing(LocalScheduler):
    """Says no."""

    def submit(self, submission: Submission) -> str:
        raise SubmitRefused("Invalid account")


HELD = "while [ ! -e $dir/go ]; do sleep 0.1; done; "
"""In front of a body: nothing happens before `let_go`, however slow this machine is."""


def let_go(run: RunFolder) -> None:
    """Let a run with HELD go on."""
    (run.attempt(1).path / "go").touch()


@dataclass
class Home:
    """`environment` is what the commands get; submissions go through this process."""

    path: Path
    environment: dict[str, str]

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def index(self) -> Index:
        return Index(self.path / ".local/state/hpc-launch", self.environment)

    def submit(
        self, body: str = TRAINING, *, name: str = "tiny", nodes: str = "n[1-2]", refused: bool = False
    ) -> RunFolder:
        """A run, submitted to the local scheduler."""
        scheduler = Refusing() if refused else LocalScheduler()
        try:
            run, _, _ = submit_new(self.prepared(body, name=name, nodes=nodes), scheduler, index=self.index)
        except SubmitRefused:
            self.index.add(RunFolder(next(self.runs.iterdir())))
            return RunFolder(next(self.runs.iterdir()))
        return run

    def again(self, run: RunFolder, body: str = TRAINING) -> None:
        """The next attempt of a run."""
        submit_next(run, self.prepared(body), LocalScheduler(), index=self.index)

    def unsubmitted(self, *, name: str = "tiny") -> RunFolder:
        """A run whose driver is on its way to the scheduler: this process, which is alive."""
        run = create_run(self.prepared(TRAINING, name=name))
        run.attempt(1).path.mkdir()
        self.index.add(run)
        return run

    def job_id(self, run: RunFolder, number: int = 1) -> str:
        """The job of an attempt."""
        return str(json.loads(run.attempt(number).job.read_text())["job_id"])

    def newest(self) -> RunFolder:
        """What @last means."""
        return RunFolder(self.index.entries()[0].folder)

    def prepared(self, body: str, *, name: str = "tiny", nodes: str = "n[1-2]") -> PreparedAttempt:
        return PreparedAttempt(
            name=name,
            site="local",
            scheduler="local",
            runs_folder=self.runs,
            job_yaml=f"name: {name}\n",
            resolved_yaml="",
            site_yaml="",
            script=_SCRIPT.format(body=body, nodes=nodes),
            plan=PlanRecord(progress=ProgressRecord(step=r"step (\d+)/(\d+)", loss=r"loss ([\d.]+)")),
        )

    def answered(self, answer: bytes, *words: str) -> tuple[int, str]:
        """Exit code and output of a command on a terminal where somebody types `answer`."""
        terminal, end = pty.openpty()
        process = subprocess.Popen(
            self.command(*words), cwd=self.path, env=self.environment, stdin=end, stdout=end, stderr=end
        )
        os.close(end)
        os.write(terminal, answer)
        said = b""
        with suppress(OSError):  # the command has closed its terminal
            while piece := os.read(terminal, 4096):
                said += piece
        os.close(terminal)
        return process.wait(timeout=60), said.decode()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hpc_launch", *words]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The command in the background, its output in pipes."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        return subprocess.Popen(self.command(*words), **{"env": self.environment, **pipes, **options})

    def call(self, *words: str, code: int = 0, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        """The command to its end, which must be `code`."""
        done = hpc_launch_text(words, env=self.environment, timeout=timeout)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr, "no escape sequence belongs into a pipe"
        return done

    def interrupt_after(self, process: subprocess.Popen[str], stream: IO[str] | None, word: str) -> str:
        """Ctrl-C for the command as soon as `word` is in what it writes to `stream`. Returns what it said to stderr."""
        said = ""
        assert stream is not None
        while word not in said:
            line = stream.readline()
            assert line, "it ended before"
            said += line
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=180)
        return (said if stream is process.stderr else "") + err

    def json(self, *words: str) -> Any:
        return json.loads(self.call(*words, "--json").stdout)
