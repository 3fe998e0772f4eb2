"""Check a configuration file that the user wrote, by itself and against the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import Origin
from hpc_launch.job.strategy import Strategy
from hpc_launch.plan.launch_plan import Entry
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.strategies import deepspeed_check, fsdp_check
from hpc_launch.plan.strategies.config_file import ConfigFile
from hpc_launch.plan.strategies.fsdp_config import precision
from hpc_launch.plan.strategy_files import leaves, shown

_ZERO_MARKS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})
_FSDP_MARKS = frozenset(
    {"fsdp_config", "distributed_type", "auto_wrap_policy", "reshard_after_forward", "fsdp_version"}
)


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
    other = _of_another_kind(file, strategy)
    if other is not None:
        filler.findings.append(other)
    elif strategy.zero_stage is not None:
        replicas = world_size // (job.parallel.model_parallel if job.parallel else 1)
        hugging_face = strategy.reader in {"trainer", "accelerate"}
        filler.findings.extend(deepspeed_check.check(file, replicas=max(replicas, 1), hugging_face=hugging_face))
        filler.findings.extend(_deepspeed(file, strategy.zero_stage, job.precision))
    elif strategy.reader in {"trainer", "accelerate"}:
        reader: Any = strategy.reader
        filler.findings.extend(fsdp_check.check(file, reader=reader))
        if reader == "accelerate":
            filler.findings.extend(_accelerate(file, job.precision, world_size, job.max_nodes))


def user_config_entries(user_config: UserStrategyConfig) -> tuple[Entry, ...]:
    """Each value of the file with its line."""
    file = user_config.located
    return tuple(
        Entry(key, shown(value), Origin("file", file.place(*key.split(".")))) for key, value in leaves(file.data)
    )


def _of_another_kind(file: ConfigFile, strategy: Strategy) -> Finding | None:
    """A finding for a DeepSpeed file where FSDP is configured, or the reverse."""
    is_zero = strategy.zero_stage is not None
    marks = sorted(file.data.keys() & (_FSDP_MARKS if is_zero else _ZERO_MARKS))
    if not marks:
        return None
    kind = "FSDP" if is_zero else "DeepSpeed"
    message = f"this is a configuration for {kind}, but the job's strategy is `{strategy.name}`"
    hint = "name the matching file, or change `strategy.name`"
    return file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, (marks[0],), hint)


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


def _accelerate(file: ConfigFile, asked: str | None, world_size: int, nodes: int) -> Iterator[Finding]:
    written = precision(file.data.get("mixed_precision"))
    if asked is not None and written != precision(asked):
        message = f"`mixed_precision` is {written} here, and the job's precision is {asked}"
        yield file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, ("mixed_precision",), "make the two agree")
    kind = file.data.get("distributed_type")
    if kind not in (None, "FSDP"):
        message, hint = f"this file is for {kind}, and the job's strategy is `fsdp`", "write `distributed_type: FSDP`"
        yield file.finding(FindingCode.CONFIG_CONTRADICTS_JOB, message, ("distributed_type",), hint)
    for key, here in (("num_processes", world_size), ("num_machines", nodes)):
        if file.data.get(key, here) != here:
            message = f"`{key}: {file.data[key]}` does not count: the job has {here}"
            hint = "the job's own launcher starts the processes"
            yield file.finding(FindingCode.PROCESS_COUNT_IGNORED, message, (key,), hint, "warning")
