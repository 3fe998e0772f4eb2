"""The records in a run folder: one type, one reader and one writer per file."""
