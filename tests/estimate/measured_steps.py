"""Measured steps of published benchmarks, with the setups that they ran."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.estimate.gpu import Gpu, find_gpu
from hpc_launch.estimate.step_time import step_time, training_flops
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import ModelConfig

DATA = Path(__file__).with_name("data")


class MeasuredStep(Struct, frozen=True, kw_only=True):
    """A run, and its measured model FLOPS utilization or speed; more is faster."""

    dataset: str
    model: ModelConfig
    setup: TrainingSetup
    gpu: Gpu
    step_s: float

    def estimate(self) -> float:
        return step_time(self.model, self.setup, self.gpu)

    def utilization(self, step_s: float) -> float:
        return model_flops(self.model, self.setup) / (step_s * self.gpu.flops * self.setup.layout.world_size)


def model_flops(model: ModelConfig, setup: TrainingSetup) -> float:
    """Operations of a step without recomputation."""
    return training_flops(model, setup.sequence) * setup.sequence * setup.layout.global_batch


def _llama(  # noqa: PLR0917 - a table follows
    layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, tied: bool = False
) -> ModelConfig:
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        vocab=vocab,
        heads=heads,
        query_groups=groups,
        head_dim=hidden // heads,
        gated=True,
        tied=tied,
    )


TORCHTITAN = {
    "8": _llama(32, 4096, 14336, 32, 8, 128256),
    "70": _llama(80, 8192, 28672, 64, 8, 128256),
    "405": _llama(126, 16384, 53248, 128, 8, 128256),
}
NANOTRON = {
    "1.34": _llama(16, 2048, 8192, 32, 32, 131072, tied=True),
    "3.57": _llama(28, 3072, 8192, 32, 32, 131072, tied=True),
    "8.86": _llama(32, 4096, 14336, 32, 32, 131072),
    "80.0": _llama(80, 8192, 28672, 64, 64, 131072),
}
ALEPH_ALPHA = {
    "13": _llama(40, 5120, 13824, 40, 40, 128000),
    "30": _llama(60, 6656, 17920, 52, 52, 128000),
    "65": _llama(80, 8192, 22016, 64, 64, 128000),
}


def gpu(name: str, memory: int) -> Gpu:
    found = find_gpu([name], memory=memory, per_node=8)
    assert isinstance(found, Gpu)
    return found


def rows(name: str) -> Iterator[dict[str, str]]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    yield from csv.DictReader(line for line in lines if not line.startswith("#"))


def torchtitan() -> Iterator[MeasuredStep]:
    card = replace(gpu("h100", 80 * 1024), memory_bandwidth=2.4e12)
    for row in rows("step_time_torchtitan.csv"):
        pp, world, sequence = int(row["pp"]), int(row["gpus"]), int(row["sequence"])
        tp, cp = int(row["tp"]), int(row["cp"])
        replicas = world // (tp * pp * cp)
        batch = int(row["local_batch"])
        parallel = Parallel(
            tp=tp,
            pp=pp,
            cp=cp,
            vpp=int(row["vpp"]) if row["vpp"] else None,
            sequence_parallel=tp > 1,
            micro_batch=1 if pp > 1 else batch,
            global_batch=batch * replicas,
        )
        setup = TrainingSetup(
            layout=ParallelLayout(parallel, world),
            sequence=sequence,
            sharding="fsdp2",
            precision="fp8" if row["precision"] == "fp8" else "bf16",
            recompute="full" if row["recompute"] == "full" else "selective",
            compiled=row["compiled"] == "1",
        )
        seconds = batch * replicas * sequence / world / float(row["tokens_gpu_s"])
        yield MeasuredStep(dataset="torchtitan", model=TORCHTITAN[row["model"]], setup=setup, gpu=card, step_s=seconds)


def nanotron() -> Iterator[MeasuredStep]:
    card = gpu("h100", 80 * 1024)
    for row in rows("step_time_nanotron.csv"):
        dp, tp, pp, micro = int(row["dp"]), int(row["tp"]), int(row["pp"]), int(row["micro_batch"])
        world, batch = int(row["gpus"]), dp * micro * int(row["accumulation"])
        parallel = Parallel(tp=tp, pp=pp, sequence_parallel=tp > 1, overlap=True, micro_batch=micro, global_batch=batch)
        setup = TrainingSetup(
            layout=ParallelLayout(parallel, world),
            sequence=4096,
            sharding="zero1" if row["zero"] == "1" else "none",
            framework="megatron",
        )
        model = NANOTRON[row["model"]]
        work = model_flops(model, setup)
        # nanotron counts the whole attention matrix (get_flops of its models), not the half below the diagonal.
        work += 3 * model.layers * 2 * model.hidden * 4096 * 4096 * batch
        seconds = work / (float(row["mfu"]) / 100 * card.flops * world)
        yield MeasuredStep(dataset="nanotron", model=model, setup=setup, gpu=card, step_s=seconds)


def aleph_alpha() -> Iterator[MeasuredStep]:
    card = gpu("a100", 80 * 1024)
    for row in rows("step_time_aleph_alpha.csv"):
        sequence, world = int(row["sequence"]), int(row["gpus"])
        parallel = Parallel(
            tp=int(row["tp"]),
            pp=int(row["pp"]),
            sequence_parallel=row["sequence_parallel"] == "1" and row["tp"] != "1",
            micro_batch=int(row["micro_batch"]),
            global_batch=2048 if sequence == 2048 else 512,
        )
        setup = TrainingSetup(
            layout=ParallelLayout(parallel, world),
            sequence=sequence,
            sharding="zero1",
            framework="megatron",
            recompute="full" if row["recompute"] == "full" else "none",
            compiled=row["fused_norm"] == "1",
        )
        yield MeasuredStep(
            dataset=f"{row['model']}B, {sequence} tokens, {world} GPUs",
            model=ALEPH_ALPHA[row["model"]],
            setup=setup,
            gpu=card,
            step_s=float(row["step_s"]),
        )


def spearman(first: list[float], second: list[float]) -> float:
    """Rank correlation, with mean ranks for equal values."""
    one, two = _ranks(first), _ranks(second)
    mean = (len(one) - 1) / 2
    top = sum((a - mean) * (b - mean) for a, b in zip(one, two, strict=True))
    return top / math.sqrt(sum((a - mean) ** 2 for a in one) * sum((b - mean) ** 2 for b in two))


def _ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
