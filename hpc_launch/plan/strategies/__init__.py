"""The files and flags of a strategy, from what was asked for: DeepSpeed, FSDP, Megatron, hostfiles, scripts by hand.

Each `make` is pure: it takes one typed request and hands back the text of the file, or None, with all findings
(codes HL6xx). `library` alone starts a program: the training's own Python, to ask DeepSpeed or Accelerate itself.
"""
