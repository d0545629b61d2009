"""Kernels for the layers of recorded forwards, written in Triton: ten for a layer, where torch starts three dozen.

`layer` and `attention` hold the kernels, `running` starts them, `operations` and `block` put them where the lean
forward and the models' own attention ask for them, and `trial` compares them with torch's before a model uses them.
Only `layer`, `attention` and what imports them need triton, which comes with torch's builds for CUDA on Linux.
"""
