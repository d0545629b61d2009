"""A target's model as transformers would have loaded it, for other libraries.

The model of a target that is loaded by name has its weights arranged for our own kernels; others want ordinary layers.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from transformers import GenerationConfig

from paceline.targets.hf.target import HFTarget

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def plain_copy(target: HFTarget) -> PreTrainedModel:
    """A copy with the same weights in ordinary layers, those in integers as the floats that they stand for. The
    checkpoint's own settings for generation are left out: callers give theirs."""
    model: PreTrainedModel = copy.deepcopy(target.model)
    if target.exact:
        model.config.tie_word_embeddings = False  # the head has been rounded, the embedding has not
    else:
        model.tie_weights()
    model.generation_config = GenerationConfig()
    same = target.exact or HFTarget(model).fingerprint() == target.fingerprint()  # integers have another fingerprint
    assert same, "both sides have the same weights"
    return model
