"""A user's project: `make lint` checks it with `mypy --strict`, and that each wrong use is an error."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from typing_extensions import assert_type

import hpc_launch as hl


async def right() -> None:
    job = hl.Job(
        name="tiny",
        script=Path("train.py"),
        nodes=8,
        time=timedelta(hours=2),
        launcher="torchrun",
        strategy={"name": "fsdp", "fsdp": {"version": 2}},
        parallel={"tp": 2},
        args={"lr": 3e-4},
        hang="20m",
        retry={"on": {"cuda_oom": ["half_batch"]}},
        sweep={"grid": {"args.lr": [1e-4, 3e-4]}},
    )
    run = hl.submit(job, site="perlmutter", set={"nodes": 8})
    assert_type(run, hl.Run)
    assert_type(await run, hl.RunStatus)
    assert_type(run.wait(timeout=60).progress.loss, "float | None")
    assert_type([line.rank for line in run.logs(rank=0, follow=True)], "list[int | None]")
    assert_type(run.why().diagnosis.failure_class, str)
    assert_type(run.resubmit(set=["nodes=4"]), hl.Run)
    assert_type(hl.runs(state="failed", since="1d"), "list[hl.Run]")
    assert_type(hl.render("job.yaml"), str)
    assert_type(hl.plan(Path("job.yaml")).job_gpu_hours, "float | None")
    assert_type(hl.sweep(job, grid={"args.lr": [1, 2]}, limit=4), hl.Run)
    assert_type(hl.find("@last").whole(), "hl.RunStatus | hl.SweepStatus | hl.PipelineStatus")
    try:
        run.cancel()
    except hl.Refused as error:
        assert_type(error.place, "hl.Place | None")


def wrong(job: hl.Job) -> None:
    hl.Job(script="train.py")  # type: ignore[call-arg]  # without a name
    hl.Job(name="tiny", nodess=8)  # type: ignore[call-arg]
    hl.Job(name="tiny", launcher="mpirun")  # type: ignore[arg-type]
    hl.Job(name="tiny", parallel={"tensor": 2})  # type: ignore[arg-type]
    hl.submitt(job)  # type: ignore[attr-defined]
    hl.submit(job, sites="local")  # type: ignore[call-arg]
    hl.sweep(job, grids={})  # type: ignore[call-arg]
    hl.runs(since=None, state=3)  # type: ignore[arg-type]
