"""Clusters that are reached by ssh: set one up, and run verbs there from a machine without Slurm."""
