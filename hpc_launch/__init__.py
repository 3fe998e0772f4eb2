"""hpc-launch: one YAML file in, a finished training run out, on any Slurm cluster."""

__version__ = "0.1.0"
