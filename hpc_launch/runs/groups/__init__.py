"""Groups of runs: sweeps, whose points are submitted together as job arrays, and pipelines, whose stages are runs or
sweeps, each submitted once those that it waits for are over.
"""
