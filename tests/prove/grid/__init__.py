"""Faults as a grid: what goes wrong, in whom, when, under which launcher; the right answer comes from principles."""
