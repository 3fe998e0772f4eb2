"""Render the script of a plan from slurm_templates/."""
