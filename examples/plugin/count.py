"""Counts, saves, and may fail once: it stands for a training."""

import argparse
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Count from the newest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fail-at-step", type=int, help="fail there, in the first attempt")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds of a step")
    given = parser.parse_args()
    saved, rank = Path(os.environ["HPC_LAUNCH_RUN_DIR"], "saved"), int(os.environ["RANK"])
    began = max((int(path.name.removeprefix("step-")) for path in saved.glob("step-*")), default=0)
    print(f"rank {rank} of {os.environ['WORLD_SIZE']} begins after step {began}", flush=True)
    for step in range(began + 1, given.steps + 1):
        time.sleep(given.pause)
        print(f"step {step} of {given.steps}", flush=True)
        if step == given.fail_at_step and os.environ["HPC_LAUNCH_ATTEMPT"] == "1" and rank == 1:
            sys.exit("OSError: [Errno 5] Input/output error")
        if rank == 0:
            (saved / f"step-{step}").mkdir(parents=True, exist_ok=True)
            (saved / f"step-{step}" / "state.txt").write_text(str(step))


if __name__ == "__main__":
    main()
