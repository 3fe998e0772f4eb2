"""Train the policy to count upwards, from samples of the server: the reward of a sequence is how often it counts on.

The advantage of a sequence is its reward against the others of its group, as in GRPO (arXiv:2402.03300).
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from policy import DIGITS, Policy


def ask(url: str, value: object) -> Any:
    """POST a value; the answer."""
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(value).encode()), timeout=60) as answer:
        return json.load(answer)


def main() -> None:
    """Train, and push the weights to the server after each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.5)
    for step in range(1, args.steps + 1):
        sequences = torch.tensor(ask(f"{args.server}/sample", {"count": 32, "length": 8}))
        rewards = (sequences[:, 1:] == (sequences[:, :-1] + 1) % DIGITS).float().mean(dim=1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        chances = policy(sequences[:, :-1]).log_prob(sequences[:, 1:]).sum(dim=1)
        loss = -(advantages * chances).mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(policy.logits.grad)
        optimizer.step()
        if dist.get_rank() == 0:
            ask(f"{args.server}/weights", policy.logits.tolist())
            print(f"step {step}/{args.steps} loss {loss.item():.4f} reward {rewards.mean():.3f}", flush=True)
            folder = Path(os.environ["HPC_LAUNCH_RUN_DIR"], "checkpoints")
            folder.mkdir(exist_ok=True)
            torch.save(policy.state_dict(), folder / f"step-{step}.pt")
        dist.barrier()  # the next samples of all ranks come from the new weights
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
