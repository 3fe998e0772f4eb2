"""Collect the evidence of an attempt from its run folder."""
