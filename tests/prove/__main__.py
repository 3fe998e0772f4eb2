"""`python -m tests.prove PART`: the proofs that take longer than the tests. Each goes on where it was interrupted."""

from __future__ import annotations

import argparse
import importlib
import sys

from tests.cluster.roots import SYSTEMS
from tests.prove.matrix import PLACE, Matrix, State
from tests.prove.rounds import Rounds
from tests.prove.rows import ROWS

PARTS = {
    **{name: name for name in ("drivers", "restart", "inside", "killed", "goodput", "sweep", "pages")},
    "nodes": "node_check",
    "ssh-kills": "ssh_kills",
    "ssh-faults": "ssh_faults",
    "grid": "grid.play",
}
"""Each part of the proof, and its module."""


def main() -> int:
    """Run a part; ends with 1 if anything in it failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("part", choices=("matrix", *PARTS))
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help="rows of the matrix or `ssh-faults`, jobs of `nodes`, events of `inside`, or rounds of the other parts",
    )
    parser.add_argument("--workers", type=int, default=3, help="rows or rounds side by side (default 3)")
    parser.add_argument(
        "--rounds",
        type=int,
        help="rounds of `drivers` and `killed` (200), `ssh-kills` (100), `sweep` (50), events of `inside` (20), "
        "healthy nodes (50)",
    )
    parser.add_argument("--again", action="store_true", help="forget what is known of this part")
    parser.add_argument("--system", choices=sorted(SYSTEMS), help="run the matrix on the Slurm of this Debian")
    args = parser.parse_args()
    if args.part == "matrix":
        return matrix(args.rows, args.workers, again=args.again, system=args.system)
    rounds = Rounds(State(), args.rows, args.rounds, args.workers, args.again)
    return int(importlib.import_module(f"tests.prove.{PARTS[args.part]}").prove(rounds))


def matrix(names: list[str], workers: int, *, again: bool, system: str | None) -> int:
    """The rows that are named, or all that have not succeeded yet. Each system has a state file of its own."""
    state = State(PLACE / f"state-{system}.json") if system else State()
    if unknown := set(names) - set(ROWS):
        print(f"no such rows: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    done = {key for key, row in state.data["rows"].items() if row["ok"]}
    keys = names or [key for key in ROWS if again or key not in done]
    # Those that only wait for Slurm first: others compute meanwhile.
    keys.sort(key=lambda key: -ROWS[key].seconds - (100 if ROWS[key].cluster else 0))
    with Matrix(state, system=system) as proof:
        outcomes = proof.run([ROWS[key] for key in keys], workers)
    failed = [outcome.key for outcome in outcomes if not outcome.ok]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} rows as expected", *failed, sep="\n  failed: ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
