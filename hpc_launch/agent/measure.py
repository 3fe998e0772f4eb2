"""Measure this node with the training's own Python and its PyTorch, for check_full.py.

    python measure.py <REQUESTS >ANSWERS

Reads a request per line of JSON and answers with a line. It imports PyTorch once; each request runs in processes that
it forks, one for each GPU or task, and kills at the request's limit: a collective that hangs cannot block the next
request. Only those processes initialise CUDA, which does not survive a fork.

On CPUs, products and copies count per second of CPU time, because what else runs on the node must not count.
"""

import datetime as dt
import json
import os
import re
import select
import signal
import statistics
import sys
import tempfile
import time
from typing import IO, Any, Callable, Dict, List, Tuple

from hpc_launch.agent.describe_host import interface_of

MATRIX_S, COPY_S, REDUCE_S = 1.0, 0.5, 1.5
"""How long each measurement repeats."""
SIZE, CPU_SIZE = 8192, 2048
COPY, CPU_COPY, HOST_COPY = 1 << 29, 1 << 27, 1 << 28
"""Bytes that are copied on a GPU, in the node's memory, and between both."""
FIRST, LAST, CPU_LAST = 1 << 20, 1 << 28, 1 << 24
"""Bytes of the smallest and the largest all-reduce."""
LINGER_S = 0.3
"""A process that exits at once could reset a connection before its peer has read everything."""
NETWORK = re.compile(r"NCCL INFO Using network (\S.*)")
Request = Dict[str, Any]
Tell = Callable[..., Any]


class Child:
    """One process of a request, and what it has reported."""

    def __init__(self, request: Request, local: int) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()
        self.pipe, write = os.pipe()
        self.data = b""
        self.ended = False
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(self.output.fileno(), 1)
                os.dup2(self.output.fileno(), 2)
                work(request, local, lambda **words: os.write(write, json.dumps(words).encode() + b"\n"))
            except BaseException as error:
                lines = str(error).strip().split("\n")
                os.write(write, json.dumps({"error": "%s: %s" % (type(error).__name__, lines[0][:200])}).encode())
            finally:
                os._exit(0)
        os.close(write)

    def answer(self) -> Dict[str, Any]:
        """Everything that the process reported; `late` if it had to be killed."""
        words: Dict[str, Any] = {"late": not self.ended}
        for line in self.data.decode("utf-8", "replace").split("\n"):
            try:
                words.update(json.loads(line))
            except ValueError:  # the process was killed while it wrote
                continue
        self.output.seek(0)
        network = NETWORK.search(self.output.read(1 << 20).decode("utf-8", "replace"))
        if network:
            words["network"] = network.group(1).strip()
        return words

    def end(self) -> None:
        """Kill the process. Waits for none: a driver may keep it for ever."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, os.WNOHANG)
        os.close(self.pipe)
        self.output.close()


def run(request: Request) -> List[Dict[str, Any]]:
    """Run a request in its processes, until all have ended or its time is over."""
    children = [Child(request, local) for local in range(request["processes"])]
    end = time.monotonic() + request["limit"]
    while time.monotonic() < end and not all(child.ended for child in children):
        waiting = {child.pipe: child for child in children if not child.ended}
        for pipe in select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))[0]:
            data = os.read(pipe, 1 << 16)
            waiting[pipe].data += data
            waiting[pipe].ended = not data
    answers = [child.answer() for child in children]
    for child in children:
        child.end()
    return answers


def work(request: Request, local: int, tell: Tell) -> None:
    """What one process measures: each value is reported at once."""
    import torch

    gpus, processes = request["gpus"], request["processes"]
    tell(during="start")
    if gpus:
        if not torch.cuda.is_available():
            tell(unavailable=True)
            return
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))
    place = "cuda:%d" % local if gpus else "cpu"
    if request["task"] == "measurement":
        tell(during="matrix product")
        tell(matrix=matrix(place))
        tell(during="copy in memory")
        tell(memory=copies(place, place, COPY if gpus else max(CPU_COPY // processes, 1 << 24)))
        if gpus:
            tell(during="copy between host and GPU")
            tell(host=min(copies("cpu", place, HOST_COPY), copies(place, "cpu", HOST_COPY)))
    if request["world"] > 1:
        tell(during="all-reduce")
        tell(all_reduce=all_reduce(request, request["first"] + local, place))


def timed(place: str) -> Tuple[Callable[[], float], Callable[[], None]]:
    """The clock for a device, and what waits until the device has done its work."""
    import torch

    if place != "cpu":
        return time.perf_counter, torch.cuda.synchronize
    threads = torch.get_num_threads()
    return (lambda: time.process_time() / threads), (lambda: None)


def rate(task: Callable[[], Any], place: str, amount: float, seconds: float) -> float:
    """Amount per second in units of 1e9: the median of repetitions, after the first."""
    clock, finish = timed(place)
    task()
    finish()
    rates: List[float] = []
    end = time.monotonic() + seconds
    while not rates or time.monotonic() < end:
        begin = clock()
        task()
        finish()
        rates.append(amount / max(clock() - begin, 1e-9) / 1e9)
    return round(statistics.median(rates), 3)


def matrix(place: str) -> float:
    """GFLOP/s of a product of matrices: in half precision on a GPU, in single precision on CPUs."""
    import torch

    size, kind = (CPU_SIZE, torch.float32) if place == "cpu" else (SIZE, torch.float16)
    one = torch.ones(size, size, device=place, dtype=kind)
    out = torch.ones(size, size, device=place, dtype=kind)
    return rate(lambda: torch.mm(one, one, out=out), place, 2.0 * size**3, MATRIX_S)


def copies(source: str, target: str, size: int) -> float:
    """GB/s of copies; a copy within one memory reads and writes each byte."""
    import torch

    pinned = source != target
    one = torch.empty(size, dtype=torch.uint8, device=source, pin_memory=pinned and source == "cpu")
    two = torch.empty(size, dtype=torch.uint8, device=target, pin_memory=pinned and target == "cpu")
    moved = float(size if pinned else 2 * size)
    return rate(lambda: two.copy_(one, non_blocking=True), target if source == "cpu" else source, moved, COPY_S)


def all_reduce(request: Request, rank: int, place: str) -> float:
    """Bus bandwidth in GB/s, as nccl-tests define it: the best of sizes and repetitions."""
    import torch
    import torch.distributed as dist

    world = request["world"]
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ.pop("NCCL_DEBUG_FILE", None)
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)
    own = interface_of(request["own"])  # Gloo would ask for the host's own name
    if own:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", own)
    dist.init_process_group(
        "gloo" if place == "cpu" else "nccl",
        init_method="tcp://%s:%d" % (request["address"], request["port"]),
        rank=rank,
        world_size=world,
        timeout=dt.timedelta(seconds=request["limit"]),
    )
    finish = timed(place)[1]
    best, size, spent = 0.0, FIRST, 0.0
    while size <= (CPU_LAST if place == "cpu" else LAST) and spent < REDUCE_S:
        for _ in range(3):
            one = torch.ones(size // 4, device=place)
            dist.all_reduce(one)
            if not float(one[0]) == float(one[-1]) == world:
                raise ValueError("wrong sum")
            begin = time.perf_counter()
            dist.all_reduce(one)
            finish()
            slowest = torch.ones(1, device=place) * (time.perf_counter() - begin)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)  # all have to decide alike
            seconds = float(slowest[0])
            spent += 2 * seconds
            best = max(best, size * 2.0 * (world - 1) / world / max(seconds, 1e-9) / 1e9)
        size *= 4
    time.sleep(LINGER_S)
    return round(best, 6)


def main(_: List[str]) -> None:
    """Import PyTorch, then answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(words: Dict[str, Any]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    try:
        import torch
    except Exception as error:
        say({"error": "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:200])})
        return
    say({"torch": str(torch.__version__)})
    for line in sys.stdin:
        say({"ranks": run(json.loads(line))})
