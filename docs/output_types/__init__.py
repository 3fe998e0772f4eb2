"""The types of what the verbs print with `--json`: the schemas of docs/schema/output and the tables of the page JSON
(docs/reference/json.md) are generated from them, and the tests check the output against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from docs.output_types import checks, jobs, runs, sites
from docs.output_types.base import Finding
from hpc_launch.base.json_records import as_type

OUTPUTS: Mapping[str, tuple[Any, ...]] = {
    "init": (jobs.NewJob,),
    "submit": (runs.Submitted, runs.StartEstimate),
    "run": (runs.Submitted,),
    "resubmit": (runs.Submitted,),
    "cancel": (list[runs.Cancelled],),
    "doctor": (list[checks.Level],),
    "drill": (checks.Drill,),
    "watch": (list[runs.ListedRun],),
    "logs": (runs.LogLine,),
    "report": (runs.Report, list[runs.Report]),
    "status": (runs.RunWithAttempts, runs.SweepStatus, runs.PipelineStatus, list[runs.RunWithAttempts]),
    "list": (list[runs.ListedRun],),
    "why": (runs.Why,),
    "stacks": (runs.Stacks,),
    "render": (jobs.Script,),
    "explain": (list[jobs.Value],),
    "prune": (list[runs.Pruned],),
    "nodes list": (list[sites.BadNode],),
    "nodes clear": (list[str],),
    "nodes leases": (list[sites.HostLeases],),
    "config deepspeed": (list[Finding],),
    "config fsdp": (list[Finding],),
    "config hostfile": (jobs.ByHand,),
    "config launcher": (jobs.ByHand,),
    "containers build": (jobs.ImageFile,),
    "containers pull": (jobs.ImageFile,),
    "containers check": (list[jobs.ImageCheck],),
    "sites list": (list[sites.Profile],),
    "sites show": (list[jobs.Value],),
    "sites diff": (list[sites.ProfileDifference],),
    "sites detect": (sites.Detected,),
    "sites learn": (sites.LearnedCluster, sites.LearnedHosts),
    "sites check": (list[Finding], list[sites.Drift]),
    "sites add": (sites.TeamAdded,),
    "sites update": (sites.TeamAdded,),
    "sites remove": (sites.TeamRemoved,),
    "clusters add": (sites.RemoteCluster,),
    "clusters list": (list[sites.RemoteCluster],),
    "notify test": (list[jobs.TestMessage],),
    "plan": (jobs.Plan, jobs.Layouts),
    "validate": (list[Finding],),
}
"""By verb, in the order of docs/reference/verbs.md: the types of its output, which depend on its options."""


def checked(verb: str, value: Any) -> Any:
    """Return the value of `VERB --json` if it has all documented fields and no others. Raises ValidationError."""
    faults = []
    for kind in OUTPUTS[verb]:
        try:
            as_type(value, kind)
        except msgspec.ValidationError as error:
            faults.append(f"{getattr(kind, '__name__', kind)}: {error}")
        else:
            return value
    raise msgspec.ValidationError(f"{verb} --json: {'; '.join(faults)}")


def output_file(verb: str) -> Path:
    """The file of a verb's schema."""
    return Path(__file__).parents[1] / "schema" / "output" / f"{verb.replace(' ', '-')}.schema.json"


def output_schema(verb: str) -> dict[str, Any]:
    """The schema of a verb's output (JSON Schema 2020-12). It allows further fields: a later release may add some."""
    kinds, parts = msgspec.json.schema_components(OUTPUTS[verb], ref_template="#/$defs/{name}")
    for part in parts.values():
        part.pop("additionalProperties", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"hpc-launch {verb} --json"}
    whole = kinds[0] if len(kinds) == 1 else {"anyOf": list(kinds)}
    return {**head, **_null_last(whole), **({"$defs": _null_last(parts)} if parts else {})}


def _null_last(schema: Any) -> Any:
    """The same schema whatever order msgspec gives to alternatives: 0.20 and 0.22 differ."""
    if isinstance(schema, dict):
        found = {key: _null_last(value) for key, value in schema.items()}
        if "anyOf" in found:
            found["anyOf"] = sorted(found["anyOf"], key=lambda one: one == {"type": "null"})
        return found
    return [_null_last(one) for one in schema] if isinstance(schema, list) else schema
