"""The input embeddings of a GGUF file's tokens, which heads read: llama.cpp keeps its own to itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import MissingPackage
from paceline.tree import Ints

NAME = "token_embd.weight"


class TokenEmbeddings:
    """Rows of the file's table, in whatever type it is; a row is read, and turned into floats, when it is asked for."""

    def __init__(self, rows: Any, kind: Any) -> None:
        self._rows, self._kind = rows, kind

    @classmethod
    def of(cls, parts: Sequence[Path]) -> TokenEmbeddings | None:
        """None where the file has no such table. `MissingPackage` without the library that reads it."""
        try:
            import gguf
        except ImportError:
            raise MissingPackage("heads beside GGUF files need gguf: pip install 'paceline[gguf]'") from None
        tensors = (tensor for part in parts for tensor in gguf.GGUFReader(part).tensors)
        found = next((tensor for tensor in tensors if tensor.name == NAME), None)
        return None if found is None else cls(found.data, found.tensor_type)

    def __getitem__(self, tokens: Ints) -> NDArray[np.float32]:
        """The embeddings ``[n, width]`` of tokens."""
        from gguf import quants

        return np.asarray(quants.dequantize(self._rows[tokens], self._kind), np.float32)
