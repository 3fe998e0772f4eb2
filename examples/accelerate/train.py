"""A small classifier, written like code for `accelerate launch`; compare Accelerate's nlp_example.py.

`Accelerator()` reads everything from the environment: the ranks, set by torchrun, and the variables that `accelerate
launch` would set from its file (ACCELERATE_*, FSDP_*). The data is synthetic, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.util

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS = 8


def compile_nothing_on_cpus() -> None:
    """Prevent DeepSpeed from compiling a CPU operator, which takes a minute and a compiler. GPUs do not need it."""
    if not torch.cuda.is_available() and importlib.util.find_spec("deepspeed"):
        from deepspeed import ops

        ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main() -> None:
    """Train on rows of words whose class follows from the first two."""
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument(
        "--mixed_precision", choices=["no", "fp16", "bf16", "fp8"], help="default: ACCELERATE_MIXED_PRECISION"
    )
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output_dir", help="where to save the model; not saved by default")
    options = parser.parse_args()

    compile_nothing_on_cpus()
    if options.cpu:  # not passed to Accelerator(), which would then not use DeepSpeed
        PartialState(cpu=True)
    accelerator = Accelerator(mixed_precision=options.mixed_precision)
    set_seed(42)
    words = torch.randint(WORDS, (512, 4))
    classes = 2 * (words[:, 0] >= WORDS // 2).long() + (words[:, 1] >= WORDS // 2).long()
    loader = DataLoader(TensorDataset(words, classes), batch_size=16, shuffle=True)
    layers = (nn.Embedding(WORDS, 16), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    print(
        f"rank {accelerator.process_index} of {accelerator.num_processes}, {accelerator.distributed_type.value}, "
        f"precision {accelerator.mixed_precision}",
        flush=True,
    )
    loss = torch.zeros(())
    for epoch in range(1, options.epochs + 1):
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch).float(), wanted)
            accelerator.backward(loss)
            optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean")
        if accelerator.is_main_process:  # accelerator.print() would print on each node
            print(f"epoch {epoch}/{options.epochs}: loss {mean.item():.4f}", flush=True)
    if options.output_dir:
        accelerator.wait_for_everyone()
        accelerator.save_model(model, options.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()
