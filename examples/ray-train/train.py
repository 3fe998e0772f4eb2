"""Fit a line on all nodes of a Ray cluster: each trial with another learning rate, on one node after the other."""

from __future__ import annotations

import argparse
import random

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=1)
def trial(rate: float) -> tuple[float, float, str]:
    """The rate, the loss after some steps of gradient descent on y = 3x, and the node."""
    weight, loss = 0.0, 0.0
    for _ in range(100):
        x = random.random()
        error = weight * x - 3 * x
        weight, loss = weight - rate * error * x, error * error
    return rate, loss, ray.get_runtime_context().get_node_id()


def main() -> None:
    """Run the trials, and say which rate was best and how many nodes took part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=12)
    trials = parser.parse_args().trials
    ray.init(log_to_driver=False)
    nodes = len(ray.nodes())
    group = placement_group([{"CPU": 1}] * nodes, strategy="STRICT_SPREAD")  # one CPU of each node
    waiting = []
    for number in range(trials):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number % nodes)
        waiting.append(trial.options(scheduling_strategy=place).remote(0.1 * (number + 1)))
    found = []
    while waiting:
        (done,), waiting = ray.wait(waiting)
        found.append(ray.get(done))
        print(f"trial {len(found)}/{trials} loss {found[-1][1]:.4f}", flush=True)
    rate, loss, _ = min(found, key=lambda one: one[1])
    print(f"best rate {rate:.1f}, loss {loss:.4f}, on {len({node for _, _, node in found})} nodes", flush=True)


if __name__ == "__main__":
    main()
