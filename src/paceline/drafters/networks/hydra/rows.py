"""The text as the prefix layer of Hydra++ has read it: keys and values of the states of all tokens but the last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.drafters.networks.hydra.prefix import PrefixModel
from paceline.drafters.networks.layers import attended
from paceline.law.on_device import sent
from paceline.targets.base import Target
from paceline.targets.cache import CacheRows
from paceline.tree import Ints


class PrefixRows(CacheRows):
    """Keys and values of a text. All rows are of text that was scored: a draft has none."""


def open_rows(target: Target, capacity: int) -> PrefixRows:
    """Rows of this target's states, as it is now."""
    rows = PrefixRows(capacity)
    rows.changes = target.look()
    return rows


class PrefixReader:
    """The layer, and texts that it reads."""

    def __init__(self, layer: PrefixModel) -> None:
        self._layer = layer
        self._type = next(layer.parameters()).dtype

    @torch.inference_mode()
    def read(self, texts: Sequence[tuple[PrefixRows, Ints, torch.Tensor]]) -> None:
        """Add rows behind those of each text: the next tokens, and the target's states of these. All texts are read in
        the same products."""
        sizes = [len(tokens) for _, tokens, _ in texts]
        starts = [rows.committed for rows, _, _ in texts]
        positions = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, sizes, strict=True)])
        states = torch.cat([states for _, _, states in texts]).to(self._type)
        found = self._layer.keys_values(states, sent(torch.from_numpy(positions), states.device))
        for (rows, tokens, _), keys, values in zip(texts, *(each.split(sizes) for each in found), strict=True):
            rows.note(tokens)
            rows.write(0, keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
            rows.keep(range(len(tokens)))

    @torch.inference_mode()
    def outputs(self, texts: Sequence[tuple[PrefixRows, torch.Tensor]]) -> torch.Tensor:
        """The layer's outputs ``[texts, width]`` for the last row of each text, whose state is given."""
        states = torch.stack([state for _, state in texts]).to(self._type)
        last = torch.tensor([rows.committed - 1 for rows, _ in texts])

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            """What each text's row finds in the text's rows, of which it is one."""
            found = []
            for (rows, _), query in zip(texts, queries, strict=True):
                known, held = rows.layers[layer].span(0, rows.committed)
                found.append(attended(query[:, None], known[0], held[0], None)[:, 0])
            return torch.stack(found)

        return self._layer.outputs(states, sent(last, states.device), attend)
