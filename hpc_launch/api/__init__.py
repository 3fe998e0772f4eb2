"""The Python API: `import hpc_launch as hl`. The command line is built on it; its page is docs/reference/python.md."""
