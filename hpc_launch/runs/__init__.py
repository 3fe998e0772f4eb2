"""A run on disk and in time: its folder, journal and attempts, submitting them once, and telling their state."""
