"""Where the time of a run goes, and why a running training is slow: from records, samples and logs."""
