"""Forwards compiled for the processor at hand: all layers in one call, shared by a few threads.

A forward in torch's operations spends as much time between the products as in them. Here numba compiles everything that
a llama computes, products included, once on a machine: over 8-bit or 4-bit integers, with every rounding where
`integers.operations` has it, or over floats.
"""
