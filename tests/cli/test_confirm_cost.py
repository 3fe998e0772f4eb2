"""`submit` asks on a terminal before a job may use more GPU-hours than `confirm_gpu_hours`."""

from __future__ import annotations

from tests.view.home import Home

SITE = """\
name: mine
scheduler: slurm
node_classes: {gpu: {cpus: 1, gpus: 8}}
queues: {gpu: {partition: gpu, node_class: gpu}}
"""
JOB = "name: dear\ncommand: 'true'\nlauncher: none\nconfirm_gpu_hours: 10\ntime: 2:00:00\n"


def test_a_person_is_asked_before_an_expensive_job(home: Home) -> None:
    (home.path / "site.yaml").write_text(SITE)
    (home.path / "job.yaml").write_text(JOB)
    home.environment["PATH"] = "/nowhere"
    words = ("submit", "job.yaml", "--site", "site.yaml")
    code, said = home.answered(b"n\n", *words)
    assert (code, "8 GPUs for 02:00:00 may use 16 GPU-hours, more than 10" in said) == (3, True), said
    assert "submit it? [y/N]" in said
    assert "HL687" in said
    assert home.index.entries() == []
    for answer, more, asked in ((b"y\n", (), True), (b"", ("--yes",), False)):
        _, said = home.answered(answer, *words, *more)
        assert ("submit it?" in said, "HL687" in said) == (asked, False), said
        assert "Could not detect" in said, "it gets as far as Slurm, which is not in PATH"
