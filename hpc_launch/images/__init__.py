"""Container runtimes: each wraps the command of a node, and says what srun and the environment need for it. Pure."""
