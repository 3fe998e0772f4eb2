"""Sweeps: runs that differ in some values, submitted together as job arrays."""
