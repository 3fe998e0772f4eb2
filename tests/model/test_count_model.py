"""Models that only a built one can describe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_launch.model.count_model import count_module
from hpc_launch.model.model_config import GivenValues, parameters
from hpc_launch.model.read_model import model_from_file
from hpc_launch.model.transformers_config import from_transformers, known_families

_FACTORY = """\
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.Linear(8, 8)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(4))
        self.norm = torch.nn.LayerNorm(8)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.lm_head = torch.nn.Linear(8, 100, bias=False)
"""


@pytest.mark.torch("transformers")
@pytest.mark.slow
def test_transformers_counts_what_the_table_counts(tmp_path: Path) -> None:
    """An architecture outside the table: OLMo 2 7B, 7.30B parameters (huggingface.co/allenai/OLMo-2-1124-7B)."""
    config = {"model_type": "olmo2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    config |= {"intermediate_size": 11008, "vocab_size": 100352, "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, findings = model_from_file(str(tmp_path))
    assert not findings
    assert model is not None
    assert parameters(model).total == 7_298_617_344
    assert (model.layers, model.gated, model.tied, model.ffn) == (32, True, False, 11008)
    assert parameters(model).layers[0].attention == 4 * 4096 * 4096


@pytest.mark.torch
@pytest.mark.slow
def test_a_module_of_the_user_is_counted(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_FACTORY)
    counted, findings = count_module("mine:Model", folder=str(tmp_path))
    assert not findings
    assert counted is not None
    assert counted.config is None
    assert (counted.parameters.embedding, counted.parameters.output) == (800, 800)
    assert [layer.attention for layer in counted.parameters.layers] == [72] * 3
    assert [(layer.experts, layer.norms) for layer in counted.parameters.layers] == [(4 * 36, 16)] * 3


def test_a_module_that_cannot_be_imported_is_named_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import sys\n\nraise OSError('no such disk')\n")
    for target, last in (
        ("nowhere:Model", "ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:Model", "OSError: no such disk"),
        ("json:Model", "AttributeError: module 'json' has no attribute 'Model'"),
    ):
        counted, (found,) = count_module(target, folder=str(tmp_path))
        assert counted is None
        assert str(found) == f"HL680 cannot build the model of `{target}`: {last}"


@pytest.mark.parametrize("target", ["", "mine", "mine:", ":x", "mine:x;y", "../mine:x", "a b:c"])
def test_what_names_no_function_is_refused(tmp_path: Path, target: str) -> None:
    counted, (found,) = count_module(target, folder=str(tmp_path))
    assert counted is None
    assert "does not name a function" in found.message


@pytest.mark.torch("transformers")
@pytest.mark.prove
@pytest.mark.parametrize("family", [name for name in known_families() if name != "kimi_k2"])
def test_the_table_agrees_with_transformers(family: str) -> None:
    """Each family with its default sizes, built on the meta device. Kimi K2's code comes with its files."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    model, reader = from_transformers(GivenValues(config.to_dict(), {}, None))
    assert not reader.findings
    correction = sum(bias.numel() for name, bias in built.named_buffers() if name.endswith("e_score_correction_bias"))
    assert parameters(model).total == sum(parameter.numel() for parameter in built.parameters()) + correction
