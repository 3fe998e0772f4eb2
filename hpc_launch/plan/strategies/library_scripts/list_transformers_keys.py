"""Print the keys of `fsdp_config` that the installed Transformers Trainer reads, as JSON for `key_tables`."""

from __future__ import annotations

import json
from typing import Any

import transformers
from transformers.training_args import TrainingArguments

KINDS = {bool: "bool", int: "int", float: "number", dict: "object"}


class Recorder(dict[str, Any]):
    """A configuration that notes each key that is looked up, with the kinds of its defaults."""

    looked_up: dict[str, set[str]] = {}  # noqa: RUF012  one record for all copies

    def note(self, key: object, default: Any = None) -> None:
        """Note a key."""
        is_switch = str(default).lower() in {"true", "false"}
        kind = None if default is None else "bool" if is_switch else KINDS.get(type(default), "text")
        self.looked_up.setdefault(str(key), set()).update({kind} if kind else ())

    def get(self, key: str, default: Any = None) -> Any:
        """Look a key up, with its default."""
        self.note(key, default)
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Look a key up, and set it."""
        self.note(key, default)
        return super().setdefault(key, default)

    def __contains__(self, key: object) -> bool:
        self.note(key)
        return super().__contains__(key)


def main() -> None:
    """Print the table."""
    for start in ({"version": 1}, {"version": 2}, {"xla": True}):
        arguments = TrainingArguments.__new__(TrainingArguments)
        arguments.fsdp, arguments.fsdp_config = True, Recorder(start)
        arguments.activation_checkpointing = arguments.gradient_checkpointing = False
        arguments._process_fsdp_args()
    kinds = {key: found.pop() if len(found) == 1 else "any" for key, found in Recorder.looked_up.items()}
    print(json.dumps({"release": transformers.__version__, "mappings": {"top_level": kinds}}))


main()
