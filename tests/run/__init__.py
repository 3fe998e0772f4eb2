"""Tests of hpc_launch.run: real files, real processes, and a small scheduler of their own (fake.py)."""
