"""How a run continues after an attempt has ended: the diagnosis, the verdict, and the next attempt."""
