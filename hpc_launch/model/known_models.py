"""Models by name: known_models.yaml beside this file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from msgspec.structs import replace

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.document import Document
from hpc_launch.job.reader_messages import nearest
from hpc_launch.job.shell_text import visible
from hpc_launch.job.yaml_source import read_document
from hpc_launch.model.given_values import GivenValues
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.model.transformers_config import from_transformers

_FILE = Path(__file__).with_name("known_models.yaml")


def known_names() -> tuple[str, ...]:
    """Names of all models in the table."""
    return tuple(_table().data)


def known_model(name: str, place: Place | None) -> tuple[ModelConfig | None, list[Finding]]:
    """The model of this name. HL680 if there is none; `place` is where the name was written."""
    sizes = _table().data.get(name.lower())
    if sizes is None:
        closest = nearest(name, list(known_names()))
        hint = f"did you mean `{closest}`?" if closest else f"known are {', '.join(known_names())}."
        message = f"hpc-launch knows no model `{visible(name[:80])}`"
        hint = f"{hint} Otherwise name its config.json, such as ./config.json, or give its sizes"
        return None, [Finding(FindingCode.UNKNOWN_MODEL, message, place, hint)]
    model, _ = from_transformers(GivenValues(sizes, {}, None))
    return replace(model, name=name.lower()), []


@cache
def _table() -> Document:
    document, findings = read_document(_FILE)
    if document is None or findings:
        raise ValueError(findings)
    return document
