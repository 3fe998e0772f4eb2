"""A model of a few thousand parameters with random weights, and a tokenizer of single bytes, made without a network."""

from __future__ import annotations

from pathlib import Path


def make(folder: Path) -> None:
    """Write `model/` and `data/train.txt` as the Hugging Face examples want them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "model")
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    shape = GPT2Config(vocab_size=len(letters), n_positions=32, n_embd=16, n_layer=2, n_head=2, **ends)
    GPT2LMHeadModel(shape).save_pretrained(folder / "model")
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train.txt").write_text("one two three four\n" * 60)
