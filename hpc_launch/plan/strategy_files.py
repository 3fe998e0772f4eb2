"""The configuration that `strategy:` asks for, with the origin of every value: DeepSpeed's, or FSDP's.

Check a configuration file that the user wrote, by itself and against the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath, Origin, rule
from hpc_launch.job.shell_text import Text, Var, join_parts
from hpc_launch.job.strategy import Strategy
from hpc_launch.plan.launch_plan import Entry
from hpc_launch.plan.plan_draft import ValueFiller
from hpc_launch.plan.strategies import deepspeed_check, deepspeed_config, fsdp_check, fsdp_config
from hpc_launch.plan.strategies.config_file import ConfigFile
from hpc_launch.plan.strategies.deepspeed_config import DeepSpeed
from hpc_launch.plan.strategies.fsdp_config import precision

EXPLICIT = rule("written out, so that no release's default decides")
DERIVED = rule("global batch = micro batch × accumulation × replicas")

_ZERO_KEYS: dict[str, KeyPath] = {
    "train_batch_size": ("strategy", "global_batch"),
    "train_micro_batch_size_per_gpu": ("strategy", "micro_batch"),
    "gradient_accumulation_steps": ("strategy", "gradient_accumulation"),
    "gradient_clipping": ("strategy", "gradient_clipping"),
    "bf16.enabled": ("precision",),
    "fp16.enabled": ("precision",),
    "zero_optimization.stage": ("strategy", "name"),
    "zero_optimization.overlap_comm": ("strategy", "overlap"),
    "zero_optimization.reduce_bucket_size": ("strategy", "buckets"),
    "zero_optimization.allgather_bucket_size": ("strategy", "buckets"),
    "zero_optimization.offload_optimizer.device": ("strategy", "offload_optimizer"),
    "zero_optimization.offload_param.device": ("strategy", "offload_param"),
    "zero_optimization.offload_optimizer.nvme_path": ("strategy", "nvme_path"),
    "zero_optimization.offload_param.nvme_path": ("strategy", "nvme_path"),
}
"""The key of the job file behind a value of DeepSpeed's file."""

_BATCH = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})

_FSDP_KEYS = {
    "version": "version",
    "sharding_strategy": "sharding_strategy",
    "reshard_after_forward": "sharding_strategy",
    "auto_wrap_policy": "wrap_policy",
    "transformer_layer_cls_to_wrap": "wrap_class",
    "min_num_params": "min_params",
    "state_dict_type": "state_dict",
    "offload_params": "offload",
    "cpu_offload": "offload",
    "activation_checkpointing": "activation_checkpointing",
}

_OPTIONS: dict[str, KeyPath] = {
    "--train-batch": ("strategy", "global_batch"),
    **{
        f"--{key.replace('_', '-')}": ("strategy", key)
        for key in ("micro_batch", "gradient_accumulation", "offload_optimizer", "offload_param", "nvme_path")
    },
    **{f"--{key.replace('_', '-')}": ("strategy", "fsdp", key) for key in set(_FSDP_KEYS.values())},
}
"""The key of the job file for an option of `config`: the same rules hold for both."""

_HINT = re.compile(r"--([a-z-]+)(?: ([A-Z_]+|nvme|\d))?")


def zero(filler: ValueFiller, world_size: int) -> Text | None:
    """The DeepSpeed configuration; None with findings if the request is invalid."""
    job = filler.resolved.job
    asked, stage = job.strategy, job.strategy.zero_stage
    nvme: Text = () if asked.nvme_path is None else filler.text(asked.nvme_path, ("strategy", "nvme_path"))
    marked, marks = _marked(nvme)
    request = DeepSpeed(
        zero_stage=stage,  # type: ignore[arg-type]
        offload_optimizer=asked.offload_optimizer,
        offload_param=asked.offload_param,
        nvme_path=marked or None,
        bf16=job.precision == "bf16",
        fp16=job.precision == "fp16",
        gradient_clipping=asked.gradient_clipping,
        micro_batch=asked.micro_batch,
        gradient_accumulation=asked.gradient_accumulation,
        train_batch=asked.global_batch,
        world_size=world_size,
        model_parallel=job.parallel.model_parallel if job.parallel else 1,
        buckets=asked.buckets,
        overlap=asked.overlap,
        auto=asked.reader in {"trainer", "accelerate"},
    )
    text, findings = deepspeed_config.make(request)
    filler.findings.extend(_of_the_job(filler, found) for found in findings)
    if text is not None and asked.reader == "accelerate" and stage == 3:
        text = _without_width(text, request)
    return None if text is None else _unmarked(text, marks)


def sharded(filler: ValueFiller, nodes: int, world_size: int) -> fsdp_config.Fsdp | None:
    """The request for an FSDP configuration; None with findings if it is invalid."""
    job = filler.resolved.job
    asked = job.strategy
    sizes = {name: getattr(asked.fsdp, name) for name in asked.fsdp.__struct_fields__}
    request = fsdp_config.Fsdp(
        **sizes,
        mixed_precision=precision(job.precision),  # type: ignore[arg-type]
        reader="trainer" if asked.reader == "trainer" else "accelerate",
        num_machines=nodes,
        num_processes=world_size,
    )
    text, findings = fsdp_config.make(request)
    # HL628: FSDP_SHARDING_STRATEGY is missing from the environment; the script sets it.
    filler.findings.extend(
        _of_the_job(filler, found) for found in findings if found.code != FindingCode.STRATEGY_WITHOUT_EFFECT
    )
    return None if text is None else request


def entries(filler: ValueFiller, written: Text) -> tuple[Entry, ...]:
    """Each value of a generated file, with the key of the job file that it comes from."""
    text = "".join(f"${part.name}" if isinstance(part, Var) else part for part in written)
    return tuple(Entry(key, shown(value), origin_of(filler, key)) for key, value in leaves(json.loads(text)))


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
    bare = key.removeprefix("fsdp_config.").removeprefix("fsdp_")
    path = _ZERO_KEYS.get(key) or (("strategy", "fsdp", _FSDP_KEYS[bare]) if bare in _FSDP_KEYS else None)
    if key == "mixed_precision":
        path = ("precision",)
    if path and path in filler.resolved.merged.origins:
        return filler.resolved.origin(*path)
    return DERIVED if key in _BATCH else EXPLICIT


def _marked(text: Text) -> tuple[str, dict[str, Var]]:
    """The text with a unique placeholder, unchanged by JSON, in place of each variable."""
    plain = "".join(part for part in text if isinstance(part, str))
    marks = {}
    for part in text:
        if isinstance(part, Var):
            mark = f"<{part.name}>"
            while mark in plain:
                mark = f"<{mark}>"
            marks[mark] = part
    names = {var: mark for mark, var in marks.items()}
    return "".join(names[part] if isinstance(part, Var) else part for part in text), marks


def _unmarked(text: str, marks: dict[str, Var]) -> Text:
    if not marks:
        return (text,)
    pattern = "|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True))
    return join_parts([marks.get(part, part) for part in re.split(f"({pattern})", text)])


def _without_width(text: str, request: DeepSpeed) -> str:
    """Accelerate derives sizes from `model.config.hidden_size` and fails for models without it."""
    data = json.loads(text)
    plain = {
        "reduce_bucket_size": request.buckets,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 100_000,
    }
    data["zero_optimization"] |= plain
    return json.dumps(data, indent=2) + "\n"


def _of_the_job(filler: ValueFiller, found: Finding) -> Finding:
    """A finding about an option of `config`, reported at the key of the job file."""
    name = found.place.file if found.place else ""
    hint = found.hint and _HINT.sub(_key, found.hint)
    place = filler.resolved.place(*_OPTIONS.get(name, ("strategy",)))
    return Finding(found.code, found.message, place, hint, found.severity)


def _key(match: re.Match[str]) -> str:
    option, value = match.groups()
    if option == "zero-stage":
        return f"`name: zero{value}`"
    return f"`{option.replace('-', '_')}: {value}`" if value else f"`{option.replace('-', '_')}`"


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
