"""Detect why a running training is slow, from the watcher's samples and the start of the logs."""
