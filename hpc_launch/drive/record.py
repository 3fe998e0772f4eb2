"""The merged job as the run folder keeps it: values, and beside them where each comes from."""

from __future__ import annotations

import yaml

from hpc_launch.sites.resolved import Resolved


def resolved_yaml(resolved: Resolved) -> str:
    """YAML with `job` (the merged values) and `origins` (the layer and place of each)."""
    origins = {".".join(map(str, path)): str(origin) for path, origin in resolved.merged.origins.items()}
    data = {"site": resolved.site.name, "job": resolved.merged.data, "origins": origins}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
