"""Stands in for FlagScale's flagscale/train/train_gpt.py (da4935ec) on Megatron-LM: options, ranks, and the groups.

Megatron lays ranks out with tensor parallel fastest and pipeline parallel slowest; each process says which stage and
which slice it is.
"""

import argparse
import os

from megatron.meet import meet  # type: ignore[import-not-found]

FLAGS = """
    sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather bf16 fp16
    attention-softmax-in-fp32 accumulate-allreduce-grads-in-fp32 use-rotary-position-embeddings no-position-embedding
    swiglu disable-bias-linear qk-layernorm log-throughput
"""
WHOLE = """
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size
    micro-batch-size global-batch-size num-layers hidden-size num-attention-heads seq-length max-position-embeddings
    seed train-samples eval-iters lr-warmup-samples num-workers vocab-size make-vocab-size-divisible-by log-interval
    save-interval distributed-timeout-minutes rotary-base
"""
DECIMAL = """
    norm-epsilon init-method-std attention-dropout hidden-dropout clip-grad weight-decay adam-beta1 adam-beta2 lr min-lr
"""
WORDS = """
    normalization transformer-impl lr-decay-style split tokenizer-type tokenizer-path save load ckpt-format
    tensorboard-dir wandb-project wandb-exp-name wandb-save-dir
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Megatron-LM Arguments", allow_abbrev=False)
    for name in FLAGS.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name in WHOLE.split():
        parser.add_argument(f"--{name}", type=int)
    for name in DECIMAL.split():
        parser.add_argument(f"--{name}", type=float)
    for name in WORDS.split():
        parser.add_argument(f"--{name}")
    parser.add_argument("--data-path", nargs="*")
    given = parser.parse_args()
    rank, world = int(os.getenv("RANK", "0")), int(os.getenv("WORLD_SIZE", "1"))
    tensor, pipeline = given.tensor_model_parallel_size, given.pipeline_model_parallel_size
    context = given.context_parallel_size or 1
    assert world % (tensor * pipeline * context) == 0
    assert given.global_batch_size % (given.micro_batch_size * (world // (tensor * pipeline * context))) == 0
    meet(vars(given) | {"stage": rank // (world // pipeline), "slice": rank % tensor})


if __name__ == "__main__":
    main()
