"""What the run folder keeps of a plan: the merged job, each value with its origin, and the policy of recovery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from hpc_launch.plan.retry_plan import RetryPlan
from hpc_launch.sites.resolved import Resolved


def resolved_yaml(resolved: Resolved) -> str:
    """YAML with `job` (the merged values) and `origins` (the layer and place of each)."""
    origins = {".".join(map(str, path)): str(origin) for path, origin in resolved.merged.origins.items()}
    data = {"site": resolved.site.name, "job": resolved.merged.data, "origins": origins}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def recovery_of(recorded: Mapping[str, Any]) -> RetryPlan | None:
    """The policy in a plan.json; None in one of a version without, or where it cannot be read."""
    try:
        return msgspec.convert(recorded.get("recovery"), RetryPlan)
    except msgspec.ValidationError:
        return None
