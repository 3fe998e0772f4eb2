"""A run as an object: `Run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import timedelta
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_launch.base.errors import UserError
from hpc_launch.job.shell_text import visible
from hpc_launch.runs.find_run import checked_kind
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.service import poll
from hpc_launch.service.listener import LOGGED, QUIET, Listener

if TYPE_CHECKING:
    from hpc_launch.api.job_calls import Sets
    from hpc_launch.runs.groups.pipeline_status import PipelineStatus
    from hpc_launch.runs.groups.sweep_status import SweepStatus
    from hpc_launch.runs.rank_logs import RankLogLine
    from hpc_launch.service.submit import Submitted
    from hpc_launch.view.explanation import Explanation


class RunFailed(UserError):
    """A run ended in another state than COMPLETED, or can never start. `status` is its last status."""

    def __init__(self, status: RunStatus) -> None:
        reason = f": {status.reason}" if status.reason else ""
        super().__init__(
            f"{status.run} is {status.state}{reason}", "`why()` of the run, or `hpc-launch why`, explains it"
        )
        self.status = status


class Run:
    """A run, or a sweep, a pipeline or a stage of one. `find`, `runs` and `submit` return them.

    An object holds only a name and a folder: you can keep it, pickle it and use it from several threads. Each method
    reads the run's files and asks the scheduler again. `await run` is `run.wait()` without blocking.

    Attributes:
        name: Its name, as `hpc-launch list` shows it.
        path: Its folder.
        last: The status that was seen last, without a look at the run; None before the first.
        submission: What was submitted, where this object came from `submit`, `run`, `sweep` or `resubmit`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        last: RunStatus | None = None,
        submission: Submitted | None = None,
        listener: Listener = LOGGED,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self.name = RunFolder(self.path).name
        self.last = last
        self.submission = submission
        self._listener = listener

    def status(self) -> RunStatus:
        """Its state, progress and attempts now, after doing what is due, such as submitting the next attempt.

        Of a sweep or a pipeline, the state is that of all its runs. Raises UsageError for a stage without a run.
        """
        (self.last,) = poll.poll_runs([self.one(groups=True)], user_index(), self._listener)
        return self.last

    def whole(self) -> RunStatus | SweepStatus | PipelineStatus:
        """As `status`, but of a sweep with its points, and of a pipeline with its stages."""
        found = poll.poll_whole(self.one(groups=True), user_index(), self._listener)
        self.last = found if isinstance(found, RunStatus) else found.as_run()
        return found

    def parts(self) -> list[Run]:
        """The points of a sweep that began, or the runs of a pipeline's stages; none of an ordinary run."""
        from hpc_launch.runs.groups.array_tasks import begun
        from hpc_launch.runs.groups.group_folder import as_pipeline, sweep_of

        folder = RunFolder(self.path)
        pipeline, sweep = as_pipeline(folder), sweep_of(folder)
        found = pipeline.stage_runs() if pipeline is not None else begun(sweep) if sweep is not None else []
        return [Run(part.path, listener=self._listener) for part in found]

    def wait(self, timeout: float | timedelta | None = None, *, check: bool = False) -> RunStatus:
        """Wait until it is over or can never start, submitting what is due meanwhile, and return its last status.

        Args:
            timeout: Seconds to wait at most; by default without limit.
            check: Raise an error unless it COMPLETED.

        Raises:
            NotOver: It is not over after `timeout`.
            RunFailed: With `check`, it ended otherwise, or is STUCK.
        """
        from hpc_launch.api.run_calls import wait

        return wait([self], timeout, check=check, listener=self._listener)[0]

    def __await__(self) -> Generator[Any, None, RunStatus]:
        return self._awaited().__await__()

    async def _awaited(self) -> RunStatus:
        import asyncio

        looks = poll.looks([self.one(groups=True)], user_index(), listener=self._listener)
        while True:
            look = await asyncio.to_thread(next, looks)
            (self.last,) = look.statuses
            if look.over:
                return self.last
            await asyncio.sleep(look.pause_s)

    def logs(
        self,
        *,
        rank: int | None = None,
        node: int | str | None = None,
        role: str | None = None,
        attempt: int | None = None,
        first: int | None = None,
        follow: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> Iterator[RankLogLine]:
        """The lines of its output: of the batch script, then of each node. `print(line)` prints its text.

        Args:
            rank: Only lines of this rank.
            node: Only this node, by index from 0 or by name.
            role: Only this role of the job; `server.1` is a replica.
            attempt: Only this attempt. Default: the newest, and with `follow` those after it.
            first: With `follow`, begin with this attempt instead of the newest.
            follow: Yield lines as they are written, until the run is over.
            pause: How to wait for so many seconds between two looks.

        Raises:
            UsageError: It has no such attempt, role or node, or is a sweep or a pipeline.
        """
        from hpc_launch.service.logs import attempt_with_logs, run_logs
        from hpc_launch.view.run_details import choose_node

        folder, index = self.one(), user_index()
        place = attempt_with_logs(folder, attempt, role)
        chosen = choose_node(str(node), place) if node is not None else None
        return run_logs(
            *(folder, index, self._listener),
            node=chosen,
            rank=rank,
            role=role,
            number=attempt,
            first=first,
            following=follow,
            sleep=pause,
            saw=partial(setattr, self, "last"),
        )

    def why(self, attempt: int | None = None) -> Explanation:
        """Why its newest attempt, or attempt number `attempt`, failed; of another one, what slows it down.

        Raises UsageError where there is no such attempt, or for a sweep or a pipeline.
        """
        from hpc_launch.service.diagnose import diagnose_run
        from hpc_launch.view.explanation import Explanation

        diagnosis, verdict, run = diagnose_run(self.one(), user_index(), self._listener, number=attempt)
        return Explanation(diagnosis=diagnosis, verdict=verdict, run=run)

    def report(self) -> str:
        """An HTML page about it that needs no other file. Raises UsageError for a sweep or a pipeline."""
        from hpc_launch.report.run_page import gathered, run_page

        return run_page(gathered(self.one(), user_index(), self._listener))

    def report_values(self) -> dict[str, Any]:
        """What the page shows, as `report --json` prints it. Raises UsageError for a sweep or a pipeline."""
        from hpc_launch.report.run_page import gathered, report_json

        return report_json(gathered(self.one(), user_index(), self._listener))

    def cancel(self) -> str:
        """Cancel it, or all of a sweep, a pipeline or a stage, and return the outcome as text.

        Cancelling what is over is no error. Raises Unreachable where a job that may run could not be cancelled.
        """
        from hpc_launch.service.cancel import cancel

        return cancel(self.one(stages=True), user_index(), self._listener)

    def resubmit(
        self,
        *,
        set: Sets = (),
        exclude: Sequence[str] = (),
        confirmed: bool = False,
        keep_trying: bool = False,
    ) -> Run:
        """Submit its next attempt; of a sweep or a pipeline, what failed or was cancelled.

        Args:
            set: Values that replace those of the job, by dotted key.
            exclude: Nodes that it must not use, as Slurm host lists.
            confirmed: Also repeat a run that COMPLETED.
            keep_trying: Where the scheduler does not answer, try again until it does.

        Raises:
            UsageError: There is nothing to repeat, or it COMPLETED and is not `confirmed`.

        Also raises what `submit` raises.
        """
        from hpc_launch.api.job_calls import as_sets
        from hpc_launch.service import resubmit as service

        submitted = service.resubmit(
            self.one(stages=True),
            user_index(),
            self._listener,
            sets=as_sets(set),
            exclude=exclude,
            wait=keep_trying,
            confirmed=confirmed,
        )
        return Run(submitted.run.path, submission=submitted, listener=self._listener)

    def one(self, *, groups: bool = False, stages: bool = False) -> RunFolder:
        """Its folder. Raises UsageError for a sweep or a pipeline, unless `groups`; also for a stage, with `stages`."""
        return checked_kind(RunFolder(self.path), self.name, sweeps=groups, stages=stages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        from hpc_launch.view.format_values import clean
        from hpc_launch.view.state_text import one_line

        return f"<Run {clean(self.name)}{f': {one_line(self.last)}' if self.last is not None else ''}>"

    def _repr_html_(self) -> str:
        """For notebooks: state, progress and loss now. Submits nothing, and never raises for a silent scheduler."""
        from hpc_launch.view.state_text import progress_parts, reason_text

        try:
            (self.last,) = poll.poll_runs([self.one(groups=True)], user_index(), QUIET, drive=False)
        except (UserError, OSError) as error:
            return f"<b>{escape(repr(self))}</b> <i>{escape(visible(str(error)))}</i>"
        rows = [("state", self.last.state), ("why", reason_text(self.last)), ("site", self.last.site)]
        rows.append(("progress", ", ".join(progress_parts(self.last))))
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows if text)
        return f"<table><caption>{escape(self.name)}</caption>{''.join(cells)}</table>"
