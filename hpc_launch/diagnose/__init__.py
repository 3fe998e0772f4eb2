"""From evidence to a verdict: what failed first, and what to do next. Pure: nothing here reads or writes a file."""
