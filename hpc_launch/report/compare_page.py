"""Two runs side by side: the settings that differ, loss by step and by GPU hours, speed, cost and goodput."""

from __future__ import annotations

from typing import Any

from hpc_launch.report.charts import Curve, curves, share_bar
from hpc_launch.report.run_page import POINTS, RunReport, rendered
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, newest_plan
from hpc_launch.view.format_values import number
from hpc_launch.view.run_facts import job_settings, losses_by_hours


def compare_page(reports: tuple[RunReport, RunReport]) -> str:
    """The page as HTML."""
    runs = [RunFolder(report.status.folder) for report in reports]
    before, after = map(job_settings, runs)
    names = dict.fromkeys((*before, *after))
    plans, kinds = [newest_plan(run) or PlanRecord() for run in runs], list[str]()
    gpus = [(plan.nodes or 1) * (plan.gpus_per_node or 0) for plan in plans]
    by_step: list[Curve] = []
    by_hours: list[Curve] = []
    for kind, report, size in zip(("first", "second"), reports, gpus if all(gpus) else (1, 1), strict=True):
        for losses, hours in losses_by_hours(report.times, POINTS, report.now):
            kinds.append(kind)
            by_step.append([(float(step), loss) for step, loss in losses])
            by_hours.append([(at * size, loss) for at, (_, loss) in zip(hours, losses, strict=True)])
    same: dict[str, Any] = {"label": number, "times": False, "title": "loss", "kinds": kinds}
    return rendered(
        "compare.html.j2",
        reports=reports,
        settings=[(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)],
        facts=list(dict.fromkeys(name for report in reports for name in report.facts)),
        shares=[share_bar(report.times.account) for report in reports],
        gpus=all(gpus),
        by_step=curves(by_step, **same),
        by_hours=curves(by_hours, across="GPU hours" if all(gpus) else "hours of the jobs", **same),
        now=reports[0].now,
    )
