"""The files and flags of a strategy: DeepSpeed, FSDP, Megatron.

Each `make` is pure: it takes one typed request and returns the file's text, or None, with all findings (HL6xx). Only
`config_file.ask` starts a program: the training's Python, to ask DeepSpeed, Accelerate or Transformers.
"""
