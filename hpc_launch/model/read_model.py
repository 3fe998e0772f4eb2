"""The model of a job: from `model:`, from a Hugging Face `config.json`, or from the arguments that Megatron gets.

The families are those of transformers 5.23.0, `models/*/configuration_*.py` and `modeling_*.py`. A key that a file
leaves out has the default of its family there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.installed import read_shipped
from hpc_launch.job.document import Document
from hpc_launch.job.model import MOST_EXPERTS, MOST_LAYERS, Model, ModelLatent
from hpc_launch.job.shell_text import visible
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.yaml_source import read_document
from hpc_launch.model.megatron_options import from_megatron, given_arguments, given_in_file, shape_of_arguments
from hpc_launch.model.model_config import Experts, GivenValues, ModelConfig, ValueReader, parameters
from hpc_launch.sites.resolved import Resolved


class _Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the sizes of a family's configuration do not say."""

    gated: bool = True
    tied: bool = False
    """Unless `tie_word_embeddings` says otherwise."""
    qkv_bias: bool | None = None
    """None: if `attention_bias` says so."""
    biases: bool = False
    norm_bias: bool = False
    head_norms: bool = False
    head_dim: int | None = None
    """Unless `head_dim` says otherwise; None: hidden size / heads."""
    latent: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    learned_positions: bool = False
    experts: bool = False


FAMILIES: Mapping[str, _Family] = read_shipped(Path(__file__).with_name("families.yaml"), dict[str, _Family])
"""By `model_type`: the families whose sizes determine their parameters."""

_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_FFN = ("intermediate_size", "n_inner", "ffn_dim")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_POSITIONS = ("max_position_embeddings", "n_positions")


def from_transformers(given: GivenValues) -> tuple[ModelConfig, ValueReader]:
    """The model of a configuration of one of the families, to be used only if the reader has no findings."""
    reader = ValueReader(given)
    known = FAMILIES[given.values["model_type"]]
    hidden, heads = reader.size(*_HIDDEN), reader.size(*_HEADS)
    attention_bias = known.qkv_bias is None and reader.flag("attention_bias", default=False)
    longest = reader.size(*_POSITIONS, default=0, least=0)
    latent = _latent(reader) if known.latent else None
    model = ModelConfig(
        name=str(given.values.get("model_type", "")),
        layers=reader.size(*_LAYERS, most=MOST_LAYERS),
        hidden=hidden,
        ffn=reader.size(*_FFN, default=None if known.gated else 4 * hidden),
        vocab=reader.size("vocab_size"),
        heads=heads,
        query_groups=heads if latent else reader.size("num_key_value_heads", default=heads),
        head_dim=latent.nope_dim + latent.rope_dim if latent else _head_dim(reader, known, hidden, heads),
        gated=known.gated,
        tied=reader.flag("tie_word_embeddings", default=known.tied),
        latent=latent,
        positions=longest if known.learned_positions else 0,
        qkv_bias=attention_bias if known.qkv_bias is None else known.qkv_bias,
        biases=known.biases or (attention_bias and reader.flag("mlp_bias", default=False)),
        norm_bias=known.norm_bias,
        head_norms=known.head_norms,
        next_token_layers=reader.size("num_nextn_predict_layers", default=0, least=0),
        sequence=longest or None,
    )
    if known.experts and reader.name_of(*_EXPERTS):
        model = replace(model, experts=_experts(reader, known, model))
    return model, reader


def _head_dim(reader: ValueReader, known: _Family, hidden: int, heads: int) -> int:
    if not reader.findings and reader.name_of("head_dim") is None and known.head_dim is None and hidden % heads:
        message = f"`{_HIDDEN[0]}` = {hidden} is not divisible by {heads} heads"
        hint = "correct the numbers, or add `head_dim`"
        reader.report(FindingCode.INVALID_VALUE, message, reader.name_of(*_HEADS), hint)
    return reader.size("head_dim", default=known.head_dim or max(hidden // heads, 1))


def _latent(reader: ValueReader) -> ModelLatent:
    return ModelLatent(
        query_rank=reader.size("q_lora_rank", default=0, least=0) or None,
        key_value_rank=reader.size("kv_lora_rank"),
        nope_dim=reader.size("qk_nope_head_dim"),
        rope_dim=reader.size("qk_rope_head_dim"),
        value_dim=reader.size("v_head_dim"),
    )


def _experts(reader: ValueReader, known: _Family, model: ModelConfig) -> Experts:
    width = reader.size("moe_intermediate_size", default=model.ffn)
    shared = reader.size("n_shared_experts", default=0, least=0) * width
    every = reader.size("decoder_sparse_step", default=1)
    excluded = _excluded(reader, model.layers)
    return Experts(
        count=reader.size(*_EXPERTS, most=MOST_EXPERTS),
        per_token=reader.size("num_experts_per_tok", default=2, most=MOST_EXPERTS),
        ffn=width,
        shared_ffn=reader.size("shared_expert_intermediate_size", default=shared, least=0),
        shared_gate=known.shared_gate,
        dense_layers=reader.size("first_k_dense_replace", default=0, least=0),
        every=every,
        layers=tuple(at for at in range(model.layers) if at not in excluded and (at + 1) % every == 0)
        if excluded
        else None,
        router_bias=known.router_bias,
    )


def _excluded(reader: ValueReader, layers: int) -> frozenset[int]:
    """Layers that Qwen excludes from the mixture by their number."""
    value = reader.given.values.get("mlp_only_layers") or []
    if isinstance(value, list) and all(isinstance(index, int) and 0 <= index < layers for index in value):
        return frozenset(value)
    message = f"`mlp_only_layers` must be a list of numbers between 0 and {layers - 1}"
    reader.report(FindingCode.INVALID_VALUE, message, "mlp_only_layers", "correct the list")
    return frozenset()


def known_models() -> dict[str, dict[str, Any]]:
    """The table of models: the sizes of each, by name."""
    models: dict[str, dict[str, Any]] = read_shipped(Path(__file__).with_name("known_models.yaml"), dict)
    return models


def known_model(name: str, place: Place | None) -> tuple[ModelConfig | None, list[Finding]]:
    """The model of this name. HL680 if there is none; `place` is where the name was written."""
    sizes = known_models().get(name.lower())
    if sizes is None:
        closest = nearest(name, list(known_models()))
        hint = f"did you mean `{closest}`?" if closest else f"known are {', '.join(known_models())}."
        message = f"hpc-launch knows no model `{visible(name[:80])}`"
        hint = f"{hint} Otherwise name its config.json, such as ./config.json, or give its sizes"
        return None, [Finding(FindingCode.UNKNOWN_MODEL, message, place, hint)]
    model, _ = from_transformers(GivenValues(sizes, {}, None))
    return replace(model, name=name.lower()), []


MOST_PARAMETERS = 10**15
"""Above any model: 1000 times the largest published ones."""

Read = tuple[ModelConfig | None, list[Finding]]
"""A model, or None with findings if it cannot be read. Without both: none was given."""


def model_of_job(resolved: Resolved, *, config: str | None = None) -> Read:
    """The model that the job trains; `sequence` is the length that it trains with, if the job gives one.

    `config` is the path of `model.config`, with `${…}` filled in.
    HL001 to HL013 for what its files or the job give wrongly, HL680 for a model or an architecture that is not known.
    """
    job = resolved.job
    asked, place = job.model, resolved.place("model")
    if asked is None and (job.strategy.name != "megatron" or not _has_sizes(job.args)):
        return None, []
    base, findings = _base(resolved, asked or Model(), config, place)
    if findings:
        return None, findings
    model, findings = (base, []) if asked is None else _with_sizes(base, asked, place)
    if model is not None and asked is not None and asked.sequence is None and job.strategy.name == "megatron":
        model = replace(model, sequence=shape_of_arguments(job.args).seq_length or model.sequence)
    if model is not None:
        findings = findings + _check(model, place)
    return (None if findings else model), findings


def model_from_file(path: str, place: Place | None = None) -> Read:
    """The model of a Hugging Face `config.json` (or its folder), or of a Megatron or FlagScale YAML file.

    `place` is where the path was written.
    """
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.exists(file):
        message = f"`{file}` does not exist" if file == path else f"the folder `{path}` has no config.json"
        hint = "name a config.json, its folder or a Megatron YAML file; hpc-launch does not download models"
        return None, [Finding(FindingCode.UNREADABLE_FILE, message, place, hint)]
    document, findings = read_document(file)
    if document is None or findings:
        return None, findings
    if "model_type" in document.data or "architectures" in document.data:  # a config.json of Transformers
        if document.data.get("model_type") not in FAMILIES:
            return None, [_unknown_family(document)]
        places = {str(path[0]): place for path, place in document.places.items() if len(path) == 1}
        model, reader = from_transformers(GivenValues(document.data, places, document.places[()]))
    else:
        given = given_in_file(document)
        if "num_layers" not in given.values:
            message = "this is neither a config.json of Transformers nor a Megatron or FlagScale configuration"
            hint = "it needs `model_type`, or `num_layers` and the other sizes; of FlagScale name the file under train/"
            return None, [Finding(FindingCode.MISSING_KEY, message, Place(file), hint)]
        model, reader = from_megatron(given)
    if not reader.findings:
        reader.findings += _check(model, document.places[()], reader.given.places)
    return (None if reader.findings else model), reader.findings


def _unknown_family(document: Document) -> Finding:
    kind, place = document.data.get("model_type"), document.places.get(("model_type",), document.places[()])
    if not isinstance(kind, str):
        return Finding(FindingCode.MISSING_KEY, "`model_type` is missing", place, "add it")
    hint = f"give its sizes under `model:`, as far as they describe it; known are: {', '.join(FAMILIES)}"
    return Finding(FindingCode.UNKNOWN_MODEL, f"the architecture `{visible(kind[:80])}` is not known", place, hint)


def _has_sizes(args: Any) -> bool:
    return "num_layers" in given_arguments(args, {}).values


def _base(resolved: Resolved, asked: Model, config: str | None, place: Place | None) -> Read:
    """The model before the job's own sizes replace some of its sizes."""
    if asked.name is not None and asked.config is not None:
        hint = "remove one of the two"
        return None, [Finding(FindingCode.INVALID_VALUE, "`model` has both `name` and `config`", place, hint)]
    if asked.name is not None:
        return known_model(asked.name, resolved.place("model", "name"))
    if asked.config is not None:
        path = config or os.path.join(resolved.job_folder, os.path.expanduser(asked.config))
        return model_from_file(path, resolved.place("model", "config"))
    if resolved.job.strategy.name == "megatron" and _has_sizes(resolved.job.args):
        model, reader = from_megatron(given_arguments(resolved.job.args, resolved.merged.places))
        return (None if reader.findings else model), reader.findings
    return None, []


def _with_sizes(base: ModelConfig | None, asked: Model, place: Place | None) -> Read:
    given = {
        name: value for name, value in asdict(asked).items() if value is not None and name not in {"name", "config"}
    }
    if asked.experts is not None:
        given["experts"] = Experts(**asdict(asked.experts))
    if base is not None:
        return replace(base, **given), []
    gated = given.setdefault("gated", True)
    needed = ["layers", "hidden", "heads", "vocab", *(["ffn"] if gated and asked.experts is None else [])]
    missing = [name for name in needed if name not in given]
    if missing:
        message = f"`model` does not say `{'`, `'.join(missing)}`"
        hint = "add each, or `name` for a known model, or `config` for a config.json"
        return None, [Finding(FindingCode.MISSING_KEY, message, place, hint)]
    given.setdefault("tied", False)
    given.setdefault("ffn", given["experts"].ffn if asked.experts else 4 * given["hidden"])
    given.setdefault("query_groups", given["heads"])
    given.setdefault("head_dim", max(given["hidden"] // given["heads"], 1))
    if given.get("biases"):
        given["qkv_bias"] = True
    return ModelConfig(**given), []


def _check(model: ModelConfig, whole: Place | None, places: Mapping[str, Place] = {}) -> list[Finding]:
    """What is wrong with the sizes together. `places` are those of a file's keys."""
    findings: list[Finding] = []

    def fault(message: str, hint: str, *keys: str) -> None:
        place = next((places[key] for key in keys if key in places), whole)
        findings.append(Finding(FindingCode.INVALID_VALUE, message, place, hint))

    if model.heads % model.query_groups:
        message = f"{model.heads} heads are not divisible by {model.query_groups} query groups"
        fault(message, "use a divisor of the heads", "num_key_value_heads", "num_query_groups")
    if model.experts and model.experts.per_token > model.experts.count:
        message = f"each token is sent to {model.experts.per_token} experts, but there are {model.experts.count}"
        fault(message, "correct one of the two", "num_experts_per_tok", "moe_router_topk")
    total = parameters(model).total
    if total > MOST_PARAMETERS:
        fault(f"the model would have {total:.0e} parameters", "correct its sizes")
    return findings
