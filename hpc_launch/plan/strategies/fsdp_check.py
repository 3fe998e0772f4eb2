"""Check a user's FSDP configuration, for Accelerate or for the Transformers Trainer."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_type_hints

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import KeyPath
from hpc_launch.job.reader_messages import nearest
from hpc_launch.plan.strategies.config_file import ConfigFile, Kind, LibraryKeys, check_names, fits, kinds_of
from hpc_launch.plan.strategies.fsdp_config import Fsdp, Reader, accelerate_data, trainer_data

# What Accelerate and the Trainer do not tell about their keys, without the prefix `fsdp_`: Accelerate adds it, the
# Trainer strips it. After accelerate 1.15.0 (commands/launch.py, utils/dataclasses.py) and transformers 5.23.0
# (training_args.py).
_OF_ONE_VERSION = {
    "sharding_strategy": (1, "use `reshard_after_forward` with FSDP 2: true or false"),
    "backward_prefetch": (1, "remove it: FSDP 2 prefetches without it"),
    "forward_prefetch": (1, "remove it: Accelerate does not support it with FSDP 2"),
    "use_orig_params": (1, "remove it: FSDP 2 always uses the original parameters"),
    "sync_module_states": (1, "remove it: FSDP 2 does not need it"),
    "limit_all_gathers": (1, "remove it: FSDP 2 does not need it"),
    "activation_checkpointing_offload": (2, "use version 2"),
}
_UNREAD = {
    "backward_prefetch_policy": "use `backward_prefetch` with FSDP 1; FSDP 2 prefetches without it",
    "cuda_graphs": "remove it: FSDP has no such option",
    "mixed_precision": "set `mixed_precision: bf16` outside `fsdp_config`, or --bf16 or --fp16 of the Trainer",
}
"""Names in files in use that neither library reads, and below those that only the other one reads."""
_UNREAD_BY: dict[Reader, dict[str, str]] = {
    "accelerate": {
        **_UNREAD,
        "cpu_offload": "use Accelerate's key `fsdp_offload_params`",
        "limit_all_gathers": "remove it: it is always on, and Accelerate's file cannot change it",
    },
    "trainer": {
        **_UNREAD,
        "offload_params": "use the Trainer's key `cpu_offload`",
        "sharding_strategy": "use the Trainer's key `reshard_after_forward`",
    },
}
_STRATEGIES = get_args(get_type_hints(Fsdp)["sharding_strategy"])
_CHOICES = {
    "sharding_strategy": _STRATEGIES,
    "auto_wrap_policy": get_args(get_type_hints(Fsdp)["wrap_policy"]),
    "backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "state_dict_type": get_args(get_type_hints(Fsdp)["state_dict"]),
}


def reader_of(file: ConfigFile) -> Reader:
    """Who reads a file: Accelerate's holds the FSDP keys in the mapping `fsdp_config`."""
    return "accelerate" if {"fsdp_config", "distributed_type", "compute_environment"} & file.data.keys() else "trainer"


def check(file: ConfigFile, *, reader: Reader | None = None, keys: LibraryKeys | None = None) -> list[Finding]:
    """All findings of a file, in its order.

    `keys`: what the installed release reads; without it, only such unknown keys are reported as occur in files in use.
    """
    reader = reader or reader_of(file)
    findings: list[Finding] = []
    path: KeyPath = ()
    if reader == "accelerate":
        path = ("fsdp_config",)
        if keys is not None:
            title = "the Accelerate configuration"
            findings += check_names(file, (), keys.mappings[""], title, "Accelerate refuses the whole file")
        wrong = FindingCode.INVALID_CONFIG_VALUE
        if "distributed_type" not in file.data:
            message = "`distributed_type` is missing; Accelerate refuses the file"
            findings.append(file.finding(wrong, message, (), "add `distributed_type: FSDP`"))
        if not isinstance(file.data.get("fsdp_config"), dict):
            message = "the mapping `fsdp_config` is missing"
            return [*findings, file.finding(wrong, message, path, "put the FSDP keys under it")]
        precision = file.data.get("mixed_precision")
        if precision not in (None, "no", "fp16", "bf16", "fp8", False):
            message, hint = f"invalid mixed precision `{precision}`", "use bf16, fp16, fp8 or 'no'"
            findings.append(file.finding(wrong, message, ("mixed_precision",), hint))
    findings += _FsdpMapping(file, path, reader, keys).findings
    return sorted(findings, key=lambda found: (found.place and found.place.line) or 0)


@cache
def _kinds(reader: Reader) -> dict[str, Kind]:
    """The kind of each value that hpc-launch writes."""
    kinds: dict[str, Kind] = {}
    for asked in (Fsdp(version=1, wrap_policy="SIZE_BASED_WRAP"), Fsdp(version=2)):
        example = accelerate_data(asked)["fsdp_config"] if reader == "accelerate" else trainer_data(asked)
        kinds |= {str(path[-1]).removeprefix("fsdp_"): kind for path, kind in kinds_of(example).items()}
    return kinds | {"activation_checkpointing_offload": "bool"}


class _FsdpMapping:
    """The findings of one mapping of FSDP keys."""

    def __init__(self, file: ConfigFile, path: KeyPath, reader: Reader, keys: LibraryKeys | None) -> None:
        self.file, self.path, self.reader = file, path, reader
        mapping: Any = file.get(path)
        self.known = {key.removeprefix("fsdp_") for key in keys.mappings[".".join(map(str, path))]} if keys else None
        self.unread, self.kinds = _UNREAD_BY[reader], _kinds(reader)
        self.values = {self._plain(str(key)): value for key, value in mapping.items()}
        self.written = {self._plain(str(key)): str(key) for key in mapping}
        self.findings: list[Finding] = []
        self.version = self._version()
        for name, value in self.values.items():
            self._key(name, value)
        self._combinations()

    def _plain(self, key: str) -> str:
        """A key without its prefix: both readers accept both forms (the Trainer strips it, Accelerate adds it)."""
        return key.removeprefix("fsdp_")

    def _note(self, code: FindingCode, message: str, name: str, hint: str | None, *, warning: bool = False) -> None:
        place = self.file.place(*self.path, self.written.get(name, name))
        self.findings.append(Finding(code, message, place, hint, "warning" if warning else "error"))

    def _version(self) -> int:
        default = 1 if self.reader == "accelerate" else 2
        value = self.values.get("version", default)
        if str(value) in {"1", "2"}:
            return int(value)
        self._note(FindingCode.INVALID_CONFIG_VALUE, f"invalid FSDP version {value!r}", "version", "use 1 or 2")
        return default

    def _key(self, name: str, value: Any) -> None:
        written = self.written[name]
        only, hint = _OF_ONE_VERSION.get(name, (self.version, ""))
        if (self.known is not None and name not in self.known) or (self.known is None and name in self.unread):
            who = "Accelerate" if self.reader == "accelerate" else "the Trainer"
            near = nearest(name, sorted(self.known or ()))
            hint = self.unread.get(name) or (f"did you mean `{near}`?" if near else "remove it")
            self._note(FindingCode.UNREAD_FSDP_KEY, f"{who} silently ignores the unknown key `{written}`", name, hint)
        elif only != self.version:
            message = f"`{written}` is for FSDP {only}, and this file is for FSDP {self.version}"
            self._note(FindingCode.OTHER_FSDP_VERSION, message, name, hint)
        elif name == "reshard_after_forward":
            self._reshard(value)
        elif name == "transformer_layer_cls_to_wrap":
            self._classes(value)
        elif name != "version":
            self._value(name, value, self.kinds.get(name, "any"))

    def _value(self, name: str, value: Any, kind: Kind) -> None:
        written, words = self.written[name], _CHOICES.get(name)
        if kind == "bool" and isinstance(value, str) and value.lower() in {"true", "false"}:
            return  # both readers accept the word
        message, hint = "", None
        if kind == "int" and not isinstance(value, int | None):
            message, hint = f"`{written}` must be a whole number, not {value!r}", "write all digits: 100000000"
        elif not fits(value, kind):
            message = f"`{written}` must be {'true or false' if kind == 'bool' else 'a string'}, not {value!r}"
        elif words and value is not None and str(value).upper() not in words:
            message, hint = f"invalid value {value!r} of `{written}`", f"use one of {', '.join(words)}"
        if message:
            self._note(FindingCode.INVALID_CONFIG_VALUE, message, name, hint)

    def _reshard(self, value: Any) -> None:
        written = self.written["reshard_after_forward"]
        word, strategies = str(value).lower(), _STRATEGIES
        if self.version == 2 and word not in {"true", "false"}:
            message = f"`{written}` must be true or false with FSDP 2, not {value!r}"
            self._note(
                FindingCode.OTHER_FSDP_VERSION,
                message,
                "reshard_after_forward",
                "use true for FULL_SHARD, false for SHARD_GRAD_OP",
            )
        elif self.version == 1 and word.upper() not in strategies:
            message = f"`{written}` must name a sharding strategy with FSDP 1, not {value!r}"
            self._note(
                FindingCode.OTHER_FSDP_VERSION, message, "reshard_after_forward", f"use one of {', '.join(strategies)}"
            )
        elif self.version == 1 and word != "full_shard":
            message = f"`{written}: {value}` has no effect: with FSDP 1, `sharding_strategy` takes precedence"
            variable = f"set FSDP_SHARDING_STRATEGY={word.upper()} in the job's environment"
            hint = "use `fsdp_sharding_strategy`" if self.reader == "accelerate" else variable
            self._note(FindingCode.STRATEGY_WITHOUT_EFFECT, message, "reshard_after_forward", hint, warning=True)

    def _classes(self, value: Any) -> None:
        name = "transformer_layer_cls_to_wrap"
        items = value if isinstance(value, list) else str(value).split(",")
        if self.reader == "accelerate" and isinstance(value, list):
            message = f"`{self.written[name]}` must be a string for Accelerate, not a list"
            self._note(FindingCode.INVALID_CONFIG_VALUE, message, name, f"write {','.join(map(str, value))}")
        elif not all(isinstance(item, str) and item.strip().isidentifier() for item in items):
            message = f"`{self.written[name]}` must hold class names"
            self._note(FindingCode.INVALID_CONFIG_VALUE, message, name, "use names such as LlamaDecoderLayer")
        elif len(items) > 1:
            message = f"the training fails unless the model has all of {', '.join(items)}"
            hint = "name only classes of your model, or none: the default is the model's _no_split_modules"
            self._note(FindingCode.WRAP_POLICY_MISMATCH, message, name, hint, warning=True)

    def _combinations(self) -> None:
        values = self.values
        if self.version == 2 and str(values.get("state_dict_type")).upper() == "LOCAL_STATE_DICT":
            self._note(
                FindingCode.STATE_DICT_UNSUPPORTED,
                "FSDP 2 does not support LOCAL_STATE_DICT",
                "state_dict_type",
                "use SHARDED_STATE_DICT",
            )
        loading, sync = (_truth(values.get(key)) for key in ("cpu_ram_efficient_loading", "sync_module_states"))
        if self.version == 1 and loading and sync is False:
            message = "`cpu_ram_efficient_loading` requires `sync_module_states`"
            self._note(
                FindingCode.LOADING_NEEDS_SYNC,
                message,
                "sync_module_states",
                "set `sync_module_states` to true, or `cpu_ram_efficient_loading` to false",
            )
        if _truth(values.get("activation_checkpointing_offload")) and not _truth(
            values.get("activation_checkpointing")
        ):
            message = "`activation_checkpointing_offload` requires `activation_checkpointing`"
            self._note(
                FindingCode.OFFLOAD_NEEDS_CHECKPOINTING, message, "activation_checkpointing_offload", "set both to true"
            )


def _truth(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())
