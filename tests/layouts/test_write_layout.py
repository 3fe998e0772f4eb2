"""Write a layout into a job file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_launch.base.errors import UserError
from hpc_launch.job.parallel import Parallel
from hpc_launch.job.yaml_source import parse_document
from hpc_launch.layouts.write_layout import Edit, layout_edit, with_edits


def with_layout(text: str, parallel: Parallel) -> str:
    return with_edits(text, [layout_edit(parallel)])


LAYOUT = Parallel(tp=8, pp=4, sequence_parallel=True, micro_batch=2, global_batch=512)


def test_block_keeps_comments() -> None:
    text = """# my job
name: run   # a name
parallel:
  # inside a node
  tp: 2     # was 4
  pp: 1
  cp: 2     # long sequences

program: train.py
"""
    assert (
        with_layout(text, LAYOUT)
        == """# my job
name: run   # a name
parallel:
  # inside a node
  tp: 8     # was 4
  pp: 4
  cp: 1     # long sequences
  sequence_parallel: true
  micro_batch: 2
  global_batch: 512

program: train.py
"""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a", "name: a\nparallel:\n  tp: 2\n  pp: 1\n"),
        ("name: a  # b\n", "name: a  # b\nparallel:\n  tp: 2\n  pp: 1\n"),
        ("parallel: {tp: 4, vpp: 2} # x\nname: a\n", "parallel: {tp: 2, vpp: null, pp: 1} # x\nname: a\n"),
        ("parallel: {}  # x\n", "parallel: {tp: 2, pp: 1}  # x\n"),
        ("parallel:   # none yet\nname: a\n", "parallel: {tp: 2, pp: 1}   # none yet\nname: a\n"),
        ("parallel: null\n", "parallel: {tp: 2, pp: 1}\n"),
        ("parallel:\n    tp: 1", "parallel:\n    tp: 2\n    pp: 1"),
        ("x: &n 4\nparallel:\n  tp: *n\n  pp: 1\n", "x: &n 4\nparallel:\n  tp: 2\n  pp: 1\n"),
        ("'parallel':\n  'tp': '4'\n  pp:\n", "'parallel':\n  'tp': 2\n  pp: 1\n"),
        ("name: ä€😀\nparallel: {tp: 1, pp: 1}\n", "name: ä€😀\nparallel: {tp: 2, pp: 1}\n"),
        ("name: a\r\nparallel:\r\n  tp: 1\r\n  pp: 1\r\n", "name: a\r\nparallel:\r\n  tp: 2\r\n  pp: 1\r\n"),
    ],
)
def test_forms(text: str, expected: str) -> None:
    assert with_layout(text, Parallel(tp=2)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: a}", "its keys are in braces"),
        ("base: &b {tp: 1}\nparallel: *b\n", "defined elsewhere"),
        ("parallel: &b {tp: 1, pp: 1}\nother: *b\n", "without changing the rest"),
        ("parallel: [1]\n", "defined elsewhere"),
        ("b: &b {ep: 4}\nparallel:\n  <<: *b\n  tp: 1\n  pp: 1\n", "without changing the rest"),
        ("name: a\n...\n", "without changing the rest"),
        ("name: [\n", "cannot edit job.yaml"),
        ("", "cannot edit job.yaml"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_layout(text, Parallel(tp=2))


_KEYS = st.dictionaries(st.sampled_from(["tp", "pp", "cp", "ep", "micro_batch"]), st.integers(1, 64))


_LAYOUTS = st.builds(
    Parallel,
    tp=st.integers(1, 8),
    pp=st.integers(1, 8),
    vpp=st.sampled_from([None, 2, 4]),
    distributed_optimizer=st.booleans(),
)


@given(_KEYS, st.booleans(), _LAYOUTS)
def test_any_layout(keys: dict[str, int], flow: bool, wanted: Parallel) -> None:
    """The written layout is read back; the lines around it stay."""
    if flow:
        block = "{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}"
    else:
        block = "".join(f"\n  # about {key}\n  {key}: {value}   # {value}" for key, value in keys.items())
    text = f"# head\nname: a # b\nparallel: {block}\n# after\nlaunch:\n  x: 1\n"
    result = with_layout(text, wanted)
    document, findings = parse_document(result, "job.yaml")
    assert document is not None
    assert not findings
    assert document.data["launch"] == {"x": 1}
    assert [line for line in text.splitlines() if line.lstrip().startswith("#")] == [
        line for line in result.splitlines() if line.lstrip().startswith("#")
    ]
    assert with_layout(result, wanted) == result


STRATEGY = Edit(("strategy",), {"name": "zero3", "micro_batch": 2}, {"offload_param": "none"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strategy: zero1  # guessed\n", "strategy: {name: zero3, micro_batch: 2}  # guessed\n"),
        (
            "strategy:\n  name: zero1   # guessed\n  fsdp:\n    version: 1\nname: a\n",
            "strategy:\n  name: zero3   # guessed\n  micro_batch: 2\n  fsdp:\n    version: 1\nname: a\n",
        ),
        (
            "strategy: {fsdp: {version: 1}, offload_param: cpu, overlap: true}\n",
            "strategy: {fsdp: {version: 1}, offload_param: none, overlap: true, name: zero3, micro_batch: 2}\n",
        ),
        (
            "strategy:\n  # nested\n  fsdp:\n    version: 1\n",
            "strategy:\n  # nested\n  name: zero3\n  micro_batch: 2\n  fsdp:\n    version: 1\n",
        ),
        ("strategy: {fsdp: {version: 1}}\n", "strategy: {name: zero3, micro_batch: 2, fsdp: {version: 1}}\n"),
    ],
)
def test_other_blocks(text: str, expected: str) -> None:
    assert with_edits(text, [STRATEGY]) == expected


def test_a_block_inside_another() -> None:
    inside = Edit(("strategy", "fsdp"), {"version": 1, "activation_checkpointing": True})
    text = "strategy:\n  name: fsdp\n  fsdp: {version: 2}  # new\n"
    expected = "strategy:\n  name: fsdp\n  fsdp: {version: 1, activation_checkpointing: true}  # new\n"
    assert with_edits(text, [inside]) == expected
    with pytest.raises(UserError, match=r"has no `strategy\.fsdp:`"):
        with_edits("strategy:\n  name: fsdp\n", [inside])
    assert with_edits("strategy: {name: fsdp}\n", [Edit(("strategy",), {"fsdp": inside.values})]) == (
        "strategy: {name: fsdp, fsdp: {version: 1, activation_checkpointing: true}}\n"
    )
