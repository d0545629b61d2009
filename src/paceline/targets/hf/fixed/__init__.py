"""The path of fixed shapes, for CUDA: `slab` keeps the rows of many sequences where they stay, `shapes` rounds a
forward up to one of few shapes, `inputs` holds what a forward reads in memory that never moves, `step` computes it from
there alone, over the rows of a `block` of slots with an `attention` for them, `capture` records it once and plays it
back while the model is still `standing` as it was, and `path` decides who goes this way.

On a GPU it has not been run yet; `docs/cuda.md` says what that means and how to check it.
"""
