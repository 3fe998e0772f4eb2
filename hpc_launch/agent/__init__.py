"""Programs for the job, of which a run folder gets a copy: one file, `agent.pyz`.

Standard library of Python 3.6 or later. They import nothing else of hpc_launch, which no node needs to have.
"""

import os
from typing import List

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def program(name: str, *, isolated: bool = True) -> List[str]:
    """The arguments of Python that start another program of the agent."""
    if not os.path.isfile(_ROOT):
        return ["-m", "hpc_launch.agent", name]
    return [*(["-I"] if isolated else []), _ROOT, name]
