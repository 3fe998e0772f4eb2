"""Let the installed DeepSpeed read a configuration: `check_deepspeed.py '[CONFIGURATION, REPLICAS]'`.

Exits with DeepSpeed's own error where it refuses the configuration. Runs in the Python that has DeepSpeed.
"""

from __future__ import annotations

import json
import sys

from deepspeed.runtime import config

TRIAL = {
    "train_batch_size": None,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
}
"""What stands in for `auto`, which only Hugging Face fills in; a key that is not here is left out."""


class World:
    """Stands in for DeepSpeed's process group, so that no processes have to be started."""

    replicas = 1

    @staticmethod
    def get_rank(*_: object) -> int:
        """Rank 0."""
        return 0

    @staticmethod
    def get_world_size(*_: object) -> int:
        """The data-parallel size."""
        return World.replicas


def main() -> None:
    """Read the configuration."""
    data, replicas = json.loads(sys.argv[1])
    for key in [key for key, value in data.items() if value == "auto"]:
        data[key] = TRIAL.get(key)
    if data.get("train_batch_size") and not replicas:
        for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            data.pop(key, None)
    World.replicas = replicas or 1
    config.dist = World
    config.DeepSpeedConfig({key: value for key, value in data.items() if value is not None})


main()
