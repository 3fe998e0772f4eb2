"""What the job itself sees of its run, for notifications: start, first step, silence, end. For notify.py.

It reads the log of rank 0 with the patterns of the job file, in a process of its own: an expression that is slow delays
nothing but messages.
"""

import contextlib
import os
import re
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from hpc_launch.agent.job_processes import start_of
from hpc_launch.agent.notify_event import new_event, point_over, read, record_event, words_of

LOOK_S = 10.0
RETRY_S = 60.0
SEARCH_S = 0.5
TAIL = 64 * 1024
LONGEST_LINE = 2000
_POINT = re.compile(r"(.+)\.([0-9]+)$")


class Log:
    """The log of rank 0: the newest step and loss in it, and how much was written."""

    def __init__(self, attempt: str, progress: Dict[str, Any]) -> None:
        self.attempt = attempt
        self.patterns = {}  # type: Dict[str, Any]
        for name in ("step", "loss"):
            with contextlib.suppress(re.error, RecursionError, OverflowError):
                if progress.get(name):
                    self.patterns[name] = re.compile(progress[name])
        self.size = -1
        self.found = {}  # type: Dict[str, Any]

    def look(self) -> bool:
        """Read what is new; true if there was progress: a new step, or any output where the job has no pattern."""
        try:
            main = os.path.join(self.attempt, "roles", "main")  # of the role that ends the job; it begins later
            logs = os.path.join(main if os.path.isdir(main) else self.attempt, "logs")
            path = os.path.join(logs, "node-0.rank-0.log")
            path = path if os.path.exists(path) else os.path.join(logs, "node-0.log")
            size = os.stat(path).st_size
            if size == self.size:
                return False
            with open(path, "rb") as stream:
                stream.seek(max(0, size - TAIL))
                text = stream.read(TAIL).decode("utf-8", "replace")
        except OSError:
            return False
        first, self.size = self.size == -1, size
        before = self.found.get("step")
        lines = [line[:LONGEST_LINE] for line in text.replace("\r", "\n").split("\n")[:-1]]
        for name in list(self.patterns):
            words = [(word or "").replace(",", "").replace("_", "") for word in self.search(name, lines)]
            if name == "loss" and words:
                self.found["loss"] = words[0][:20]
            elif words and all(word.isdigit() and len(word) < 18 for word in words):
                self.found.update(zip(("step", "total"), map(int, words)))
        return bool(self.found.get("step") != before) if "step" in self.patterns else not first or size > 0

    def search(self, name: str, lines: List[str]) -> Sequence[Optional[str]]:
        """The groups of the newest match. A pattern that is too slow is not used again."""

        def stop(_number: int, _frame: Any) -> None:
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, SEARCH_S)
        try:
            found = next(filter(None, map(self.patterns[name].search, reversed(lines))), None)
            return found.groups() if found else ()
        except TimeoutError:
            del self.patterns[name]
            return ()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class JobNotices:
    """The notifications that the job of one attempt sends. `deliver` sends what is due for a run folder."""

    def __init__(self, attempt: str, deliver: Callable[[str], None]) -> None:
        self.attempt, self.deliver = attempt, deliver
        self.run = os.path.dirname(os.path.dirname(attempt))
        self.number = int(os.path.basename(attempt))
        self.plan = plan_of(attempt)
        self.settings = self.plan.get("notify") or {}
        self.wanted = set(self.settings.get("events") or ())
        found = _POINT.match(os.path.basename(self.run))
        self.sweep = os.path.dirname(self.run)
        of_sweep = found is not None and found.group(1) == os.path.basename(self.sweep)
        self.point = found.group(2) if found is not None and of_sweep else None
        self.alone = self.point is None or bool(self.settings.get("each_point"))
        self.log = Log(attempt, self.plan.get("progress") or {})

    def event(self, kind: str, **facts: Any) -> Dict[str, Any]:
        """An event of this attempt."""
        start = read(os.path.join(self.attempt, "start.json"))
        known = dict(self.log.found, attempt=self.number, site=self.plan.get("site"))  # type: Dict[str, Any]
        known.update((name, start.get(name)) for name in ("job_id", "nodes"))
        known.update(words_of(self.attempt), **facts)
        run, point = os.path.basename(self.run), "%s/%s" % (os.path.basename(self.sweep), self.point)
        return new_event(kind, known.pop("run", run if self.point is None else point), self.settings, **known)

    def started(self) -> None:
        """The start of a run, or of the first point of a sweep."""
        if "start" not in self.wanted or self.number > 1:
            return
        if self.alone:
            record_event(self.run, "start", self.event("start"))
        else:
            record_event(self.sweep, "start", self.event("start", run=os.path.basename(self.sweep)))

    def follow(self, parent: int) -> None:
        """Send the start, then watch the log until the script ends."""
        born = start_of(parent)
        self.started()
        folder = self.run if self.alone else self.sweep
        self.deliver(folder)
        steps = self.alone and "first_step" in self.wanted and "step" in self.log.patterns
        silence = self.settings.get("no_progress_s") if self.alone and "no_progress" in self.wanted else None
        steps = steps and not os.path.exists(os.path.join(self.run, "notify", "first_step.json"))
        last = tried = time.time()
        told = False
        ended = os.path.join(self.attempt, "end.json")
        while (steps or silence) and born is not None and start_of(parent) == born and not os.path.exists(ended):
            time.sleep(min(LOOK_S, (silence or LOOK_S) / 4.0))
            now = time.time()
            if self.log.look():
                last, told = now, False
            if steps and self.log.found.get("step") is not None:
                steps = False
                record_event(self.run, "first_step", self.event("first_step"))
                self.deliver(self.run)
            if silence and not told and now - last >= silence:
                told = True
                self.silent(now - last)
            if now - tried >= RETRY_S:
                tried = now
                self.deliver(folder)

    def silent(self, seconds: float) -> None:
        """One message for each silence of the run: its number is the time at which it began, in seconds."""
        what = "no new step" if "step" in self.log.patterns else "no output of rank 0"
        reason = "%s for %d min" % (what, seconds / 60) if seconds >= 120 else "%s for %d s" % (what, seconds)
        name = "no_progress-%d" % (time.time() - seconds)
        record_event(self.run, name, self.event("no_progress", state="RUNNING", reason=reason))
        self.deliver(self.run)

    def end(self, code: int) -> None:
        """The end of the job: of the run, where the training is done; where nothing continues it, also that."""
        self.started()
        self.log.look()
        end = read(os.path.join(self.attempt, "end.json"))
        if code == 0 and not end.get("warned"):
            self.over("COMPLETED")
        elif os.path.exists(os.path.join(self.attempt, "cancel.json")):
            self.over("CANCELLED")
        elif self.alone and self.wanted & {"end", "stop"} and not self.continues():
            reason = "the job ended with exit code %d" % code
            reason += " by SIG%s" % end["signal"] if end.get("signal") else ""
            failed = read(os.path.join(self.attempt, "roles.json")).get("failed")
            reason += ": role %s %s" % (failed["name"], failed["why"]) if failed else ""
            advice = "the next hpc-launch command decides whether it continues"
            left = self.event("left", state="ENDED", reason=reason, advice=advice)
            record_event(self.run, "left-%d" % self.number, left)
        self.deliver(self.run)
        if not self.alone:
            self.deliver(self.sweep)

    def continues(self) -> bool:
        """Whether the run goes on without a person, or somebody else decides about it soon."""
        following = os.path.join(os.path.dirname(self.attempt), "%03d" % (self.number + 1))
        told = os.path.join(self.run, "notify", "end-%d.json" % self.number)
        if os.path.exists(following) or os.path.exists(told):
            return True
        if self.plan.get("scheduler") != "slurm" and os.path.exists(os.path.join(self.run, "after.sh")):
            return True  # its supervisor runs a driver now
        others = ("successor.json", "sentinel", "verdict.json")
        return any(os.path.exists(os.path.join(self.attempt, name)) for name in others)

    def over(self, state: str) -> None:
        """The end of the run; of a sweep, if it is the last point."""
        if not self.alone:
            point_over(self.sweep, str(self.point), state, self.settings, self.plan.get("site"))
        elif "end" in self.wanted:
            record_event(self.run, "end-%d" % self.number, self.event("end", state=state))


def plan_of(attempt: str) -> Dict[str, Any]:
    """The plan of an attempt; of the one before it where Slurm requeued the job."""
    folder, number = os.path.dirname(attempt), int(os.path.basename(attempt))
    for one in range(number, max(number - 50, 0), -1):
        plan = read(os.path.join(folder, "%03d" % one, "plan.json"))  # type: Dict[str, Any]
        if plan:
            return plan
    return {}
