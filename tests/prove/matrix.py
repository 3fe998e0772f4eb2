"""Running the rows: side by side, each on its cluster, the outcome of each kept as soon as it is there."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tests.cluster import Cluster
from tests.prove.judge import judge, total
from tests.prove.rounds import Rounds
from tests.prove.row import Outcome, Row
from tests.prove.rows import ROWS
from tests.prove.scene import Scene
from tests.prove.state import State, keep_remains
from tests.slurm.user import User

if TYPE_CHECKING:
    from typing_extensions import Self


class Matrix:
    """Rows on clusters."""

    def __init__(self, state: State, shared: Cluster | None = None, *, system: str | None = None) -> None:
        """Take a cluster to share, or start one when the first row needs it.

        `system`: run inside another Debian with another Slurm, a name in `roots.SYSTEMS`.
        """
        self.state = state
        self._options = {"gpus_per_node": 0, "system": system}
        self._kept: dict[str, Cluster] = {} if shared is None else {"": shared}
        self._given = shared
        self._lock = threading.Lock()
        self._references: dict[str, threading.Lock] = {}

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the clusters that it started and still has."""
        for cluster in self._kept.values():
            if cluster is not self._given:
                cluster.stop()

    @property
    def shared(self) -> Cluster:
        """The cluster of the rows that break nothing."""
        return self._keep("", {})

    def _cluster(self, row: Row) -> Cluster:
        """The cluster of a row: shared, its own, or the one with cgroups, as there can be but one of these."""
        if row.cluster is None:
            return self.shared
        if row.cluster.get("cgroups"):
            return self._keep("cgroups", row.cluster)
        return Cluster.start(**{**self._options, **row.cluster})

    def _keep(self, name: str, options: dict[str, Any]) -> Cluster:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = Cluster.start(**{**self._options, **options})
            return self._kept[name]

    def run(self, rows: Iterable[Row], workers: int) -> list[Outcome]:
        """All rows, so many at a time."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.run_row, rows))

    def run_row(self, row: Row) -> Outcome:
        """One row, whatever happens in it."""
        row = row.fresh()
        began, scene, cluster = time.monotonic(), None, None
        try:
            cluster = self._cluster(row)
            scene = Scene(row, User(cluster, cluster.user_folder(f"{row.key}-")))
            outcome = self._play(scene)
        except Exception as error:  # a row that breaks is a row that failed
            outcome = Outcome(row.key, faults=[f"{type(error).__name__}: {error}"])
            outcome.folder = traceback.format_exc(limit=-3)
        finally:
            took = time.monotonic() - began
        outcome.took_s = round(took, 1)
        with suppress(Exception):
            if scene is not None and not outcome.ok:
                keep_remains(scene.user, scene.row.key)
            if cluster is not None and cluster not in self._kept.values():
                cluster.stop()
        self.state.keep("rows", row.key, asdict(outcome))
        mark = "ok  " if outcome.ok else "FAIL"
        told = (
            f"{outcome.found} {outcome.verdict} attempts {outcome.attempts} {outcome.state} resumed {outcome.resumed_s}"
        )
        print(f"{mark} {row.key:20} {outcome.took_s:6.1f} s  {told}", *outcome.faults, sep="\n       ", flush=True)
        return outcome

    def _play(self, scene: Scene) -> Outcome:
        row = scene.row
        reference = None if row.loss is None else self._reference(row)
        scene.profile()
        row.before(scene)
        done = scene.submit()
        if done.returncode != row.exit_code or not scene.run:
            raise AssertionError(f"submit ended with {done.returncode}: {done.stderr.strip()}")
        driver = scene.user.popen("watch", scene.run["run"]) if row.exit_code == 0 else None
        try:
            scene.act()
            status = scene.finish(driver, row.seconds)
        finally:
            if driver is not None and driver.poll() is None:
                scene.cluster.kill_tree(driver)
        return judge(scene, status, reference)

    def _reference(self, row: Row) -> float:
        """The final loss of an undisturbed run of the same shape, on the cluster too; run once for each shape."""
        plain = {key: value for key, value in row.args.items() if not key.startswith("fault") and key != "patience"}
        plain |= {"pause": 0.05}
        bare = replace(row, key="undisturbed", args=plain, job={**row.job, "sbatch": None, "memory": None}, profile=())
        probe = Scene(bare, User(self.shared, self.shared.user_folder("undisturbed-")))
        job = probe.job(queue=None, time="00:10:00", retry=1, checkpoint=None, container=None)
        counts = {key: value for key, value in plain.items() if key not in ("pause", "every", "listen")}
        shape = json.dumps([job["launcher"], job["nodes"], job["processes_per_node"], counts])
        with self._lock:
            lock = self._references.setdefault(shape, threading.Lock())
        with lock:
            if shape not in self.state.data["references"]:
                done = probe.user.launch("submit", probe.user.job(json.dumps(job)), "--wait")
                last = [line for line in probe.record() if line.what == "step" and int(line.words[0]) == total(probe)]
                if done.returncode != 0 or not last:
                    raise AssertionError(f"the undisturbed run failed: {done.stdout[-800:]} {done.stderr[-800:]}")
                self.state.keep("references", shape, float(last[-1].words[1]))
            return float(self.state.data["references"][shape])


def prove(rounds: Rounds) -> int:
    """The rows that are named, or all that have not succeeded yet."""
    keys = rounds.left("rows", ROWS)
    # Those that only wait for Slurm first: others compute meanwhile.
    keys.sort(key=lambda key: ROWS[key].cluster is None)
    with Matrix(rounds.state, system=rounds.system) as proof:
        outcomes = proof.run([ROWS[key] for key in keys], rounds.workers)
    failed = [outcome.key for outcome in outcomes if not outcome.ok]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} rows as expected", *failed, sep="\n  failed: ")
    return 1 if failed else 0
