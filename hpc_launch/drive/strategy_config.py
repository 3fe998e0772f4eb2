"""Reads the configuration that `strategy.file` names, on the machine that submits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.plan.fill_values import ValueFiller
from hpc_launch.sites.resolved import Resolved

if TYPE_CHECKING:
    from hpc_launch.plan.user_strategy_config import UserStrategyConfig


def read_own(resolved: Resolved) -> tuple[UserStrategyConfig | None, list[Finding]]:
    """The file, with a finding where it cannot be read; None where the job names none, too."""
    strategy, path = resolved.job.strategy, ("strategy", "file")
    if strategy.file is None:
        return None, []
    from hpc_launch.plan.strategies import config_file
    from hpc_launch.plan.user_strategy_config import UserStrategyConfig

    filler = ValueFiller(resolved, [])
    name = filler.file(strategy.file, path)
    if filler.findings:
        return None, filler.findings
    if not os.path.exists(name):
        hint = f"a relative path starts at {resolved.job_folder}"
        return None, [
            Finding(FindingCode.FILE_NOT_FOUND, f"the configuration {name} is not there", resolved.place(*path), hint)
        ]
    shown = os.path.relpath(name)  # as a person would name it from here, where that is shorter
    name = name if shown.startswith("..") else shown
    text, findings = config_file.read(name)
    if text is None:
        return None, findings
    # What the library itself reads: DeepSpeed and the Trainer JSON, Accelerate YAML for FSDP.
    is_yaml = strategy.zero_stage is None and strategy.reader == "accelerate"
    located, findings = (config_file.parse_yaml if is_yaml else config_file.parse_json)(text, name)
    return (None if located is None else UserStrategyConfig(text, located)), findings
