"""The two ways to train on many processes: PyTorch's DDP and DeepSpeed's ZeRO.

Both have the same interface: `train_step` does one optimizer step and returns this rank's loss, `save` writes
this rank's part of a checkpoint, and `load` reads it back and returns the extra values saved with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLIP = 1.0


class Engine(Protocol):
    """The interface that the training loop uses."""

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor, lr: float) -> torch.Tensor: ...
    def save(self, folder: Path, extra: dict[str, Any]) -> None: ...
    def load(self, folder: Path) -> dict[str, Any]: ...


class Ddp:
    """Every rank holds the whole model; gradients are averaged over all ranks after each backward pass."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        self.optimizer = optimizer
        self.device = device
        self._settle_buckets()

    def _settle_buckets(self) -> None:
        # DDP sends gradients in buckets and rebuilds the buckets after its first backward pass, in the order in
        # which the gradients arrived. A different layout sums the gradients in a different order, which changes
        # the last bits: the first step of a resumed run would differ from that step of an uninterrupted run.
        # One backward pass without an optimizer step gives every run the final layout before its first step.
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.model(token, token).backward()
        self.optimizer.zero_grad()

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor, lr: float) -> torch.Tensor:
        _set_lr(self.optimizer, lr)
        loss: torch.Tensor = self.model(inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.detach()

    def save(self, folder: Path, extra: dict[str, Any]) -> None:
        if dist.get_rank() == 0:  # all ranks hold the same state: one copy is enough
            state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**state, "extra": extra}, folder / "state.pt")

    def load(self, folder: Path) -> dict[str, Any]:
        state = torch.load(folder / "state.pt", map_location=self.device, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        extra: dict[str, Any] = state["extra"]
        return extra


class DeepSpeed:
    """ZeRO, configured by a JSON file: at stage 1, each rank keeps only its share of the optimizer state."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int, config_file: Path) -> None:
        # Imported here because training with DDP does not need DeepSpeed.
        import deepspeed
        from deepspeed import ops

        # On a CPU, DeepSpeed would compile a shared-memory all-reduce at its first start on every node, with that
        # node's C++ compiler. Gloo is used instead, so compute nodes need no compiler.
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
        config = json.loads(config_file.read_text(encoding="utf-8"))
        config["train_micro_batch_size_per_gpu"] = batch_size  # set by --batch-size, as with DDP
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=config, dist_init_required=False
        )

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor, lr: float) -> torch.Tensor:
        _set_lr(self.optimizer, lr)
        loss: torch.Tensor = self.engine(inputs, targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def save(self, folder: Path, extra: dict[str, Any]) -> None:
        self.engine.save_checkpoint(str(folder.parent), folder.name, client_state=extra, save_latest=False)

    def load(self, folder: Path) -> dict[str, Any]:
        extra: dict[str, Any]
        path, extra = self.engine.load_checkpoint(str(folder.parent), folder.name)
        if path is None:
            raise RuntimeError(f"DeepSpeed could not load {folder}")
        return extra


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
