"""Stands in for LMFlow's examples/finetune.py (f3597dba): the options of its finetuner, and a Trainer's ranks."""

import argparse
import os
import sys

# As there; it fails where the script's own folder does not come first.
sys.path.remove(os.path.abspath(os.path.dirname(sys.argv[0])))
from lmflow.meet import meet  # type: ignore[import-not-found]

WORDS = """
    model_name_or_path lora_model_path model_type config_overrides arch_type config_name tokenizer_name cache_dir
    model_revision token torch_dtype quant_type lora_target_modules truncation_side padding_side
    dataset_path dataset_name customized_cache_dir dataset_config_name train_file validation_file test_file
    conversation_template dataset_cache_dir eval_dataset_path finetune_part save_language_projection
    lisa_layers_attribute customized_optim customized_optim_args
    output_dir lr_scheduler_type deepspeed report_to run_name
"""
NUMBERS = """
    trust_remote_code disable_group_texts use_flash_attention gradient_checkpointing validation_split_percentage
    block_size max_train_samples max_eval_samples preprocessing_num_workers group_texts_batch_size lora_r lora_alpha
    lisa_activated_layers lisa_interval_steps use_lora use_lisa num_train_epochs learning_rate
    per_device_train_batch_size gradient_accumulation_steps logging_steps ddp_timeout save_steps dataloader_num_workers
    seed
"""
FLAGS = "bf16 fp16 do_train"


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in WORDS.split():
        parser.add_argument(f"--{name}")
    for name in NUMBERS.split():
        parser.add_argument(f"--{name}", type=float)
    for name in FLAGS.split():
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--local_rank", "--local-rank", type=int)
    given = vars(parser.parse_args())
    if given["deepspeed"]:
        assert os.path.isfile(given["deepspeed"]), given["deepspeed"]
    meet(given)


if __name__ == "__main__":
    main()
