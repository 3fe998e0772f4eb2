"""A small training that is spread in one of several ways, and does the same steps in each: its losses can be compared.

Not a copy of the examples: those show how to train, this one shows whether a strategy computes what one process would.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32
SEED = 7


def main() -> None:
    """Train for a few steps in each way; rank 0 prints the loss of each step over the whole batch."""
    options = _options()
    torch.set_num_threads(1)
    for how in options.how.split(","):
        _train(how, options)
    rank = dist.get_rank() if dist.is_initialized() else 0
    if dist.is_initialized():
        dist.barrier()  # a process whose peer is gone already may abort in gloo's threads
        dist.destroy_process_group()
    if options.last_ends_with is not None:
        _await_warning(rank)
        if rank == int(os.environ["WORLD_SIZE"]) - 1:
            sys.exit(options.last_ends_with)
        time.sleep(60)  # to be ended because of the other


def _train(how: str, options: argparse.Namespace) -> None:
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    ways = {"alone": _alone, "ddp": _ddp, "fsdp": _fsdp, "deepspeed": _deepspeed, "accelerate": _accelerate}
    train = ways[how](model, options)
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    print(f"rank {rank} of {world} on host {os.uname().nodename}", flush=True)
    for step in range(1, options.steps + 1):
        inputs, targets = _batch(step, options.global_batch)
        mine = slice(rank * options.global_batch // world, (rank + 1) * options.global_batch // world)
        loss = torch.tensor(train(inputs[mine], targets[mine]))
        if world > 1:
            dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}/{options.steps} loss {loss.item() / world:.6f}", flush=True)


def _await_warning(rank: int) -> None:
    """Until the job is told to save and to end; a file says that this process waits for it."""
    open(f"{os.environ['HPC_LAUNCH_ATTEMPT_DIR']}/waits-{rank}", "w").close()
    for _ in range(600):
        if os.path.exists(os.environ["HPC_LAUNCH_STOP_FILE"]):
            print("rank", rank, "was warned", flush=True)
            return
        time.sleep(0.1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True, help="one way, or several in turn, with commas")
    parser.add_argument("--config")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--local_rank", type=int, help="DeepSpeed's launcher gives it")
    parser.add_argument("--last-ends-with", type=int, help="wait for the warning; then the last rank's exit code")
    return parser.parse_args()


def _batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of a step over all processes: the same whoever asks."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(size, WIDTH, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).sin()


Train = Callable[[torch.Tensor, torch.Tensor], float]


def _alone(model: nn.Module, options: argparse.Namespace) -> Train:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return train


def _ddp(model: nn.Module, options: argparse.Namespace) -> Train:
    _join()
    return _alone(nn.parallel.DistributedDataParallel(model), options)


def _join() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def _fsdp(model: nn.Module, options: argparse.Namespace) -> Train:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _join()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return _alone(fully_shard(model, mesh=mesh), options)


def _deepspeed(model: nn.Module, options: argparse.Namespace) -> Train:
    import deepspeed

    _without_compiler()
    deepspeed.init_distributed(dist_backend="gloo")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=options.config)
    print(
        f"stage {engine.zero_optimization_stage()}, batch {engine.train_batch_size()} = "
        f"{engine.train_micro_batch_size_per_gpu()} x {engine.gradient_accumulation_steps()} x {dist.get_world_size()}",
        flush=True,
    )

    def train(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        losses = []
        for start in range(0, len(inputs), options.micro_batch):
            part = slice(start, start + options.micro_batch)
            loss = nn.functional.mse_loss(engine(inputs[part]), targets[part])
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.item()))
        return sum(losses) / len(losses)

    return train


def _accelerate(model: nn.Module, options: argparse.Namespace) -> Train:
    """As a code for `accelerate launch` has it: all that is said of the strategy is in the environment."""
    from accelerate import Accelerator

    _without_compiler()
    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    stage = accelerator.state.deepspeed_plugin.zero_stage
    print(f"{accelerator.distributed_type}, stage {stage}, precision {accelerator.mixed_precision}", flush=True)

    def train(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        return float(loss.item())

    return train


def _without_compiler() -> None:
    """On a CPU DeepSpeed would compile an all-reduce of its own, with the C++ compiler of each node."""
    from deepspeed import ops

    ops.__compatible_ops__["deepspeed_shm_comm"] = False


if __name__ == "__main__":
    main()
