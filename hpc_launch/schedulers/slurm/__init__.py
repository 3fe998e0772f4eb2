"""Slurm: the only place of the project that runs Slurm's commands, and the bridge to Submitit."""
