"""DeepSpeed files: each rule with a bad input, and the arithmetic of batches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.findings import Place
from hpc_launch.layouts.parallel_layout import Batch, settle
from hpc_launch.plan.strategies.config_file import parse
from hpc_launch.plan.strategies.deepspeed_file import DeepSpeed, check, make
from tests.strategies.conftest import Config

PLACES = [Place("train"), Place("micro"), Place("steps")]
NUMBERS = st.integers(1, 10_000)
MAYBE = st.none() | NUMBERS
GOOD = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
LISTED = {
    "": (*GOOD, "zero_optimization", "activation_checkpointing"),
    "zero_optimization": ("stage", "overlap_comm"),
    "activation_checkpointing": ("partition_activations",),
}
"""What an installed library lists."""


def found(text: str, **more: Any) -> list[tuple[str, str]]:
    """Code and place of each finding of a file called `f`."""
    located, findings = parse(text, "f", is_yaml=False)
    if located is not None:
        findings = check(located, **more)
    return [(finding.code, str(finding.place)) for finding in findings]


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        ("--zero-stage 3 --offload-param nvme", "HL613", "set the NVMe path"),
        ("--nvme-path /local", "HL613", "to nvme"),
        ("--zero-stage 2 --offload-optimizer nvme --nvme-path /local", "HL614", "use a higher stage"),
        ("--gradient-accumulation 4", "HL610", "set the micro batch or the global batch"),
        ("--global-batch 4 --world-size 8", "HL610", "use 8"),
        ("--global-batch 64 --micro-batch 2 --gradient-accumulation 2 --world-size 8", "HL610", "set it to 32"),
        ("--global-batch 10 --micro-batch 4", "HL610", "use 8 or 12"),
        ("--world-size 9 --model-parallel 2", "HL610", "change one of the two"),
    ],
)
def test_a_request_that_does_not_hold_together_is_refused(config: Config, options: str, code: str, hint: str) -> None:
    done = config("deepspeed", *options.split(), "-o", "ds.json")
    assert (done.code, done.out) == (3, "")
    assert code in done.err
    assert hint in done.err
    assert not Path("ds.json").exists()


@pytest.mark.parametrize(
    "options", ["--zero-stage 4", "--buckets 0", "--buckets 5.5", "--micro-batch x", "--gradient-clipping -1", "--nope"]
)
def test_an_option_that_is_none_is_a_usage_error(config: Config, options: str) -> None:
    assert config("deepspeed", *options.split()).code == 2


def test_all_faults_are_shown_at_once(config: Config) -> None:
    done = config(
        "deepspeed", "--bf16", "--fp16", "--offload-param", "nvme", "--global-batch", "5", "--world-size", "2"
    )
    assert done.codes == {"HL610", "HL611", "HL612", "HL613"}


def test_a_bare_offload_means_the_cpu_and_old_spellings_go(config: Config) -> None:
    new = config("deepspeed", "--zero-stage", "3", "--offload-optimizer", "cpu", "--offload-param=cpu", "--bf16")
    old = config("deepspeed", "--zero_stage", "3", "--offload_optimizer", "--offload_param", "--bf16")
    assert new == old
    zero = json.loads(new.out)["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"train_batch_size": 4,\n\t"bf16": 1}', ("HL604", "f:2:2")),
        ('{"train_batch_size": "4", "gradient_clipping": 0}', ("HL604", "f:1:2")),
        ('{"train_batch_size": 4, "gradient_clipping": 0, "zero_optimization": {"stage": 5}}', ("HL604", "f:1:71")),
        ('{"gradient_clipping": 0, "train_batch_size": "auto"}', ("HL605", "f:1:26")),
        ('{"train_batch_size" 4}', ("HL600", "f:1:21")),
        ('{"a": 1, "a": 2}', ("HL600", "f")),
        ("[1]", ("HL600", "f")),
        ("{" * 100_000, ("HL600", "f:1:2")),
        ("", ("HL600", "f:1:1")),
    ],
)
def test_a_fault_has_its_place(text: str, expected: tuple[str, str]) -> None:
    assert expected in found(text)


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        ({"zero_optimisation": {"stage": 3}}, "HL601", "did you mean `zero_optimization`?"),
        ({"train_micro_batch_size": 2}, "HL601", "did you mean `train_micro_batch_size_per_gpu`?"),
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "HL601", "did you mean `overlap_comm`?"),
        ({"activation_checkpointing": {"partition": True}}, "HL601", ""),
    ],
)
def test_the_names_that_an_installed_library_reads(data: dict[str, Any], code: str, word: str) -> None:
    located, _ = parse(json.dumps(GOOD | data), "f", is_yaml=False)
    assert located is not None
    assert [(one.code, word in (one.hint or "")) for one in check(located, keys=LISTED)] == [(code, True)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"bf16": {"enabled": "yes"}}, "HL604"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5.5}}, "HL604"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}}, "HL604"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "HL611"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "HL612"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "HL613"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "HL614"),
        ({"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2}, "HL610"),
        ({"train_micro_batch_size_per_gpu": 0}, "HL610"),
        ({"train_micro_batch_size_per_gpu": None}, "HL610"),
    ],
)
def test_each_rule_of_the_check(data: dict[str, Any], code: str) -> None:
    located, _ = parse(json.dumps(GOOD | data), "f", is_yaml=False)
    assert located is not None
    assert code in {finding.code for finding in check(located)}


def test_the_batch_is_checked_against_the_number_of_processes(tmp_path: Path, config: Config) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(GOOD | {"train_batch_size": 64, "gradient_accumulation_steps": 4}))
    assert config("deepspeed", "--check", str(path), "--world-size", "16").code == 0
    assert config("deepspeed", "--check", str(path), "--world-size", "32", "--model-parallel", "2").code == 0
    done = config("deepspeed", "--check", str(path), "--world-size", "8")
    assert (done.code, done.codes) == (3, {"HL610"})


@pytest.mark.parametrize("name", ["missing.json", "folder", "pipe"])
def test_a_file_that_cannot_be_read(tmp_path: Path, config: Config, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    done = config("deepspeed", "--check", name)
    assert (done.code, done.codes) == (3, {"HL600"})


@given(MAYBE, MAYBE, MAYBE, st.integers(1, 64) | st.none())
def test_a_batch_that_is_accepted_adds_up(
    train: int | None, micro: int | None, steps: int | None, replicas: int | None
) -> None:
    asked = Batch(train, micro, steps)
    batch, findings = settle(asked, replicas, PLACES)
    assert (batch is None) == bool(findings)
    if batch is None:
        assert {finding.code for finding in findings} == {"HL610"}
        return
    for wanted, got in ((train, batch.train), (micro, batch.micro), (steps, batch.accumulation)):
        assert wanted in {None, got}
    if replicas is not None:
        assert batch.train == (batch.micro or 0) * (batch.accumulation or 0) * replicas > 0


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 64))
def test_what_is_refused_tells_a_number_that_works(train: int, micro: int, replicas: int) -> None:
    _, findings = settle(Batch(train, micro, None), replicas, PLACES)
    for finding in findings:
        for word in (finding.hint or "").removeprefix("use ").split(" or "):
            assert settle(Batch(int(word), micro, None), replicas, PLACES)[1] == []


@given(
    st.builds(
        DeepSpeed,
        zero_stage=st.sampled_from([0, 1, 2, 3]),
        offload_optimizer=st.sampled_from(["none", "cpu", "nvme"]),
        offload_param=st.sampled_from(["none", "cpu", "nvme"]),
        nvme_path=st.sampled_from([None, "/nvme"]),
        bf16=st.booleans(),
        fp16=st.booleans(),
        micro_batch=st.none() | st.integers(1, 8),
        global_batch=st.none() | st.integers(1, 64),
        world_size=st.none() | st.integers(1, 8),
        auto=st.booleans(),
    )
)
def test_whatever_is_written_passes_our_own_check(asked: DeepSpeed) -> None:
    text, findings = make(asked, Place)
    assert (text is None) == any(finding.severity == "error" for finding in findings)
    if text is not None:
        assert found(text, hugging_face=asked.auto, replicas=asked.world_size) == []


def test_an_error_of_several_lines_is_shown_in_full(tmp_path: Path, config: Config) -> None:
    """As pydantic's, whose second line is only the key."""
    (tmp_path / "ds.json").write_text(json.dumps(GOOD))
    listed, error = json.dumps({"": [*GOOD]}), "x.ValidationError: 1 error\\nstage\\n  Input should be less than 4\\n"
    stand_in = f"#!/bin/sh\necho 'HPC-LAUNCH-KEYS {listed}'\nprintf 'Traceback\\n  z\\n{error}' >&2\nexit 1\n"
    (tmp_path / "python").write_text(stand_in)
    (tmp_path / "python").chmod(0o755)
    done = config("deepspeed", "--check", "ds.json", "--python", "./python", library=True)
    assert (done.code, done.codes) == (3, {"HL619"})
    assert "refuses the file: x.ValidationError: 1 error stage Input should be less than 4" in done.out


@pytest.mark.prove  # a word of the library itself: the test below
@pytest.mark.torch("deepspeed")
def test_the_library_lists_its_keys(tmp_path: Path, config: Config) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(GOOD | {"zero_optimisation": {"stage": 3}}))
    done = config("deepspeed", "--check", str(path), library=True)
    assert (done.code, done.codes) == (3, {"HL601"})
    assert "did you mean `zero_optimization`?" in done.out


@pytest.mark.torch("deepspeed")
def test_the_library_has_the_last_word(tmp_path: Path, config: Config) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(GOOD | {"elasticity": {}}))
    done = config("deepspeed", "--check", str(path), library=True)
    assert (done.code, done.codes) == (3, {"HL619"})
    assert "Elastic training has been removed" in done.out
