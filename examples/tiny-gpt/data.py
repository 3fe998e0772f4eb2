"""The training text: the source code of the Python standard library, read as bytes.

Every machine that can run this example has that text already, so nothing is downloaded and no compute
node needs a network. A byte is a token, so there are 256 of them and no tokenizer.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

VOCABULARY = 256


def read_corpus(limit: int = 1_500_000) -> torch.Tensor:
    """Join the library's top-level modules in name order, up to `limit` bytes: the same on every rank."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class Batches:
    """Random windows of the text, chosen by (seed, step, rank) and by nothing else.

    There is no iterator whose position would have to be saved: whoever knows the step number can draw the
    batch, which is what makes a resumed run see exactly the batches that an undisturbed one would have seen.
    """

    def __init__(self, corpus: torch.Tensor, *, batch_size: int, context: int, seed: int) -> None:
        if len(corpus) <= context + 1:
            raise ValueError(f"the text has {len(corpus)} bytes, too few for windows of {context}")
        self.corpus = corpus
        self.batch_size = batch_size
        self.context = context
        self.seed = seed

    def at(self, step: int, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (the inputs, one byte on) of one rank at one step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step * world_size + rank)
        last = len(self.corpus) - self.context - 1
        starts = torch.randint(last, (self.batch_size, 1), generator=generator)
        windows = self.corpus[starts + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]
