"""Benchmarks that report ratios measured in one run. The latest results are in the .md files beside them."""
