"""Tests of hpc_launch.runs: real files, real processes, and a small scheduler of their own (fake.py)."""
