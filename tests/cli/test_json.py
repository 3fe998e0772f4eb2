"""`--json`: each verb that a program would call has it, with a documented type, and prints what the type says.

`tests/json_output.py` checks the types wherever a test runs a verb with `--json`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
from msgspec import Struct

from docs.output_tables import structs, with_tables
from docs.output_types import OUTPUTS, checked, output_file, output_schema
from docs.page_links import relative
from hpc_launch.cli.main import VERBS, group
from hpc_launch.diagnose.node_health import NodeReport
from hpc_launch.runs.node_health_store import NodeHealthStore
from tests.json_output import verb_of
from tests.view.home import Home

ROOT = Path(__file__).parents[2]
WITHOUT = {
    "nodes ticket", "config megatron", "config slurm", "completion", "mcp", "shell", "docs",
}  # fmt: skip
"""Verbs that print text for other programs or people, or a live view."""

JOB = "name: demo\nsite: local\nlauncher: none\ncommand: [echo, 'step 1/1 loss 0.5']\n"
PROFILE = "name: mine\nscheduler: local\nnode_classes: {n: {cpus: 2}}\nqueues: {all: {node_class: n}}\n"
TABLE = {
    "init --set script=train.py --set nodes=1 --site local --yes -o new.yaml --json": 0,
    "init --from train.sbatch -o old.yaml --json": 0,
    "run job.yaml --json": 0,
    "submit job.yaml --test-only --json": 0,
    "submit sweep.yaml --dry-run --json": 0,
    "submit sweep.yaml --json": 0,
    "render job.yaml --json": 0,
    "watch @last --json": 0,
    "logs @last/0 --json": 0,
    "report @last/0 --json": 0,
    "clusters list --json": 0,
    "status @last --json": 0,
    "cancel @last --json": 0,
    "list --goodput --json": 0,
    "doctor job.yaml --no-job --json": 0,
    "plan job.yaml --json": 0,
    "notify test notify.yaml --json": 0,
    "nodes list --site mine --json": 0,
    "nodes clear n7 --site mine --json": 0,
    "config deepspeed --check ds.json --json": 3,
    "config fsdp --check ds.json --json": 3,
    "config hostfile --job hosts.yaml --json": 0,
    "config launcher --job hosts.yaml --json": 0,
    "containers check none.sif --json": 3,
    "sites show local --json": 0,
    "sites diff local mine --json": 0,
    "sites check mine.yaml --json": 3,
    "sites add team --json": 0,
    "sites remove team --json": 0,
}
"""Commands with their exit codes."""
ELSEWHERE = {
    "prune": "tests/cli/test_prune.py",
    "clusters add": "tests/remote/test_on_cluster.py",
    "stacks": "tests/cli/test_shell.py",
    "drill": "tests/retry/test_drill_run.py",
    "containers build": "tests/slurm/test_apptainer_images.py",
    "containers pull": "tests/images/test_pull_image.py",
    "nodes leases": "tests/ssh/test_ssh_runs.py",
    "sites detect": "tests/slurm/test_learn.py",
    "sites learn": "tests/slurm/test_learn.py",
    "sites update": "tests/cli/test_sites.py",
}
"""Tests of verbs that take long or need a cluster."""


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            inner = command.get_command(context, part)
            assert inner is not None
            yield from leaves(inner, f"{name} {part}".strip())
    else:
        yield name, command


def test_every_verb_has_a_type_or_prints_no_json() -> None:
    assert {name.split()[0] for name, _ in leaves(group)} == set(VERBS)
    with_json = {name for name, verb in leaves(group) if any("--json" in param.opts for param in verb.params)}
    assert with_json == set(OUTPUTS)
    assert {name for name, _ in leaves(group)} - with_json == WITHOUT


def test_every_verb_prints_what_its_type_says(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.path)
    for name, text in {
        "job.yaml": JOB,
        "notify.yaml": JOB + "notify: {command: [cat]}\n",
        "sweep.yaml": JOB + "sweep: {grid: {args.lr: [1, 2]}}\n",
        "hosts.yaml": JOB.replace("none", "torchrun").replace(
            "command: [echo, 'step 1/1 loss 0.5']", "script: train.py"
        ),
        "train.py": "print('step 1/1')\n",
        "train.sbatch": "#!/bin/bash\n#SBATCH --nodes=1 --time=10 -p gpu\nsrun python3 train.py\n",
        "ds.json": "{}\n}",
        "mine.yaml": f"{PROFILE}paths: {{ledger: {home.path}/ledger}}\n",
        "team/ours.yaml": PROFILE.replace("mine", "ours"),
    }.items():
        (home.path / name).parent.mkdir(exist_ok=True)
        (home.path / name).write_text(text)
    home.environment["HPC_LAUNCH_SITE_PATH"] = str(home.path)
    note = NodeReport(time=time.time(), node="n7", run="tiny", attempt=1, failure_class="gpu_hardware")
    NodeHealthStore("mine", str(home.path / "ledger")).write([note])
    ran = set()
    for command, code in TABLE.items():
        words = command.split()
        done = home.call(*words, code=code)
        verb = verb_of(words)
        assert verb is not None
        for value in done.stdout.splitlines() if verb == "logs" else [done.stdout]:
            _check(verb, json.loads(value))
        ran.add(verb)
    guide = (ROOT / "docs" / "how-to" / "for-agents.md").read_text()
    ran |= {verb for verb in OUTPUTS if f"hpc-launch {verb} " in guide}
    for verb, file in ELSEWHERE.items():
        assert "--json" in (ROOT / file).read_text() or "check_output" in (ROOT / file).read_text()
        ran.add(verb)
    assert ran >= set(OUTPUTS)


def _check(verb: str, value: Any) -> None:
    """By the type, to the field, and by the schema."""
    checked(verb, value)
    jsonschema.validate(value, json.loads(output_file(verb).read_text()))


@pytest.mark.parametrize("verb", OUTPUTS)
def test_the_schemas_are_valid_and_allow_further_fields(verb: str) -> None:
    schema = output_schema(verb)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert '"additionalProperties": false' not in json.dumps(schema)


def test_the_page_has_a_table_of_every_type() -> None:
    path = ROOT / "docs" / "reference" / "json.md"
    page = path.read_text()
    assert relative(with_tables(page), path) == page
    shown = set(re.findall(r"^<!-- fields of (\w+) -->$", page, re.MULTILINE))
    assert shown <= set(structs())
    for kind in {part for kinds in OUTPUTS.values() for one in kinds for part in (one, *getattr(one, "__args__", ()))}:
        if isinstance(kind, type) and issubclass(kind, Struct):
            assert kind.__name__ in shown
