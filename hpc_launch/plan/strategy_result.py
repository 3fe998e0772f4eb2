"""The result of planning a strategy, and the keys of `strategy:` that a job sets."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.plan.plan_parts import StrategyPlan, Variable


class StrategyResult(Struct, frozen=True):
    """The plan, its variables, and in `names` the values of `${strategy.…}` and `${parallel.…}`."""

    plan: StrategyPlan | None = None
    variables: tuple[Variable, ...] = ()
    names: dict[str, str] = {}

    def with_names(self, filler: ValueFiller) -> ValueFiller:
        """The filler, with these names added."""
        return ValueFiller(replace(filler.resolved, names={**filler.resolved.names, **self.names}), filler.findings)


def strategy_keys(filler: ValueFiller) -> set[str]:
    """The keys of `strategy:` that a layer sets, except `name`."""
    held = filler.resolved.merged.data.get("strategy")
    return {key for key, value in held.items() if value is not None} - {"name"} if isinstance(held, dict) else set()
