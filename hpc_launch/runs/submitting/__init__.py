"""Submit an attempt exactly once, and cancel a run."""
