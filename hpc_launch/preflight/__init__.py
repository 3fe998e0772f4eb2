"""Checks of a job before it runs: from the login node, in the queue, on the nodes."""
