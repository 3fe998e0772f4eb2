"""The model that a job trains: its sizes, its number of parameters, and where they are read from."""
