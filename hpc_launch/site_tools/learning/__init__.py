"""Draft a site profile from the cluster itself."""
