"""A model that trains in a minute on CPUs, in the format of nanoGPT's config/train_gpt2.py."""

batch_size = 4
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
max_iters = 30
gradient_accumulation_steps = 8
