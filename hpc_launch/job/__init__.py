"""The job file: YAML with positions, units, the typed job and the merge of layers."""
