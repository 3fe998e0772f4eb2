"""The files of a run folder: one type, one reader and one writer for each."""
