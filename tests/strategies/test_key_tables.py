"""The tables of the libraries' keys: against the installed libraries, and against what our notes add."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpc_launch.plan.strategies.deepspeed_keys import changed_defaults, key_tables
from hpc_launch.plan.strategies.fsdp_keys import accelerate_file, fsdp_keys
from hpc_launch.plan.strategies.key_tables import FOLDER, LIBRARIES, Library, LibraryKeys, read_notes, shipped_keys
from hpc_launch.plan.strategies.library_query import installed_keys, installed_release, list_keys
from hpc_launch.plan.strategies.regenerate_key_tables import text_of
from tests.strategies.conftest import Config

DEEPSPEED = shipped_keys("deepspeed")


@pytest.mark.parametrize("library", [pytest.param(name, marks=pytest.mark.torch(name)) for name in LIBRARIES])
def test_a_table_is_what_the_installed_library_lists(library: Library) -> None:
    release = installed_release(library)
    if release != shipped_keys(library).release:
        pytest.skip(f"the table is of {library} {shipped_keys(library).release}; {release or 'none'} is installed")
    keys = list_keys(library)
    assert keys is not None
    assert text_of(keys) == (FOLDER / f"{library}.json").read_text(encoding="utf-8"), "make key-tables"


def test_every_note_is_about_a_key_of_the_table() -> None:
    """Notes left behind by a new release would otherwise go unnoticed."""
    for mapping, note in read_notes("deepspeed")["mappings"].items():
        known = DEEPSPEED.mappings[mapping]
        assert set(note.get("deprecated", {})) <= set(known)
        assert set(note.get("removed", {})) == set(DEEPSPEED.removed.get(mapping, ()))
        assert {key for key in note.get("kinds", {}) if key not in known} <= {"sequence_parallel_size"}
        assert set(DEEPSPEED.mappings) == set(read_notes("deepspeed")["mappings"])
    tables = key_tables(DEEPSPEED)
    assert all(path[-1] in tables[path[:-1]].keys for path in changed_defaults())
    known_to_either = {*fsdp_keys("accelerate"), *fsdp_keys("trainer")}
    notes = read_notes("fsdp")
    assert set(notes["versions"]) <= known_to_either
    assert set(notes["kinds"]["transformers"]) <= set(shipped_keys("transformers").mappings["top_level"])
    assert "fp16" in accelerate_file().keys


@pytest.mark.parametrize("mapping", ["top_level", "zero_optimization", "fp16"])
def test_the_type_of_almost_every_key_is_known(mapping: str) -> None:
    """A key whose type no default tells needs a line under `kinds`; `checkpoint` and the like have one."""
    path = () if mapping == "top_level" else (mapping,)
    assert [key for key, kind in key_tables(DEEPSPEED)[path].keys.items() if kind == "any"] == []


def test_a_key_that_an_older_release_reads_is_not_removed() -> None:
    older = LibraryKeys("0.17.0", {**DEEPSPEED.mappings, "top_level": {"elasticity": "object"}})
    table = key_tables(older)[()]
    assert "elasticity" in table.keys
    assert "elasticity" not in table.removed
    assert "amp" in table.removed


def _fake_library(folder: Path, release: str) -> Path:
    """A Python that has only a DeepSpeed of another release, which reads one key more."""
    listed = {"release": release, "mappings": {**DEEPSPEED.mappings, "bf16": {"enabled": "bool", "brand_new": "bool"}}}
    python = folder / "python"
    python.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"print({release!r} if '-c' in sys.argv else {json.dumps(listed)!r} if 'list' in sys.argv[-1] else '')\n"
    )
    python.chmod(0o755)
    return python


def test_the_keys_of_another_installed_release_count(config: Config, tmp_path: Path) -> None:
    python = _fake_library(tmp_path, "0.99.0")
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 8, "gradient_clipping": 1.0, '
        '"bf16": {"enabled": true, "check_grad_overflow": true, "brand_new": true}}'
    )
    check = ("deepspeed", "--check", "ds.json")
    assert "unknown key `brand_new`" in config(*check).out
    done = config(*check, "--python", str(python), library=True)
    assert "unknown key `brand_new`" not in done.out
    assert "unknown key `check_grad_overflow`" in done.out


def test_the_shipped_table_counts_where_the_library_cannot_be_asked() -> None:
    assert installed_keys("deepspeed", python="/nowhere/python") is DEEPSPEED
    assert installed_release("deepspeed", python="/nowhere/python") is None
    assert list_keys("deepspeed", python="/bin/false") is None
