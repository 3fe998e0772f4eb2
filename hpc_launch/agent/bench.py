"""Measure collectives on all nodes of a job, over message sizes. The node check compares pairs of nodes.

    python -m hpc_launch_bench --per-node N[,N...] [--seconds S]

Started like a training: by the job's own launcher, in its environment or image, with PyTorch. The first process writes
`bench.json` into the attempt's folder after each one. Bus bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md).
"""

import argparse
import datetime as dt
import json
import os
import socket
import time
from itertools import accumulate
from typing import Any, Callable, Dict, List, Tuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
GPU_SIZES = [4**power for power in range(5, 15)]
"""Bytes: 1 KiB to 256 MiB."""
CPU_SIZES = [4**power for power in range(5, 13)]
PART_S = {True: 0.2, False: 0.05}
"""Seconds of measuring for each size, with GPUs and without."""
Point = Tuple[int, float, float]
"""Bytes, seconds, bus bandwidth in GB/s (10**9 bytes)."""


def factor(collective: str, processes: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    share = (processes - 1) / processes
    return 2 * share if collective == "all-reduce" else share


def point(collective: str, processes: int, size: int, seconds: float) -> Point:
    """`size` is the data of a process for all-reduce; for the others, the gathered or not yet scattered data."""
    return size, seconds, size / seconds * factor(collective, processes) / 1e9


class Bench:
    """The measurement in one process. All processes take the same steps in the same order."""

    def __init__(self, file: str, per_node: List[int], seconds: float) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.file = torch, dist, file
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.gpu = torch.cuda.is_available()
        if self.gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group("nccl" if self.gpu else "gloo", timeout=dt.timedelta(seconds=120))
        self.device = torch.device("cuda" if self.gpu else "cpu")
        self.end = time.monotonic() + seconds
        counts = per_node if len(per_node) > 1 else per_node * (self.size // per_node[0])
        names = self.gathered(os.environ.get("SLURMD_NODENAME") or socket.gethostname())
        names = [names[rank] for rank in accumulate([0, *counts[:-1]])]
        self.record: Dict[str, Any] = {
            "nodes": [name if names.count(name) == 1 else "%s#%d" % (name, at) for at, name in enumerate(names)],
            "per_node": max(counts),
            "slots": counts if len(per_node) > 1 else [],
            "backend": "nccl" if self.gpu else "gloo",
            "tool": "PyTorch %s" % torch.__version__,
            "curves": {},
            "not_measured": {},
        }

    def gathered(self, value: Any) -> List[Any]:
        """The value of each process."""
        values: List[Any] = [None] * self.size
        self.dist.all_gather_object(values, value)
        return values

    def late(self) -> bool:
        """Whether the time is over; the same answer in all processes."""
        return bool(self.gathered(time.monotonic() > self.end)[0])

    def save(self) -> None:
        """Replace the file, which only the user can read."""
        if self.rank:
            return
        draft = "%s.%d" % (self.file, os.getpid())
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(self.record, stream)
        os.replace(draft, self.file)

    def run(self) -> None:
        """Measure each collective."""
        for collective in COLLECTIVES:
            if self.late():
                self.record["not_measured"][collective] = "out of time"
            else:
                points = self.curve(collective)
                self.record["curves"].update({collective: points} if points else {})
            self.save()

    def curve(self, collective: str) -> List[Point]:
        """The curve of one collective; an unsupported one fails before anything is sent."""
        points = []
        for size in GPU_SIZES if self.gpu else CPU_SIZES:
            try:
                call, real = self.operation(collective, size)
                seconds = self.timed(call)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                self.record["not_measured"][collective] = (str(error).splitlines() or ["failed"])[0][:200]
                break
            points.append(point(collective, self.size, real, seconds))
            if self.late():
                break
        return points

    def operation(self, collective: str, size: int) -> Tuple[Callable[[], Any], int]:
        """A call of the collective, and how many bytes it is about."""
        dist, part = self.dist, max(size // 4 // self.size, 1)
        whole = self.torch.ones(part * self.size, dtype=self.torch.float32, device=self.device)
        real = part * self.size * 4
        if collective == "all-reduce":
            return lambda: dist.all_reduce(whole), real
        own = self.torch.ones(part, dtype=self.torch.float32, device=self.device)
        if collective == "all-gather":
            return lambda: dist.all_gather_into_tensor(whole, own), real
        return lambda: dist.reduce_scatter_tensor(own, whole), real

    def timed(self, call: Callable[[], Any]) -> float:
        """Seconds of a call, in the mean over the calls and the processes."""
        for _ in range(2):
            call()
        began = self.now()
        call()
        mean = self.mean(self.now() - began)
        count = int(min(max(PART_S[self.gpu] / max(mean, 1e-6), 3), 200))
        self.dist.barrier()
        began = self.now()
        for _ in range(count):
            call()
        return self.mean((self.now() - began) / count)

    def now(self) -> float:
        """The time at which all calls have ended."""
        if self.gpu:
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def mean(self, value: float) -> float:
        """The mean over the processes: each has the same."""
        tensor = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(tensor)
        return max(float(tensor.item()) / self.size, 1e-9)


def main() -> None:
    """Measure, and report progress in the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-node", required=True)
    parser.add_argument("--seconds", type=float, default=420)
    args, _ = parser.parse_known_args()  # DeepSpeed adds --local_rank
    file = os.path.join(os.environ["HPC_LAUNCH_ATTEMPT_DIR"], "bench.json")
    bench = Bench(file, list(map(int, args.per_node.split(","))), args.seconds)
    bench.run()
    bench.dist.barrier()
    bench.dist.destroy_process_group()


if __name__ == "__main__":
    main()
