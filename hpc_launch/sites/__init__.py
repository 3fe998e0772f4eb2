"""Site profiles: what differs from cluster to cluster, found on a search path and read as data."""
