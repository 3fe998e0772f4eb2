"""Running the rows: side by side, each on its cluster, the outcome of each kept as soon as it is there."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster import Cluster
from tests.prove import rows_nodes, rows_program, rows_slurm, rows_storage
from tests.prove.judge import judge
from tests.prove.rounds import Rounds
from tests.prove.row import Outcome, Row
from tests.prove.scene import TRAINING, Scene, read_record
from tests.prove.state import State, keep_remains
from tests.slurm.user import User

if TYPE_CHECKING:
    from typing_extensions import Self


_PARTS = {
    "Nodes and network": rows_nodes.ROWS,
    "The training": rows_program.ROWS,
    "Storage and software": rows_storage.ROWS,
    "Slurm and its people": rows_slurm.ROWS,
}
GROUPS = {title: [row.key for row in rows] for title, rows in _PARTS.items()}
ROWS = {row.key: row for rows in _PARTS.values() for row in rows}
QUICK = [row for row in ROWS.values() if row.quick]
"""Those of which the usual tests run some."""
SHAPE = ("steps", "micro_batch_size", "gradient_accumulation_steps")
"""The arguments of a training on which its loss depends."""


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

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the clusters that it started and still has."""
        for cluster in self._kept.values():
            if cluster is not self._given:
                cluster.stop()

    def _cluster(self, row: Row) -> Cluster:
        """The cluster of a row: shared, its own, or the one with cgroups, as there can be but one of these."""
        if row.cluster is None:
            return self._keep("", {})
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
        reference = None if row.loss is None else undisturbed(row)
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


def undisturbed(row: Row) -> float:
    """The final loss of a training of the row's shape that nothing disturbs: two ranks on this machine."""
    shape = [f"--{name}={row.args[name]}" for name in SHAPE if name in row.args]
    with tempfile.TemporaryDirectory() as place, socket.create_server(("127.0.0.1", 0)) as free:
        port, record = free.getsockname()[1], Path(place, "record")
        free.close()
        command = [sys.executable, str(TRAINING), f"--folder={place}", f"--record={record}", "--pause=0", *shape]
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        ranks = [subprocess.Popen(command, env={**env, "RANK": rank}, stdout=subprocess.DEVNULL) for rank in "01"]
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0], "the undisturbed training failed"
        return float([line for line in read_record(record) if line.what == "step"][-1].words[1])


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
