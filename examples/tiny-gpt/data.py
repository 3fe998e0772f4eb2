"""The training text: the source code of the Python standard library, read as bytes.

Every machine that can run this example already has that text, so nothing is downloaded and compute nodes
need no internet access. Each byte is a token: there are 256 tokens and no tokenizer.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

VOCABULARY = 256


def read_corpus(limit: int = 1_500_000) -> torch.Tensor:
    """Join the library's top-level modules in name order, up to `limit` bytes. The result is the same on every rank."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class Batches:
    """Random windows of the text, which depend only on (seed, step, rank).

    There is no iterator position to save: the step number determines the batch. A resumed run therefore sees
    exactly the batches that an uninterrupted run would see.
    """

    def __init__(self, corpus: torch.Tensor, *, batch_size: int, context: int, seed: int) -> None:
        if len(corpus) <= context + 1:
            raise ValueError(f"the text has {len(corpus)} bytes, too few for windows of {context}")
        self.corpus = corpus
        self.batch_size = batch_size
        self.context = context
        self.seed = seed

    def at(self, step: int, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets (the inputs shifted by one byte) of one rank at one step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step * world_size + rank)
        last = len(self.corpus) - self.context - 1
        starts = torch.randint(last, (self.batch_size, 1), generator=generator)
        windows = self.corpus[starts + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]
