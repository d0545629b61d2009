"""The path of fixed shapes, for CUDA: `slab` keeps the rows of many sequences where they stay, `shapes` rounds a
forward up to one of few shapes, `inputs` holds what a forward reads in memory that never moves, `step` computes it from
there alone, over the rows of a `block` of slots with the `kernels` for them, `capture` records it once, and `replay`
decides who goes this way and plays recordings back while the model is still `standing` as it was.

On a GPU it has not been run yet; `docs/cuda.md` says what that means and how to check it.
"""
