"""From what a user has, an sbatch script or a training's source, to a job file. Neither is ever run."""
