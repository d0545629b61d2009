"""The model that drafts: loaded when it is first needed, and held against the one it drafts for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.targets.base import Target
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A model that is loaded, with its vocabulary where it has one."""

    target: Target
    vocabulary: Vocabulary | None = None

    @classmethod
    def load(cls, model: str | Path | PreTrainedModel, beside: Target, dtype: str | None = None) -> DraftModel:
        """A model by name, path or as a loaded object; placed beside the one it drafts for, in the same type."""
        from paceline.targets.load import open_model

        placed: dict[str, Any] = {}
        if isinstance(model, (str, Path)):
            placed = {"dtype": dtype or _dtype(beside), "device": getattr(beside, "device", None)}
        target, tokenizer = open_model(model, **placed)
        return cls(target, None if tokenizer is None else Vocabulary.of(tokenizer))

    def check_fit(self, target: Target, vocabulary: Vocabulary | None) -> None:
        """The two must mean the same by every token id. Without a tokenizer only the number of ids can be compared."""
        mine = self.vocabulary
        if mine is None or vocabulary is None:
            fits, gap = (
                self.target.vocab_size == target.vocab_size,
                f"{self.target.vocab_size} tokens against {target.vocab_size}",
            )
        else:
            fits, gap = mine.fingerprint == vocabulary.fingerprint, "their tokenizers differ"
        if not fits:
            raise ValueError(
                f"draft model {self.target.name} does not speak the tokens of {target.name} ({gap}); "
                "choose a draft model of the same family, with the same tokenizer"
            )


def _dtype(target: Target) -> str | None:
    dtype = getattr(target, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")
