"""`notify:`: what is refused without repeating an address, and what nobody would send."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_launch.base.errors import Refused
from hpc_launch.prepare.prepare import prepare_job

ADDRESS = "https://hooks.example.org/services/T0/B0"
SITE = """\
name: here
scheduler: slurm
node_classes: {gpu: {cpus: 32, gpus: 4}}
queues: {gpu: {node_class: gpu}}
"""
JOB = "name: x\ncommand: python3 train.py\n"


def findings(folder: Path, notify: str, *, local: bool = False, more: str = "") -> list[str]:
    (folder / "here.yaml").write_text(SITE)
    (folder / "job.yaml").write_text(f"{JOB}{more}notify: {notify}\n")
    try:
        prepared = prepare_job(folder / "job.yaml", site="local" if local else str(folder / "here.yaml"), anywhere=True)
        return [f"{one.code} {one.message}" for one in prepared.warnings]
    except Refused as refused:
        return [f"{one.code} {one.message} {one.hint}" for one in refused.findings]


def mail_options(folder: Path, notify: str, more: str = "") -> list[str]:
    assert findings(folder, notify, more=more) == []
    prepared = prepare_job(folder / "job.yaml", site=str(folder / "here.yaml"), anywhere=True)
    return [str(one) for one in prepared.plan.directives if one.option.startswith("mail")]


@pytest.mark.parametrize(
    "webhook",
    [
        ADDRESS,
        f"{{secret: '{ADDRESS}'}}",
        f"{{url: '{ADDRESS}'}}",
        f"['{ADDRESS}']",
        "{secret: 'a b'}",
        "{secret: hosts}",
    ],
)
def test_an_address_in_the_file_is_refused_and_not_repeated(tmp_path: Path, webhook: str) -> None:
    found = findings(tmp_path, f"{{webhook: {webhook}}}")
    assert found
    assert all("example.org" not in one for one in found)
    if "secret" in webhook or webhook == ADDRESS:
        assert [one[:5] for one in found] == ["HL551"]


@pytest.mark.parametrize(
    ("notify", "words"),
    [
        ("{mail: me@example.org}", []),
        ("{mail: me@example.org, events: [end, no_progress]}", ["no receiver gets `no_progress`"]),
        ("{events: [end]}", ["no receiver gets `end`"]),
        ("{webhook: HOOK}", []),
        ("{webhook: HOOK, events: [first_step]}", ["`first_step` needs `progress.step`"]),
    ],
)
def test_what_nobody_would_send(tmp_path: Path, notify: str, words: list[str]) -> None:
    assert findings(tmp_path, notify) == [f"HL552 {one}" for one in words]


def test_without_slurm_nobody_sends_mails(tmp_path: Path) -> None:
    assert findings(tmp_path, "{mail: me@example.org}", local=True, more="processes_per_node: 1\n") == [
        "HL552 site local has no Slurm to send mails"
    ]


def test_the_mail_options(tmp_path: Path) -> None:
    user = "--mail-user=me@example.org"
    assert mail_options(tmp_path, "{mail: me@example.org}") == [user, "--mail-type=BEGIN,END,FAIL"]
    assert mail_options(tmp_path, "{mail: me@example.org, events: [stop]}") == [user, "--mail-type=FAIL"]
    own = "sbatch: {mail-type: TIME_LIMIT}\n"
    assert mail_options(tmp_path, "{mail: me@example.org}", own) == [user, "--mail-type=TIME_LIMIT"]
    assert mail_options(tmp_path, "{webhook: HOOK}") == []
