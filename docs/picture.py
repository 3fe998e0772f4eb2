"""Generate docs/images/run.svg: train the example and record what `submit --wait` shows.

    .venv/bin/python docs/picture.py

The live view's code draws the middle frame from the run's real state; the end is its summary. Only the temporary home
is replaced by `~`.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import scheduler_for
from hpc_launch.view.live_view import LOG_LINES, run_lines
from hpc_launch.view.run_details import last_lines, summary

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGE = REPOSITORY / "docs" / "images" / "run.svg"
WIDTH = 100
COMMAND = "hpc-launch submit examples/tiny-gpt/job.yaml --site local --wait"


def main() -> None:
    """Submit the example, and draw its state in the middle of the training and at the end."""
    os.chdir(REPOSITORY)
    os.environ["COLUMNS"] = str(WIDTH)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-picture-") as home:
        os.environ.update(HOME=home, HPC_LAUNCH_HOME=f"{home}/hpc-launch/runs")
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "NO_COLOR"):
            os.environ.pop(name, None)
        words = COMMAND.replace("--wait", "--json").split()
        answer = json.loads(subprocess.run([sys.executable, "-m", "hpc_launch", *words[1:]],
                                           capture_output=True, check=True, text=True).stdout)  # fmt: skip
        run = RunFolder(Path(answer["folder"]))
        console = Console(
            record=True, width=WIDTH, highlight=False, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        console.print(Text.assemble(("$ ", "bold green"), COMMAND))
        console.print(f"{answer['run']}  job {answer['job_id']}")
        tracker = RunTracker([run], lambda _: scheduler_for("local"))
        middle = _poll(tracker, run, until=lambda status: (status.progress.step or 0) >= 120)
        for line in run_lines(middle, last_lines(middle, LOG_LINES), 30, colour=True):
            console.print(Text.from_ansi(line))
        console.print()
        console.print(Text("# … after the end, instead of the lines above:", "dim"))
        end = _poll(tracker, run, until=lambda status: status.final)
        for text in summary(end, colour=True):
            console.print(Text.from_ansi(text.replace(home, "~")))
        svg = console.export_svg(title="hpc-launch", theme=MONOKAI, unique_id="run")
    IMAGE.parent.mkdir(exist_ok=True)
    # rich refers to a web font; use the reader's own monospaced font instead.
    svg = re.sub(r"\s*@font-face \{[^}]*\}", "", svg).replace("Fira Code, monospace", "monospace")
    IMAGE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")


def _poll(tracker: RunTracker, run: RunFolder, until: Callable[[RunStatus], bool]) -> RunStatus:
    while True:
        status = tracker.poll()[run.name]
        if until(status) or status.final:
            return status
        time.sleep(0.5)


if __name__ == "__main__":
    main()
