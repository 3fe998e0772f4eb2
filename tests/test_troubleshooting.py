"""The page of symptoms: each says which command shows the cause, and what it shows is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_launch.prepare.prepare import validate_job
from hpc_launch.schedulers.slurm.slurm_reasons import advice
from tests.forked import hpc_launch_text, inherited
from tests.page_runs import DOCS

PAGE = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
LOGS = {
    symptom: (match[1], re.findall(r"`([a-z_]+)`", match[2].partition(":")[0]))
    for symptom, text in SYMPTOMS.items()
    if (match := re.search(r"^```text\n(.*?)^```\n\n(`[a-z_]+`[^\n]*)", text, re.DOTALL | re.MULTILINE))
}
"""A line of a log, and the failure classes that follow it."""

KEYS = sorted({span for span in re.findall(r"`([a-z_.]+: [^`]+)`", PAGE) if not span.startswith(("extends", "site"))})
SITE = """
name: mini
scheduler: slurm
node_classes: {gpu: {cpus: 64, memory: 256G, gpus: 4}}
queues: {gpu: {node_class: gpu, partition: gpu, default_time: 01:00:00}}
"""


def test_the_symptoms_are_many_and_the_page_is_short() -> None:
    assert len(SYMPTOMS) >= 22
    assert len(PAGE.splitlines()) <= 250
    assert not [symptom for symptom, text in SYMPTOMS.items() if "`hpc-launch " not in text]


@pytest.mark.parametrize("symptom", LOGS)
def test_why_prints_the_class_that_is_named(symptom: str, tmp_path: Path) -> None:
    line, classes = LOGS[symptom]
    log = tmp_path / "slurm-4711.out"
    log.write_text(line, encoding="utf-8")
    done = hpc_launch_text(["why", "--log", str(log)], env={**inherited(), "PATH": "/usr/bin", "HOME": str(tmp_path)})
    assert done.stdout.partition(",")[0].split()[0] == classes[0], done.stdout


def test_most_logs_are_looked_at() -> None:
    assert len(LOGS) >= 9


def test_a_reason_of_slurm_is_explained_as_shown() -> None:
    (shown,) = re.findall(r"^PartitionTimeLimit: .*$", PAGE, re.MULTILINE)
    assert shown == f"PartitionTimeLimit: {advice('PartitionTimeLimit', '4711')}"


@pytest.mark.parametrize("key", KEYS)
def test_keys_to_set_are_accepted(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = key.split(": ", 1)
    if "CLASS" in value:
        value = value.replace("CLASS", "cuda_oom")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text(SITE, encoding="utf-8")
    (tmp_path / "job.yaml").write_text("name: tiny\nscript: train.py\n", encoding="utf-8")
    found = validate_job(Path("job.yaml"), site="site.yaml", sets=[f"{name}={value}"])
    assert not [str(finding) for finding in found if finding.severity == "error"]
