"""A run as one HTML page: the output of `report`."""
