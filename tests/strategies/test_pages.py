"""The two pages: each command on them runs, and what they show of its output is what comes out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.strategies.conftest import Config

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", ["reference/config.md", "evidence/setup-script.md"])
def test_commands_run_and_give_what_is_shown(page: str, config: Config) -> None:
    output, ran = "", 0
    for language, text in blocks(page):
        if language == "yaml" and "\nscript: " in text:
            continue  # a job file, which tests/test_docs.py validates
        if language != "console":
            assert output == text
            continue
        lines = text.splitlines()
        for at, line in enumerate(lines):
            if not line.startswith("$ hpc-launch config "):
                continue
            done = config(*shlex.split(line)[3:])
            shown = "\n".join(lines[at + 1 :]) if not lines[-1].startswith("$") else ""
            assert done.code == (3 if shown else 0), (line, done)
            assert not shown or done.err.strip() == shown
            output = done.out
            ran += 1
    assert ran >= 5


def test_the_page_names_every_old_option() -> None:
    text = (DOCS / "evidence" / "setup-script.md").read_text(encoding="utf-8")
    old = (
        "zero_stage offload_optimizer bf16 output sharding_strategy mixed_precision config num_gpus_per_node num_nodes"
    )
    for option in [*old.split(), *"master_addr master_port node_rank use_deepspeed time_limit".split()]:
        assert f"--{option}" in text
