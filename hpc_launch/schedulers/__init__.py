"""Schedulers that run a job script: Slurm through Submitit, and the local machine."""
