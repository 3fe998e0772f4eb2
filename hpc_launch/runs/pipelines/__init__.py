"""Pipelines: stages that are runs or sweeps, each submitted once those that it waits for are over."""
