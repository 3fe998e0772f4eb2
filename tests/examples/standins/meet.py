"""What each stand-in does in place of training: the processes meet, add up a number, and say who they are.

A line `STANDIN {…}` of each process holds its ranks, its host, the sum over all, and the options as its parser read
them. Nothing here knows of hpc-launch.
"""

import json
import os
from collections.abc import Mapping
from typing import Any


def meet(options: Mapping[str, Any]) -> None:
    """Meet the others by the usual variables, add up rank + 1, and print the line."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    said = {
        "rank": dist.get_rank(),
        "world": dist.get_world_size(),
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "host": os.uname().nodename,
        "sum": total.item(),
        "folder": os.getcwd(),
        "options": {name: value for name, value in options.items() if value is not None},
    }
    print("STANDIN " + json.dumps(said, default=str), flush=True)
    dist.barrier()
    dist.destroy_process_group()
