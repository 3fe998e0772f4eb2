"""What a strategy comes to, and the way to it: most jobs ask for none, and pay for none of its modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.plan.fill_values import CONFIG, ValueFiller
from hpc_launch.plan.job_size import JobSize
from hpc_launch.plan.launch_plan import Program, StrategyPlan, Variable
from hpc_launch.spec.shell_text import Text

if TYPE_CHECKING:
    from hpc_launch.plan.user_strategy_config import UserStrategyConfig


_UNKNOWN = {
    **dict.fromkeys(("strategy.micro_batch", "strategy.global_batch", "strategy.gradient_accumulation"), "1"),
    **dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "parallel.dp"), "1"),
}
"""Names of a job whose size is not known, for a finding says why: no second one shall say that they are unknown."""


class StrategyResult(Struct, frozen=True):
    """`names` are what `${strategy.…}` and `${parallel.…}` may name beside the file."""

    plan: StrategyPlan | None = None
    variables: tuple[Variable, ...] = ()
    names: dict[str, str] = {}

    def known_to(self, filler: ValueFiller) -> ValueFiller:
        """The words with these names."""
        return ValueFiller(replace(filler.resolved, names={**filler.resolved.names, **self.names}), filler.findings)


def plan_strategy(filler: ValueFiller, size: JobSize | None, user_config: UserStrategyConfig | None) -> StrategyResult:
    """The strategy on the processes of the job; with a finding for all that does not hold together."""
    job = filler.resolved.job
    if size is None:
        return StrategyResult(names=_UNKNOWN)
    if job.strategy.name in {"none", "ddp"} and job.parallel is None and not strategy_keys(filler):
        return StrategyResult()
    from hpc_launch.plan.strategy_plan import strategy_result

    return strategy_result(filler, size, user_config)


def strategy_keys(filler: ValueFiller) -> set[str]:
    """The keys of `strategy:` that a layer set, the name left aside."""
    held = filler.resolved.merged.data.get("strategy")
    return {key for key, value in held.items() if value is not None} - {"name"} if isinstance(held, dict) else set()


def without_unused_file(
    filler: ValueFiller, plan: StrategyPlan | None, program: Program, variables: Iterable[Variable]
) -> StrategyPlan | None:
    """The plan, without a file that nothing names and nothing was asked of: `strategy: zero1` may be a mere word.

    The Trainer finds its configuration by its arguments alone: a warning where none of them names it.
    """
    strategy_result = filler.resolved.job.strategy
    texts: list[Text] = [*program.words, *(word for line in program.argument_lines for word in line)]
    texts += [variable.value for variable in variables if variable.value is not None]
    if plan is None or plan.file is None or any(CONFIG in text for text in texts):
        return plan
    if strategy_result.reader == "trainer":
        key = "deepspeed" if strategy_result.zero_stage is not None else "fsdp_config"
        message = "nothing hands the configuration over to the Trainer"
        hint = f"add it to the arguments: `{key}: ${{strategy.config}}`"
        filler.fault(FindingCode.CONFIG_NOT_PASSED, message, ("strategy", "for"), hint, "warning")
    return plan if strategy_keys(filler) else None
