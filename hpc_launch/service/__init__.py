"""What a user can do with jobs and runs, without a command line: submit, follow, resubmit, cancel, diagnose, drill."""
