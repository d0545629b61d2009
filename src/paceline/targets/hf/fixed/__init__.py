"""Forwards of fixed shapes, recorded as CUDA graphs.

`slab` holds the keys and values of many sequences at fixed addresses, `shapes` rounds a forward up to one of few
shapes, `inputs` is the memory that a forward reads, `step` computes it over a `block` of slots with the attention of
`kernels`, `capture` records it, and `replay` is the path that decides which forwards are recorded and replays them.

`docs/devices.md` says on which GPUs it ran, and what was found there.
"""
