"""The job file: YAML with positions, units, the typed job, the merge of layers with the origin of each value."""
