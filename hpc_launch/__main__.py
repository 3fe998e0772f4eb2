"""`python -m hpc_launch`: the same as `hpc-launch`."""

from hpc_launch.cli.main import main

if __name__ == "__main__":
    main()
