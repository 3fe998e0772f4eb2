"""How a run continues after an attempt has ended: the decision, and the next attempt."""
