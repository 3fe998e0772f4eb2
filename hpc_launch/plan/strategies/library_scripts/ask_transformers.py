"""Print the keys of `fsdp_config` that the installed Transformers Trainer reads, as JSON."""

from __future__ import annotations

import json
from typing import Any

from transformers.training_args import TrainingArguments


class Recorder(dict[str, Any]):
    """A configuration that notes each key that is looked up."""

    looked_up: dict[str, None] = {}  # noqa: RUF012  one record for all copies

    def get(self, key: str, default: Any = None) -> Any:
        """Look a key up."""
        self.looked_up[key] = None
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Look a key up, and set it."""
        self.looked_up[key] = None
        return super().setdefault(key, default)

    def __contains__(self, key: object) -> bool:
        self.looked_up[str(key)] = None
        return super().__contains__(key)


def main() -> None:
    """Print the keys."""
    for start in ({"version": 1}, {"version": 2}, {"xla": True}):
        arguments = TrainingArguments.__new__(TrainingArguments)
        arguments.fsdp, arguments.fsdp_config = True, Recorder(start)
        arguments.activation_checkpointing = arguments.gradient_checkpointing = False
        arguments._process_fsdp_args()
    print(json.dumps({"mappings": {"": list(Recorder.looked_up)}}))


main()
