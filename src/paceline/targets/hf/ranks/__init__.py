"""One model over several processes: each rank computes its heads and its part of every matrix product.

`processes` joins and parts the processes that torchrun started, `group` carries sums and messages between them, `cut`
takes a rank's part of a model by transformers' tensor plan, and `target` is the target that such ranks make together.
"""
