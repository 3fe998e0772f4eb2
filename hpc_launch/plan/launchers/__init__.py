"""The launchers: one module each, with a descriptor that all other code asks."""
