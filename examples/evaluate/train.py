"""A stand-in for a training: finds that y = 3x + 1, and keeps a checkpoint of each step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

STEPS = 50


def main() -> None:
    """Fit a line by gradient descent."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    slope = intercept = 0.0
    for step in range(1, STEPS + 1):
        for x in (0.0, 0.5, 1.0):
            error = slope * x + intercept - (3 * x + 1)
            slope, intercept = slope - 0.3 * error * x, intercept - 0.3 * error
        (folder / f"step-{step}.json").write_text(json.dumps({"slope": slope, "intercept": intercept}))
        print(f"step {step}/{STEPS}", flush=True)


if __name__ == "__main__":
    main()
