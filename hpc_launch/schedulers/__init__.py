"""Who takes a finished script and runs it: Slurm through Submitit, or this machine."""
