"""The state of a run, from its own files and the scheduler."""
