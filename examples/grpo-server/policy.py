"""A policy over the digits: which digit follows which."""

from __future__ import annotations

import torch

DIGITS = 10


class Policy(torch.nn.Module):
    """The probability of each next digit, given the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(DIGITS, DIGITS))

    def forward(self, last: torch.Tensor) -> torch.distributions.Categorical:
        """The distribution of the digit after each of `last` (any shape)."""
        return torch.distributions.Categorical(logits=self.logits[last])


def sample(policy: Policy, count: int, length: int) -> torch.Tensor:
    """`count` sequences of digits, (count, length), each from 0 on."""
    sequences = torch.zeros(count, length, dtype=torch.long)
    with torch.no_grad():
        for at in range(1, length):
            sequences[:, at] = policy(sequences[:, at - 1]).sample()
    return sequences
