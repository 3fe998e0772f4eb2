"""This machine as a scheduler: one supervisor process a job, for `--site local`."""
