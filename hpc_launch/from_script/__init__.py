"""From an existing sbatch script to a job file. The script is read as text; nothing in it is ever run."""
