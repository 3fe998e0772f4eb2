"""Draw docs/images/run.svg: what `submit --wait` shows of a run of the example (`make docs`). A test compares its text.

The live view's own code draws it. The numbers are those of a run on a machine with two CPUs.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.view.live_view import run_lines
from hpc_launch.view.run_details import summary

IMAGE = Path(__file__).parent / "images" / "run.svg"
WIDTH = 100
COMMAND = "hpc-launch submit examples/tiny-gpt/job.yaml --site local --wait"
RUN = "tiny-gpt-261121-104053-2475"
JOB = "local-15020"
LOG = """
step 90/200 loss 2.4326 lr 2.1e-03 tokens/s 11731
step 100/200 loss 2.4924 lr 1.9e-03 tokens/s 10312
step 110/200 loss 2.4362 lr 1.7e-03 tokens/s 10053
step 120/200 loss 2.3061 lr 1.4e-03 tokens/s 9884
"""


def picture() -> str:
    """The picture, as SVG: the command, the view in the middle of the training, and the end."""
    with tempfile.TemporaryDirectory() as home, _utc():
        folder = Path(home) / "hpc-launch" / "runs" / RUN
        middle = _status(folder)
        (folder / "checkpoints").mkdir()
        over = replace(middle.attempts[0], state="COMPLETED", ended=_NOW + 26, exit_code=0)
        end = replace(middle, state="COMPLETED", attempts=(over,), progress=Progress(200, 200, 2.176))
        console = Console(
            record=True, width=WIDTH, highlight=False, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        console.print(Text.assemble(("$ ", "bold green"), COMMAND))
        console.print(f"{RUN}  job {JOB}")
        for line in run_lines(middle, LOG.strip().splitlines(), 30, colour=True, now=_NOW):
            console.print(Text.from_ansi(line))
        console.print()
        console.print(Text("# … after the end, instead of the lines above:", "dim"))
        for line in summary(end, colour=True, now=_NOW + 26):
            console.print(Text.from_ansi(line.replace(home, "~")))
    svg = console.export_svg(title="hpc-launch", theme=MONOKAI, unique_id="run")
    # rich refers to a web font; use the reader's own monospaced font instead.
    svg = re.sub(r"\s*@font-face \{[^}]*\}", "", svg).replace("Fira Code, monospace", "monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def words(svg: str) -> list[str]:
    """What a reader sees: another version of rich may draw the same text in another way."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    return re.sub(r"&#160;|\s", " ", " ".join(texts)).split()


_NOW = 1_795_257_696.0
"""2026-11-21 10:41:36 UTC, in seconds."""


def _status(folder: Path) -> RunStatus:
    """The run at step 120. Its log and its folder exist, as far as the view looks for them."""
    attempt = folder / "attempts" / "001"
    (attempt / "logs").mkdir(parents=True)
    (attempt / "logs" / "node-0.log").touch()
    running = AttemptStatus(1, attempt, JOB, "RUNNING", "local", 0.0, nodes=("vm",), started=_NOW - 43)
    progress = Progress(120, 200, 2.306, 3.284, 24.0)
    return RunStatus(
        RUN, "tiny-gpt", "local", folder, "RUNNING", None, JOB, "local", 0.0, attempts=(running,), progress=progress
    )


@contextmanager
def _utc() -> Iterator[None]:
    """Times of day as in UTC, wherever the picture is drawn."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


if __name__ == "__main__":
    IMAGE.write_text(picture(), "utf-8")
