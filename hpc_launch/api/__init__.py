"""The Python API: `import hpc_launch as hl`. The command line is built on it, and docs/python.md describes it."""
