"""From a plan to the text of a script, through slurm_templates/: launchers, the step that starts them, the rest."""
