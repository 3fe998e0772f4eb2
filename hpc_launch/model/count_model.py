"""Count the parameters of a model that our table of families does not describe: build it without its values.

PyTorch builds it on its meta device, in a process of its own with this interpreter: that imports Transformers, and with
`count_module` the user's code, which takes seconds. Code that comes with a configuration is never imported.
"""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.base.installed import ask_library
from hpc_launch.job.document import Document
from hpc_launch.job.model import LARGEST_SIZE, MOST_LAYERS
from hpc_launch.job.shell_text import visible
from hpc_launch.model.model_config import Experts, ModelConfig, ModelParameters
from hpc_launch.model.transformers_config import known_families

_SCRIPT = Path(__file__).parent / "library_scripts" / "count_parameters.py"
_NEEDED = ("layers", "hidden", "vocab", "heads")


class CountedModel(Struct, frozen=True):
    """What a built model consists of."""

    parameters: ModelParameters
    config: ModelConfig | None
    """Its sizes, if it has a `config` like the models of Transformers."""


class _Answer(Struct, frozen=True):
    counts: ModelParameters
    sizes: dict[str, int | bool]


def count_module(target: str, *, folder: str, place: Place | None = None) -> tuple[CountedModel | None, list[Finding]]:
    """Call `package.module:factory`, found from `folder`, and count the parameters of the model it returns.

    Runs the user's code: call it only if the user asks for this on the command line. HL680 with its last line if it
    fails.
    """
    module, colon, name = target.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        message = f"`{visible(target[:80])}` does not name a function"
        hint = "write `package.module:function`; it is called without arguments and returns a torch.nn.Module"
        return None, [Finding(FindingCode.UNKNOWN_MODEL, message, place, hint)]
    return _count(["module", target], "", folder, place, f"cannot build the model of `{target}`")


def count_config(document: Document) -> tuple[ModelConfig | None, list[Finding]]:
    """The model that Transformers builds from a configuration; HL680 if it is not installed or does not know it."""
    place = document.places.get(("model_type",), document.places[()])
    kind = document.data.get("model_type")
    if not isinstance(kind, str):
        return None, [Finding(FindingCode.MISSING_KEY, "`model_type` is missing", place, "add it")]
    families = ", ".join(known_families())
    hint = f"install Transformers and torch beside hpc-launch, or give its sizes; known without: {families}"
    unknown = f"the architecture `{visible(kind[:80])}` is not known"
    if find_spec("transformers") is None or find_spec("torch") is None:
        return None, [Finding(FindingCode.UNKNOWN_MODEL, unknown, place, hint)]
    for path, value in document.data.items():
        limit = MOST_LAYERS if "layers" in path else 100 * LARGEST_SIZE
        if isinstance(value, int) and abs(value) > limit:
            message = f"`{visible(path)}` is more than {limit}"
            return None, [Finding(FindingCode.INVALID_VALUE, message, document.places[(path,)], "correct the number")]
    data = {key: value for key, value in document.data.items() if key != "auto_map"}
    counted, findings = _count(["config"], json.dumps(data), os.sep, place, unknown)
    if counted is None:
        return None, findings
    if counted.config is None:
        message = f"{unknown} by its sizes: Transformers built it, but its configuration does not name them"
        return None, [Finding(FindingCode.UNKNOWN_MODEL, message, place, "give the sizes under `model:`")]
    return counted.config, []


def _count(
    words: list[str], text: str, folder: str, place: Place | None, failed: str
) -> tuple[CountedModel | None, list[Finding]]:
    done, reason = ask_library(_SCRIPT, words, text=text, folder=folder)
    if done is None:
        return None, [Finding(FindingCode.UNKNOWN_MODEL, f"{failed}: {reason}", place, "give its sizes instead")]
    try:
        if done.returncode:
            raise ValueError
        answer = msgspec.json.decode(done.stdout.splitlines()[-1], type=_Answer)
    except (ValueError, IndexError):
        reason = failure_reason(done.stderr) or f"exit code {done.returncode}, without a message"
        hint = "correct the error, or give the sizes under `model:`"
        return None, [Finding(FindingCode.UNKNOWN_MODEL, f"{failed}: {reason}", place, hint)]
    return CountedModel(answer.counts, _config(answer)), []


def failure_reason(output: str) -> str:
    """The exception of a traceback, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)(:|\Z)", line)]
    return visible((named or lines or [""])[-1][:200])


def _config(answer: _Answer) -> ModelConfig | None:
    sizes: dict[str, Any] = dict(answer.sizes)
    layers = len(answer.counts.layers)
    if (
        any(name not in sizes for name in _NEEDED)
        or sizes["layers"] != layers
        or min(sizes[name] for name in _NEEDED) < 1
    ):
        return None
    hidden, heads = sizes["hidden"], sizes["heads"]
    ffn = sizes.get("ffn", 4 * hidden)
    experts = None
    if sizes.get("experts") and answer.counts.experts:
        experts = Experts(
            count=sizes["experts"],
            per_token=min(sizes.get("per_token", 2), sizes["experts"]),
            ffn=sizes.get("expert_ffn", ffn),
            layers=tuple(index for index, layer in enumerate(answer.counts.layers) if layer.experts),
        )
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        vocab=sizes["vocab"],
        heads=heads,
        query_groups=sizes.get("query_groups", heads),
        head_dim=sizes.get("head_dim", max(hidden // heads, 1)),
        gated=bool(sizes["gated"]),
        tied=answer.counts.output == 0,
        experts=experts,
        sequence=sizes.get("sequence"),
        counted=answer.counts,
    )
