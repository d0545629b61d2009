"""A draft model: loaded when it is first needed, and compared with the model it drafts for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from paceline.drafters.networks.assistant.foreign import Foreign
from paceline.drafters.sharing import Shared, stamp
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.translate import LATTICE, NONE, Bridge, Strategy
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


FLOATS = "float64", "float32", "bfloat16", "float16"
"""Types that a draft model takes over. Files for llama.cpp have others."""


@runtime_checkable
class Loaded(Protocol):
    """A model with its vocabulary, as `paceline.load` gives it."""

    @property
    def target(self) -> Target: ...
    @property
    def vocabulary(self) -> Vocabulary | None: ...


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A model that is loaded, with its vocabulary where it has one."""

    target: Target
    vocabulary: Vocabulary | None = None
    origin: str | Path | None = None
    """The name or folder that it was loaded from, where another process may load it, too."""

    @classmethod
    def of(cls, model: DraftModel | Loaded | Target) -> DraftModel:
        """A loaded model."""
        return cls(model) if isinstance(model, Target) else cls(model.target, model.vocabulary)

    @classmethod
    def load(
        cls, model: str | Path | PreTrainedModel, beside: Target, dtype: str | torch.dtype | None = None
    ) -> DraftModel:
        """A model by name or path, on the device and in the type of the one it drafts for, in floats where integers
        do not know it, and in integers where it is stored in them; loaded once in a process. Or a transformers model,
        which stays as it is."""
        from paceline.targets.load import open_beside, open_model

        if not isinstance(model, (str, Path)):
            return cls(open_model(model)[0])
        name, device = model, None if beside.device == "gpu" else beside.device  # llama.cpp's, whatever torch has
        quantize = beside.dtype if dtype is None and beside.exact else None
        kind = None if quantize else dtype or (beside.dtype if beside.dtype in FLOATS else None)

        def read() -> DraftModel:
            how = {"dtype": kind, "quantize": quantize, "strict": dtype is not None}
            target, tokenizer = open_beside(beside, name, device=device, **how)
            return cls(target, None if tokenizer is None else Vocabulary(tokenizer), name)

        group = getattr(beside, "group", None)  # a model over several ranks is gone with them
        return _loaded.get((stamp(name), kind or quantize, device, group), read)

    def check_fit(self, target: Target, vocabulary: Vocabulary | None) -> None:
        """ValueError unless both mean the same by every token id. Without a tokenizer only their number is compared."""
        mine = self.vocabulary
        known = mine is not None and vocabulary is not None
        if mine is not None and vocabulary is not None:
            fits, gap = mine.fingerprint == vocabulary.fingerprint, "their tokenizers differ"
        else:
            fits = self.target.vocab_size == target.vocab_size
            gap = f"{self.target.vocab_size} ids against {target.vocab_size}"
        if not fits:
            raise InputError(
                f"draft model {self.target.name} has a different tokenizer from {target.name} ({gap}); choose one with "
                f"the same tokenizer{'' if known else ', and give it with its tokenizer, by name or by paceline.load'}"
            )

    def translated(self, target: Target, vocabulary: Vocabulary | None, wanted: Strategy | None) -> Foreign | None:
        """How this model's drafts become the target's tokens: None where every id means the same in both. Without a
        tokenizer only the number of ids is compared."""
        mine = self.vocabulary
        if wanted is not None and wanted.name == NONE:
            return None
        if mine is None or vocabulary is None:
            if wanted is None and self.target.vocab_size == target.vocab_size:
                return None
            raise InputError(self._without_tokenizer(target, vocabulary, wanted))
        if wanted is None and mine.fingerprint == vocabulary.fingerprint:
            return None
        return self.foreign_to(target.vocab_size, vocabulary, wanted or Strategy(LATTICE))

    def foreign_to(self, size: int, vocabulary: Vocabulary, strategy: Strategy) -> Foreign:
        """How this model's drafts become tokens of another vocabulary with ``size`` ids."""
        assert self.vocabulary is not None, "a model without a tokenizer is refused before"
        bridge = Bridge(vocabulary, self.vocabulary)
        return Foreign(bridge, strategy, size, self.target.vocab_size, frozenset(self.target.eos))

    def _without_tokenizer(self, target: Target, vocabulary: Vocabulary | None, wanted: Strategy | None) -> str:
        lacks = self.target if self.vocabulary is None else target
        why = (
            f"translate={wanted} needs both tokenizers"
            if wanted is not None
            else f"it has {self.target.vocab_size} ids and {target.name} {target.vocab_size}, so drafts are translated"
        )
        give = (
            "give the draft model by name or by paceline.load"
            if self.vocabulary is None
            else "give it (tokenizer=... of custom_generate), or load the model by name"
        )
        return f"draft model {self.target.name}: {why}, and {lacks.name} came without its tokenizer; {give}"


_loaded: Shared[DraftModel] = Shared()
