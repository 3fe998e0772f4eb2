"""Writes docs/launch-table.md from tests/table/cells.py: `make docs`. A test fails when they are out of step."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.table.cells import LAUNCHERS, REFUSED, RUNTIMES, STRATEGIES, VENDORS, Cell, cells

PAGE = Path(__file__).parent / "launch-table.md"

INTRO = """
# What can be launched how

<!-- Made by docs/generate_launch_table.py from tests/table/cells.py. Change that, then run `make docs`. -->

A table for each [launcher](launching.md), with the [strategies](strategies.md) down and the [container
runtimes](containers.md) across. Each cell is three tests: for nodes with GPUs of NVIDIA, with GPUs of AMD, and without.

- **run N**: done for real, on CPUs. The test N below the table starts it on two or more nodes of a Slurm, and looks at
  what it computes or how it ends. For GPUs of both makers the cell is golden.
- **golden**: the script was made and read by bash, and says what it has to say here: the launcher's command, the
  runtime's flag for the GPUs, the strategy's file, variables or flags, the job's variables inside the image.
- **HL…**: refused before anything is submitted, with this finding.

What is common to many cells is held once: [ShellCheck](https://www.shellcheck.net) on a script of every launcher with
every runtime, options against the lists of srun, torchrun, DeepSpeed and each runtime.

**Not shown by any cell:** a GPU, and the runtimes beside Apptainer. They were not there to try.

A training's own DDP and FSDP need nothing of the job file, so one real job does both, and then ZeRO. `strategy:
{name: fsdp, for: accelerate}` is what the golden cells of `fsdp` have: the environment of an `Accelerator()`. The run
of `megatron` is that of a stand-in, which has Megatron's options and forms its groups, and trains nothing.
"""


def table(launcher: str) -> list[str]:
    """The section of one launcher."""
    tests: dict[str, int] = {}
    rows = []
    for strategy in STRATEGIES:
        row = []
        for runtime in RUNTIMES:
            cell = Cell(launcher, strategy, runtime, "none")
            if cell.refused is not None:
                row.append(cell.refused[0])
            elif cell.run is not None:
                row.append(f"run {tests.setdefault(cell.run, len(tests) + 1)}")
            else:
                row.append("golden")
        rows.append(f"| `{strategy}` | " + " | ".join(row) + " |")
    head = ["no container", *(f"`{runtime}`" for runtime in RUNTIMES[1:])]
    lines = [f"## {launcher}", "", "| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|", *rows, ""]
    if launcher in REFUSED:
        code, why = REFUSED[launcher]
        lines += [f"No images: {why} ([{code}](findings.md#{code.lower()})).", ""]
    lines += [f"{number}. `{test}`" for test, number in tests.items()]
    return [*lines, *([""] if tests else [])]


def page() -> str:
    """The whole page."""
    every = list(cells())
    refused = sum(cell.refused is not None for cell in every)
    run = sum(cell.run is not None for cell in every)
    counted = (
        f"In all {len(every)} cells with {len(VENDORS)} kinds of nodes: {run} are run, "
        f"{len(every) - refused - run} golden, {refused} refused."
    )
    lines = [INTRO.strip(), "", counted, ""]
    for launcher in LAUNCHERS:
        lines += table(launcher)
    return "\n".join(lines)


def main() -> None:
    """Write the page if it is out of step."""
    if not PAGE.exists() or PAGE.read_text("utf-8") != page():
        print(PAGE.relative_to(PAGE.parent.parent))
        PAGE.write_text(page(), "utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
