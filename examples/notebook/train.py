"""Minimize x² by gradient descent, and say how it goes."""

from __future__ import annotations

import argparse

LARGEST = 1e6


def main() -> None:
    """Take the steps; a learning rate above 1 diverges."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    x = 10.0
    for step in range(1, options.steps + 1):
        x -= options.lr * 2 * x
        print(f"step {step}/{options.steps} loss {x * x:.6g}", flush=True)
        if x * x > LARGEST:
            raise ValueError(f"the training diverges: x = {x:.3g}")


if __name__ == "__main__":
    main()
