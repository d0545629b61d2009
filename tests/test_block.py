"""Block heads: public files against a reference, rows, trees, the text, laws by enumeration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from block_heads import KINDS, Made, Reference, made
from paceline.drafters.networks.block.checkpoint import read_block

SHAPES = 20


def shown(head: Made, seed: int, tokens: int = 11) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States of a text before the anchor, and the target's embeddings and output."""
    random = torch.Generator().manual_seed(seed + 1000)
    width, vocab = head.layers["hidden_size"], head.layers["vocab_size"]
    states = torch.randn(tokens, len(head.states) * width, generator=random)
    return states, torch.randn(vocab, width, generator=random), torch.randn(vocab, width, generator=random)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-4)  # norms and angles are in float32


@pytest.mark.parametrize("kind", KINDS)
def test_public_files_compute_what_their_formats_say(kind: str, tmp_path: Path) -> None:
    for seed in range(SHAPES):
        head = made(kind, seed)
        states, embedding, output = (each.double() for each in shown(head, seed))
        network, _ = read_block(head.save(tmp_path / str(seed)))
        network, reference = network.double(), Reference(head, embedding, output)
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(len(embedding), (1, len(states)), generator=random)
        anchors = torch.tensor([[len(states) - 1, 0, 5]])
        found = network(states[None], tokens, anchors, embedding.__getitem__)
        for number, anchor in enumerate(anchors[0].tolist()):
            expected = reference.predicting(reference.hidden(states[:anchor], int(tokens[0, anchor])))
            close(found[0, number], expected)
            close(network.logits(found[0, number], output.T.__rmatmul__), reference.logits(expected))
