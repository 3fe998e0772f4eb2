"""Models and trainings whose memory others published."""

from __future__ import annotations

from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.job.launcher import Parallel
from hpc_launch.job.model import ModelLatent
from hpc_launch.layouts.parallel_layout import ParallelLayout
from hpc_launch.model.model_config import Experts, ModelConfig

Row = dict[str, str]


def _dense(layers: int, heads: int, groups: int, ffn: int, vocab: int) -> ModelConfig:
    return ModelConfig(
        layers=layers,
        hidden=128 * heads,
        ffn=ffn,
        vocab=vocab,
        heads=heads,
        query_groups=groups,
        head_dim=128,
        gated=True,
        tied=False,
    )


def _deepseek(layers: int, hidden: int, ffn: int, vocab: int, experts: Experts) -> ModelConfig:
    latent = ModelLatent(query_rank=1536, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        vocab=vocab,
        heads=128,
        query_groups=128,
        head_dim=192,
        gated=True,
        tied=False,
        latent=latent,
        experts=experts,
    )


def simumax(row: Row) -> tuple[ModelConfig, TrainingSetup]:
    """A run of SimuMax's table: configs/models, cut to the given number of layers."""
    layers, tp, pp, cp = int(row["layers"]), int(row["tp"]), int(row["pp"]), int(row["cp"])
    models = {
        "llama3_70b": _dense(layers, 64, 8, 28672, 128256),
        "llama3_405b": _dense(layers, 128, 16, 53248, 128256),
        "deepseekv2": _deepseek(
            layers, 5120, 12288, 102400, Experts(count=160, per_token=6, ffn=1536, shared_ffn=3072, dense_layers=1)
        ),
        "deepseekv3": _deepseek(
            layers, 7168, 18432, 129280, Experts(count=256, per_token=8, ffn=2048, shared_ffn=2048, dense_layers=1)
        ),
    }
    replicas = 8 // (tp * pp * cp)
    parallel = Parallel(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=int(row["ep"]),
        sequence_parallel=tp > 1,
        global_batch=int(row["micro_batches"]) * replicas,
    )
    setup = TrainingSetup(
        layout=ParallelLayout(parallel, 8),
        sequence=int(row["sequence"]),
        sharding="distributed_optimizer",
        framework="megatron",
        fused_loss=True,
    )
    return models[row["model"]], setup


def torchtitan(row: Row) -> tuple[ModelConfig, TrainingSetup]:
    """A run of torchtitan's tables: Llama 3.1."""
    models = {
        "8b": _dense(32, 32, 8, 14336, 128256),
        "70b": _dense(80, 64, 8, 28672, 128256),
        "405b": _dense(126, 128, 8, 53248, 128256),
    }
    tp, pp, cp, micro = int(row["tp"]), int(row["pp"]), int(row["cp"]), int(row["micro_batch"])
    replicas = int(row["gpus"]) // (tp * pp * cp)
    parallel = Parallel(
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=int(row["vpp"]) if row["vpp"] else None,
        sequence_parallel=tp > 1,
        micro_batch=micro,
        global_batch=micro * pp * replicas,
    )
    setup = TrainingSetup(
        layout=ParallelLayout(parallel, int(row["gpus"])),
        sequence=int(row["sequence"]),
        sharding="fsdp2",
        recompute="full" if row["recompute"] == "full" else "selective",
        compiled=row["compiled"] == "yes",
        expandable_segments=True,
    )
    return models[row["model"]], setup


def aleph_alpha(row: Row, micro_batch: int) -> tuple[ModelConfig, TrainingSetup]:
    """A run of Aleph Alpha's study: Llama with four million tokens per step."""
    models = {
        "13": _dense(40, 40, 40, 13824, 128000),
        "30": _dense(60, 52, 52, 17920, 128000),
        "65": _dense(80, 64, 64, 22016, 128000),
    }
    sequence = int(row["sequence"])
    parallel = Parallel(
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        sequence_parallel=row["sequence_parallel"] == "yes" and int(row["tp"]) > 1,
        micro_batch=micro_batch,
        global_batch=2**22 // sequence,
    )
    setup = TrainingSetup(
        layout=ParallelLayout(parallel, int(row["gpus"])),
        sequence=sequence,
        sharding="zero1",
        framework="deepspeed",
        recompute="full" if row["recompute"] == "full" else "none",
        flash_attention=row["kernel"].startswith("flash"),
        fused_norm=row["kernel"].endswith("rms"),
    )
    return models[row["billions"]], setup
