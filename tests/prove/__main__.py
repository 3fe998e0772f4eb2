"""`python -m tests.prove PART`: the proofs that take longer than the tests. Each goes on where it was interrupted."""

from __future__ import annotations

import argparse
import importlib
import sys

from tests.cluster.roots import SYSTEMS
from tests.prove.rounds import Rounds
from tests.prove.state import PLACE, State

PARTS = {
    **{
        name: name for name in ("matrix", "drivers", "restart", "inside", "killed", "goodput", "sweep", "pages", "logs")
    },
    "nodes": "node_check",
    "ssh-kills": "ssh_kills",
    "ssh-faults": "ssh_faults",
    "grid": "grid.play",
    "role-deaths": "roles.deaths",
    "role-pairs": "roles.pairs",
    "role-times": "roles.times",
}
"""Each part of the proof, and its module."""


def main() -> int:
    """Run a part; ends with 1 if anything in it failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("part", choices=PARTS)
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
        help="rounds of `drivers` and `killed` (200), `ssh-kills` and those of roles (100), `sweep` (50), "
        "events of `inside` (20), healthy nodes (50)",
    )
    parser.add_argument("--again", action="store_true", help="forget what is known of this part")
    parser.add_argument("--system", choices=sorted(SYSTEMS), help="run the matrix on the Slurm of this Debian")
    args = parser.parse_args()
    # Each system has a state file of its own.
    state = State(PLACE / f"state-{args.system}.json") if args.system else State()
    rounds = Rounds(state, args.rows, args.rounds, args.workers, args.again, args.system)
    return int(importlib.import_module(f"tests.prove.{PARTS[args.part]}").prove(rounds))


if __name__ == "__main__":
    sys.exit(main())
