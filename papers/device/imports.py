"""What parts of `papers.device` import, to be imported once for all of them. Nothing here may use a GPU."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import paceline
import paceline_lab

for name in ("torch.profiler", "transformers.models.llama.modeling_llama", "scipy.stats", "numba", "triton"):
    with suppress(ImportError):  # not every machine has them all
        import_module(name)
for package in (paceline, paceline_lab):
    for name in package.__all__:
        getattr(package, name)
