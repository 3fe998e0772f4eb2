"""Prepare jobs and attempts for submission: what the verbs call."""
