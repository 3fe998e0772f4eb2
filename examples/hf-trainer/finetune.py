"""A causal language model, fine-tuned with the Transformers Trainer on a text file.

The Trainer reads its ranks from torchrun's variables and the strategy from its own arguments, `--deepspeed FILE` or
`--fsdp_config FILE`, so this code contains nothing about nodes.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Task:
    """The model and the data."""

    model_name_or_path: str = field(metadata={"help": "A model on the Hub, or a folder."})
    train_file: str = field(metadata={"help": "A text file."})
    block_size: int = field(default=512, metadata={"help": "Tokens per sample."})


class Blocks(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """A text, split into samples of the same length."""

    def __init__(self, tokens: torch.Tensor, block_size: int) -> None:
        self.blocks = tokens[: len(tokens) // block_size * block_size].view(-1, block_size)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def compile_nothing_on_cpus() -> None:
    """Prevent DeepSpeed from compiling a CPU operator, which takes a minute and a compiler. GPUs do not need it."""
    if not torch.cuda.is_available() and importlib.util.find_spec("deepspeed"):
        from deepspeed import ops

        ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main() -> None:
    """Train, starting from the newest checkpoint if there is one, and save the model."""
    compile_nothing_on_cpus()
    task, arguments = HfArgumentParser((Task, TrainingArguments)).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(task.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(task.model_name_or_path)
    tokens = tokenizer(Path(task.train_file).read_text(encoding="utf-8"), return_tensors="pt")["input_ids"][0]
    trainer = Trainer(model=model, args=arguments, train_dataset=Blocks(tokens, task.block_size))
    kind = trainer.accelerator.distributed_type.value
    print(f"rank {arguments.process_index} of {arguments.world_size}, {kind}", flush=True)
    trainer.train(resume_from_checkpoint=any(Path(arguments.output_dir).glob("checkpoint-*")))
    trainer.save_model()


if __name__ == "__main__":
    main()
