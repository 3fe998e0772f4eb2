"""From files to a prepared attempt, and from an ended attempt to the next: what the verbs call."""
