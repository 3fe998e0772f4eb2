"""Tools for site profiles: learn, check, compare and share them, and detect drift from the cluster."""
