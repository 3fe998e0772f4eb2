"""A launcher, a container runtime and a scheduler for hpc-launch."""
