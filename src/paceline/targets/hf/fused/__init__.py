"""Forwards compiled for the processor at hand: all layers in one call, shared by a few threads.

A forward in torch's operations spends as much time between the products as in them. Here numba compiles everything that
a llama in 8-bit integers computes, products included, once on a machine. Every rounding is that of `int8.operations`,
so texts do not depend on whether numba is there.
"""
