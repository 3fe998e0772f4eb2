"""Plan a strategy, importing its modules only for jobs that use one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import Text
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.launch_plan import Program, StrategyPlan, Variable
from hpc_launch.plan.plan_draft import CONFIG, ValueFiller


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


if TYPE_CHECKING:
    from hpc_launch.model.model_config import ModelConfig
    from hpc_launch.plan.strategy_files import UserStrategyConfig


_UNKNOWN = {
    **dict.fromkeys(("strategy.micro_batch", "strategy.global_batch", "strategy.gradient_accumulation"), "1"),
    **dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "parallel.dp"), "1"),
}
"""Placeholders for a job of unknown size, so that the finding about the size is the only one."""


def plan_strategy(
    filler: ValueFiller, size: JobSize | None, user_config: UserStrategyConfig | None, model: ModelConfig | None
) -> StrategyResult:
    """The strategy for the processes of the job, with a finding for each conflict."""
    job = filler.resolved.job
    if size is None:
        return StrategyResult(names=_UNKNOWN)
    if job.strategy.name in {"none", "ddp"} and job.parallel is None and not strategy_keys(filler):
        return StrategyResult()
    from hpc_launch.plan.strategy_plan import strategy_result

    return strategy_result(filler, size, user_config, model)


def without_unused_file(
    filler: ValueFiller, plan: StrategyPlan | None, program: Program, variables: Iterable[Variable]
) -> StrategyPlan | None:
    """The plan, without a file that nothing refers to: `strategy: zero1` alone may be only a label.

    The Trainer finds its configuration only through its arguments; warn if none of them names it.
    """
    strategy_result = filler.resolved.job.strategy
    texts: list[Text] = [*program.words, *(word for line in program.argument_lines for word in line)]
    texts += [variable.value for variable in variables if variable.value is not None]
    if plan is None or plan.file is None or any(CONFIG in text for text in texts):
        return plan
    if strategy_result.reader == "trainer":
        key = "deepspeed" if strategy_result.zero_stage is not None else "fsdp_config"
        message = "no argument passes the configuration to the Trainer"
        hint = f"add to `args`: `{key}: ${{strategy.config}}`"
        filler.fault(FindingCode.CONFIG_NOT_PASSED, message, ("strategy", "for"), hint, "warning")
    return plan if strategy_keys(filler) else None
