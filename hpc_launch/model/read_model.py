"""The model of a job: from `model:`, or from the arguments that Megatron gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.base.installed import read_shipped
from hpc_launch.job.document import Document
from hpc_launch.job.model import Model
from hpc_launch.job.shell_text import visible
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.yaml_source import read_document
from hpc_launch.model.megatron_options import from_megatron, given_arguments, given_in_file, shape_of_arguments
from hpc_launch.model.model_config import Experts, GivenValues, ModelConfig, parameters
from hpc_launch.model.transformers_config import FAMILIES, from_transformers
from hpc_launch.sites.resolved import Resolved


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
