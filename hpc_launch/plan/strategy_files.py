"""The configuration that `strategy:` asks for, with the origin of every value: DeepSpeed's, or FSDP's.

Check a configuration file that the user wrote, by itself and against the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.document import KeyPath, Origin, rule
from hpc_launch.job.launcher import FullySharded, ZeroOptions
from hpc_launch.job.shell_text import Text, Var, join_parts, readable
from hpc_launch.plan.launch_plan import Entry
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.strategies import deepspeed_file, fsdp_file
from hpc_launch.plan.strategies.config_file import ConfigFile
from hpc_launch.plan.strategies.fsdp_file import precision

EXPLICIT = rule("written out, so that no release's default decides")
DERIVED = rule("global batch = micro batch × accumulation × replicas")

_BATCH = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})

_OTHER_KEYS: dict[str, KeyPath] = {
    "zero_stage": ("strategy", "name"),
    "bf16": ("precision",),
    "fp16": ("precision",),
    "mixed_precision": ("precision",),
    "reader": ("strategy", "for"),
}
"""The key of the job file for a field of a request whose name differs."""


def _key_of(field: str) -> KeyPath:
    """The key of the job file for a field of a request."""
    if field in FullySharded.__struct_fields__:
        return ("strategy", "fsdp", field)
    return _OTHER_KEYS.get(field, ("strategy", field))


def _places(filler: ValueFiller) -> Callable[[str], Place]:
    """The place in the job file of a field of a request."""
    return lambda field: filler.resolved.place(*_key_of(field)) or Place("strategy")


def zero(filler: ValueFiller, world_size: int) -> Text | None:
    """The DeepSpeed configuration; None with findings if the request is invalid."""
    job = filler.resolved.job
    asked = job.strategy
    nvme: Text = () if asked.nvme_path is None else filler.text(asked.nvme_path, ("strategy", "nvme_path"))
    same = {field: getattr(asked, field) for field in ZeroOptions.__struct_fields__}
    same["nvme_path"] = "".join(f"\0{part.name}\0" if isinstance(part, Var) else part for part in nvme) or None
    request = deepspeed_file.DeepSpeed(
        **same,
        zero_stage=asked.zero_stage,  # type: ignore[arg-type]
        bf16=job.precision == "bf16",
        fp16=job.precision == "fp16",
        world_size=world_size,
        model_parallel=job.parallel.model_parallel if job.parallel else 1,
        auto=asked.reader in {"trainer", "accelerate"},
    )
    text, findings = deepspeed_file.make(request, _places(filler), by_width=asked.reader == "trainer")
    filler.findings.extend(findings)
    if text is None:
        return None
    # No value of a job file has a NUL, which JSON escapes.
    parts = re.split(r"\\u0000(\w+)\\u0000", text)
    return join_parts([Var(part) if at % 2 else part for at, part in enumerate(parts)])


def sharded(filler: ValueFiller, nodes: int, world_size: int) -> tuple[fsdp_file.Fsdp, str] | None:
    """The request for an FSDP configuration and the file; None with findings if it is invalid."""
    job = filler.resolved.job
    asked = job.strategy
    sizes = {name: getattr(asked.fsdp, name) for name in asked.fsdp.__struct_fields__}
    request = fsdp_file.Fsdp(
        **sizes,
        mixed_precision=precision(job.precision),  # type: ignore[arg-type]
        reader="trainer" if asked.reader == "trainer" else "accelerate",
        nodes=nodes,
        world_size=world_size,
    )
    text, findings = fsdp_file.make(request, _places(filler))
    # HL628: FSDP_SHARDING_STRATEGY is missing from the environment; the script sets it.
    filler.findings.extend(found for found in findings if found.code != FindingCode.STRATEGY_WITHOUT_EFFECT)
    return None if text is None else (request, text)


def entries(filler: ValueFiller, written: Text) -> tuple[Entry, ...]:
    """Each value of a generated file, with the key of the job file that it comes from."""
    values = leaves(json.loads(readable(written)))
    return tuple(Entry(key, shown(value), origin_of(filler, key)) for key, value in values)


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf value, by its dotted path."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def shown(value: Any) -> str:
    """A value as written in the file."""
    return value if isinstance(value, str) else json.dumps(value)


def origin_of(filler: ValueFiller, key: str) -> Origin:
    """The origin of a value in a generated configuration, by its dotted path or Accelerate's name."""
    plain = key.removeprefix("fsdp_config.").removeprefix("fsdp_")
    field = deepspeed_file.FIELDS.get(key) or fsdp_file.FIELDS.get(plain)
    if key == "mixed_precision":
        field = key
    if field is not None and _key_of(field) in filler.resolved.merged.origins:
        return filler.resolved.origin(*_key_of(field))
    return DERIVED if key in _BATCH else EXPLICIT


class UserStrategyConfig(Struct, frozen=True):
    """The file named by `strategy.file`, as read when the job was prepared."""

    text: str
    located: ConfigFile

    @property
    def format(self) -> str | None:
        """The precision that a DeepSpeed file enables; None for full precision or `auto`."""
        blocks = {name: self.located.data.get(name) for name in ("bf16", "fp16")}
        on = (name for name, block in blocks.items() if isinstance(block, dict) and block.get("enabled") is True)
        return next(on, None)

    @property
    def script_text(self) -> str:
        """The text for the script; files with unprintable characters are rewritten with escapes."""
        text = self.text.replace("\r\n", "\n").replace("\r", "\n")
        if all(character.isprintable() or character in "\n\t" for character in text):
            return text if text.endswith("\n") else text + "\n"
        return json.dumps(self.located.data, indent=2) + "\n"


def check_user_config(filler: ValueFiller, user_config: UserStrategyConfig, world_size: int) -> None:
    """Add every finding about the file, and about its differences from the job."""
    job, file = filler.resolved.job, user_config.located
    strategy = job.strategy
    if strategy.zero_stage is not None:
        replicas = world_size // (job.parallel.model_parallel if job.parallel else 1)
        hugging_face = strategy.reader in {"trainer", "accelerate"}
        filler.findings.extend(deepspeed_file.check(file, replicas=max(replicas, 1), hugging_face=hugging_face))
        filler.findings.extend(_deepspeed(file, strategy.zero_stage, job.precision))
    elif strategy.reader in {"trainer", "accelerate"}:
        reader: Any = strategy.reader
        filler.findings.extend(fsdp_file.check(file, reader=reader))
        if reader == "accelerate":
            filler.findings.extend(_accelerate(file, job.precision))


def user_config_entries(user_config: UserStrategyConfig) -> tuple[Entry, ...]:
    """Each value of the file with its line."""
    file = user_config.located
    values = leaves(file.data)
    return tuple(Entry(key, shown(value), Origin("file", file.place(*key.split(".")))) for key, value in values)


def _deepspeed(file: ConfigFile, stage: int, asked: str | None) -> Iterator[Finding]:
    """The stage, and the precision, if the job sets one: DeepSpeed uses those in its file."""
    zero = file.data.get("zero_optimization")
    written = zero.get("stage", 0) if isinstance(zero, dict) else 0
    if written != stage:
        message = f"the file sets ZeRO stage {written}, but the job's strategy is `zero{stage}`"
        hint = f"write `stage: {stage}` under `zero_optimization`, or change the job"
        yield file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, ("zero_optimization", "stage"), hint)
    for name in ("bf16", "fp16") if asked is not None else ():
        block = file.data.get(name)
        written = block.get("enabled", False) if isinstance(block, dict) else False
        if written != "auto" and bool(written) != (asked == name):
            message = f"`{name}` is {'on' if written else 'off'} here, but the job's precision is {asked}"
            hint = f"set `{name}: {{enabled: {str(asked == name).lower()}}}`, or change `precision`"
            yield file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, (name, "enabled"), hint)


def _accelerate(file: ConfigFile, asked: str | None) -> Iterator[Finding]:
    written = precision(file.data.get("mixed_precision"))
    if asked is not None and written != precision(asked):
        message = f"`mixed_precision` is {written} here, and the job's precision is {asked}"
        yield file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, ("mixed_precision",), "make the two agree")
    kind = file.data.get("distributed_type")
    if kind not in (None, "FSDP"):
        message, hint = f"this file is for {kind}, and the job's strategy is `fsdp`", "write `distributed_type: FSDP`"
        yield file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, ("distributed_type",), hint)
