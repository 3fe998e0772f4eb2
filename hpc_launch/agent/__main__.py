"""Start a program of the agent: `python3 -I agent.pyz NAME ARGUMENTS`."""

import sys
from importlib import import_module


def main() -> None:
    """Import the module of that name alone, and run its `main`."""
    sys.exit(import_module("hpc_launch.agent." + sys.argv[1]).main(sys.argv[2:]))


if __name__ == "__main__":
    main()
