"""Container runtimes: each wraps the command of a node, and says what srun and the environment need for it, purely.

Building, pulling and looking into images is here too, with its effects.
"""
