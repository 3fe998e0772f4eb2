"""Measurements as ratios within one run; their last results lie beside them."""
