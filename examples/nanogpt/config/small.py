"""A model for a minute on CPUs; nanoGPT's own config/train_gpt2.py is of the same kind."""

batch_size = 4
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
max_iters = 30
gradient_accumulation_steps = 8
