"""What is wrong with an FSDP configuration that somebody wrote, for Accelerate or for the Transformers Trainer."""

from __future__ import annotations

from typing import Any, Literal

from hpc_launch.base.findings import Finding
from hpc_launch.plan.strategies.fsdp_keys import (
    ACCELERATE,
    ACCELERATE_FILE,
    DROPPED,
    GENERATION,
    STRATEGIES,
    TRAINER,
    Key,
)
from hpc_launch.plan.strategies.keys import check_keys, fits
from hpc_launch.plan.strategies.text import Located
from hpc_launch.spec.merge import Path
from hpc_launch.spec.reader_messages import nearest

Reader = Literal["accelerate", "trainer"]


def reader_of(file: Located) -> Reader:
    """Who a file is for: Accelerate's has the FSDP keys in a mapping of their own."""
    return "accelerate" if {"fsdp_config", "distributed_type", "compute_environment"} & file.data.keys() else "trainer"


def check(file: Located, *, reader: Reader | None = None) -> list[Finding]:
    """All findings of a file, in its order."""
    reader = reader or reader_of(file)
    findings = []
    path: Path = ()
    if reader == "accelerate":
        path = ("fsdp_config",)
        findings += check_keys(file, (), ACCELERATE_FILE)
        if "distributed_type" not in file.data:
            message = "Accelerate refuses a file without `distributed_type`"
            findings.append(Finding("HL604", message, file.place(), "add `distributed_type: FSDP`"))
        if not isinstance(file.data.get("fsdp_config"), dict):
            message = "there is no mapping `fsdp_config`"
            findings.append(Finding("HL604", message, file.place("fsdp_config"), "put the FSDP keys there"))
            return findings
        precision = file.data.get("mixed_precision")
        if precision not in (None, "no", "fp16", "bf16", "fp8", False):
            message, hint = f"there is no mixed precision `{precision}`", "bf16, fp16, fp8 or 'no'"
            findings.append(Finding("HL604", message, file.place("mixed_precision"), hint))
    findings += _Fsdp(file, path, reader).findings
    return sorted(findings, key=lambda found: (found.place and found.place.line) or 0)


class _Fsdp:
    """The findings of one mapping of FSDP keys."""

    def __init__(self, file: Located, path: Path, reader: Reader) -> None:
        self.file, self.path, self.reader = file, path, reader
        mapping: Any = file.data
        for key in path:
            mapping = mapping[key]
        self.known = ACCELERATE if reader == "accelerate" else TRAINER
        self.values = {self._plain(str(key)): value for key, value in mapping.items()}
        self.written = {self._plain(str(key)): str(key) for key in mapping}
        self.findings: list[Finding] = []
        self.version = self._version()
        for name, value in self.values.items():
            self._key(name, value)
        self._together()

    def _plain(self, key: str) -> str:
        """A key without its prefix: both readers take it with and without (the Trainer strips, Accelerate adds)."""
        return key.removeprefix("fsdp_")

    def _table(self, name: str) -> Key | None:
        return self.known.get(f"fsdp_{name}" if self.reader == "accelerate" else name)

    def _note(self, code: str, message: str, name: str, hint: str | None, *, warning: bool = False) -> None:
        place = self.file.place(*self.path, self.written.get(name, name))
        self.findings.append(Finding(code, message, place, hint, "warning" if warning else "error"))

    def _version(self) -> int:
        default = 1 if self.reader == "accelerate" else 2
        value = self.values.get("version", default)
        if str(value) in {"1", "2"}:
            return int(value)
        self._note("HL604", f"there is no FSDP version {value!r}", "version", "1 or 2")
        return default

    def _key(self, name: str, value: Any) -> None:
        key, written = self._table(name), self.written[name]
        who = "Accelerate" if self.reader == "accelerate" else "the Trainer"
        if key is None:
            near = nearest(name, [known.removeprefix("fsdp_") for known in self.known])
            hint = DROPPED.get(name) or (f"did you mean `{near}`?" if near else "leave it out")
            self._note("HL620", f"`{written}` is dropped in silence: {who} knows no such key", name, hint)
        elif self.version not in key.versions:
            other = key.versions[0]
            self._note(
                "HL621", f"`{written}` is of FSDP {other}, and this is FSDP {self.version}", name, GENERATION[name]
            )
        elif name == "reshard_after_forward":
            self._reshard(value)
        elif name == "transformer_layer_cls_to_wrap":
            self._classes(value)
        elif name != "version":
            self._value(name, value, key)

    def _value(self, name: str, value: Any, key: Key) -> None:
        words = key.words
        if key.kind == "bool" and isinstance(value, str) and value.lower() in {"true", "false"}:
            return  # both readers take the word for the value
        if key.kind == "int" and not isinstance(value, int | None):
            hint = "write the number in digits: 100000000"
            self._note("HL604", f"`{self.written[name]}` has to be a whole number, not {value!r}", name, hint)
        elif not fits(value, key.kind):
            what = "true or false" if key.kind == "bool" else "a text" if key.kind == "text" else "a mapping"
            self._note("HL604", f"`{self.written[name]}` has to be {what}, not {value!r}", name, None)
        elif words and value is not None and str(value).upper() not in words:
            self._note("HL604", f"`{self.written[name]}` cannot be {value!r}", name, f"one of {', '.join(words)}")

    def _reshard(self, value: Any) -> None:
        written = self.written["reshard_after_forward"]
        word = str(value).lower()
        if self.version == 2 and word not in {"true", "false"}:
            message = f"`{written}` has to be true or false with FSDP 2, not {value!r}"
            self._note("HL621", message, "reshard_after_forward", "FULL_SHARD is true, SHARD_GRAD_OP is false")
        elif self.version == 1 and word.upper() not in STRATEGIES:
            message = f"`{written}` has to name a strategy with FSDP 1, not {value!r}"
            self._note("HL621", message, "reshard_after_forward", f"one of {', '.join(STRATEGIES)}")
        elif self.version == 1 and word != "full_shard":
            message = f"`{written}: {value}` has no effect: with FSDP 1 Accelerate prefers the sharding strategy"
            by_file = self.reader == "accelerate"
            hint = (
                "use `fsdp_sharding_strategy`" if by_file else f"set FSDP_SHARDING_STRATEGY={word.upper()} in the job"
            )
            self._note("HL628", message, "reshard_after_forward", hint, warning=True)

    def _classes(self, value: Any) -> None:
        name = "transformer_layer_cls_to_wrap"
        items = value if isinstance(value, list) else str(value).split(",")
        if self.reader == "accelerate" and isinstance(value, list):
            message = f"`{self.written[name]}` has to be a text for Accelerate: a list becomes its own spelling"
            self._note("HL604", message, name, f"write {','.join(map(str, value))}")
        elif not all(isinstance(item, str) and item.strip().isidentifier() for item in items):
            self._note(
                "HL604", f"`{self.written[name]}` has to hold names of classes", name, "such as LlamaDecoderLayer"
            )
        elif len(items) > 1:
            message = f"training ends with an error unless the model has each of {', '.join(items)}"
            hint = "name the classes of your model alone; without any, the model's own _no_split_modules count"
            self._note("HL623", message, name, hint, warning=True)

    def _together(self) -> None:
        values = self.values
        if self.version == 2 and str(values.get("state_dict_type")).upper() == "LOCAL_STATE_DICT":
            self._note("HL625", "FSDP 2 has no LOCAL_STATE_DICT", "state_dict_type", "use SHARDED_STATE_DICT")
        loading, sync = (_truth(values.get(key)) for key in ("cpu_ram_efficient_loading", "sync_module_states"))
        if self.version == 1 and loading and sync is False:
            message = "`cpu_ram_efficient_loading` needs `sync_module_states`"
            self._note("HL624", message, "sync_module_states", "set it to true, or the other to false")
        if _truth(values.get("activation_checkpointing_offload")) and not _truth(
            values.get("activation_checkpointing")
        ):
            message = "`activation_checkpointing_offload` needs `activation_checkpointing`"
            self._note("HL626", message, "activation_checkpointing_offload", "set both to true")


def _truth(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())
