"""What a strategy comes to, and the way to it: most jobs ask for none, and pay for none of its modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.plan.fill_values import CONFIG, ValueFiller
from hpc_launch.plan.job_size import Shape
from hpc_launch.plan.launch_plan import Program, StrategyPlan, Variable
from hpc_launch.spec.shell_text import Text

if TYPE_CHECKING:
    from hpc_launch.plan.user_strategy_config import OwnConfig


_UNKNOWN = {
    **dict.fromkeys(("strategy.micro_batch", "strategy.global_batch", "strategy.gradient_accumulation"), "1"),
    **dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "parallel.dp"), "1"),
}
"""Names of a job whose size is not known, for a finding says why: no second one shall say that they are unknown."""


class LazyStrategy(Struct, frozen=True):
    """`names` are what `${strategy.…}` and `${parallel.…}` may name beside the file."""

    plan: StrategyPlan | None = None
    variables: tuple[Variable, ...] = ()
    names: dict[str, str] = {}

    def known_to(self, words: ValueFiller) -> ValueFiller:
        """The words with these names."""
        return ValueFiller(replace(words.resolved, names={**words.resolved.names, **self.names}), words.findings)


def spread(words: ValueFiller, form: Shape | None, own: OwnConfig | None) -> LazyStrategy:
    """The strategy on the processes of the job; with a finding for all that does not hold together."""
    job = words.resolved.job
    if form is None:
        return LazyStrategy(names=_UNKNOWN)
    if job.strategy.name in {"none", "ddp"} and job.parallel is None and not asked_for(words):
        return LazyStrategy()
    from hpc_launch.plan.strategy_plan import strategy

    return strategy(words, form, own)


def asked_for(words: ValueFiller) -> set[str]:
    """The keys of `strategy:` that a layer set, the name left aside."""
    held = words.resolved.merged.data.get("strategy")
    return {key for key, value in held.items() if value is not None} - {"name"} if isinstance(held, dict) else set()


def read_by_somebody(
    words: ValueFiller, plan: StrategyPlan | None, program: Program, variables: Iterable[Variable]
) -> StrategyPlan | None:
    """The plan, without a file that nothing names and nothing was asked of: `strategy: zero1` may be a mere word.

    The Trainer finds its configuration by its arguments alone: a warning where none of them names it.
    """
    strategy = words.resolved.job.strategy
    texts: list[Text] = [*program.words, *(word for line in program.argument_lines for word in line)]
    texts += [variable.value for variable in variables if variable.value is not None]
    if plan is None or plan.file is None or any(CONFIG in text for text in texts):
        return plan
    if strategy.reader == "trainer":
        key = "deepspeed" if strategy.zero_stage is not None else "fsdp_config"
        message = "nothing hands the configuration over to the Trainer"
        hint = f"add it to the arguments: `{key}: ${{strategy.config}}`"
        words.fault("HL677", message, ("strategy", "for"), hint, "warning")
    return plan if asked_for(words) else None
