"""The weights that the peers of a run share: those of the target and of its draft models, each copied once.

A target that is loaded by name has its weights arranged for our own kernels; other libraries want them in ordinary
layers, or in a folder that they load themselves.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.drafters.networks.assistant import DraftModel
from paceline.errors import InputError
from paceline.files import workplace
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.targets.hf.plain_copy import plain_copy
from paceline.targets.hf.target import HFTarget
from paceline.targets.pocket.names import BALLAST_MARK, POCKET_NAMES
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.run.contestant import Missing

T = TypeVar("T")
FOREIGN = "pocket-foreign"
"""The bundled draft model that has another tokenizer."""


def ordinary(target: Target) -> PreTrainedModel:
    """A copy of a target's model as transformers would have loaded it."""
    if not isinstance(target, HFTarget):
        raise Missing(f"{target.name} is no model of transformers, and nothing else runs in other libraries")
    if target.ranks > 1:
        raise Missing(f"{target.name} is cut over {target.ranks} ranks, and other libraries need the whole model")
    return plain_copy(target)


def check_llama(model: PreTrainedModel, library: str) -> None:
    """`Missing` where a model is none that we write in a library's own form."""
    config: Any = model.config
    turns = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if config.model_type != "llama" or turns != "default" or any(n.endswith(".bias") for n in model.state_dict()):
        raise Missing(f"only llamas without biases and with ordinary rotary positions are converted for {library} here")


def head_width(model: PreTrainedModel) -> int:
    """Of a llama, the values of one attention head."""
    config: Any = model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


class PeerWeights:
    """Copies that are made when the first peer asks for them, and live as long as the last one holds this."""

    def __init__(self, target: Target, vocabulary: Vocabulary | None = None, draft: DraftModel | None = None) -> None:
        self.target = target
        self.vocabulary = vocabulary
        self.draft = draft
        self._foreign: dict[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]] = {}

    @cached_property
    def model(self) -> PreTrainedModel:
        """The target's."""
        return ordinary(self.target)

    @cached_property
    def draft_model(self) -> PreTrainedModel:
        """That of the draft model with the target's tokenizer."""
        return ordinary(self.same_tokens().target)

    def borrowed(self) -> PreTrainedModel:
        """The target's, to be converted and let go: the copy that is kept already, or one that will not be kept."""
        kept: PreTrainedModel | None = self.__dict__.get("model")
        return kept or ordinary(self.target)

    def borrowed_draft(self) -> PreTrainedModel:
        """Likewise the draft model's."""
        kept: PreTrainedModel | None = self.__dict__.get("draft_model")
        return kept or ordinary(self.same_tokens().target)

    def converted(self, name: str, write: Callable[[PreTrainedModel, Path], None]) -> Path:
        """A file or folder of that name, as another library reads it; names that begin with ``draft`` hold the draft
        model, others the target. It is written once, for all peers."""
        path = self.disk / name
        if not path.exists():
            write(self.borrowed_draft() if name.startswith("draft") else self.borrowed(), path)
        return path

    def same_tokens(self) -> DraftModel:
        """The draft model, where there is one that speaks the target's tokens."""
        if self.draft is None:
            raise Missing("it needs a draft model with the target's tokenizer, and none is given")
        try:
            self.draft.check_fit(self.target, self.vocabulary)
        except ValueError as error:
            raise Missing(str(error)) from None
        return self.draft

    def foreign(self, name: str | None) -> tuple[str, PreTrainedModel, PreTrainedTokenizerBase]:
        """The draft model of another tokenizer: by name, or the bundled one where the target is a bundled model."""
        if name is None and self.target.name.partition(BALLAST_MARK)[0] not in POCKET_NAMES:
            raise Missing("it needs a draft model with another tokenizer: write transformers-uag:draft=NAME")
        name = name or FOREIGN
        if name not in self._foreign:
            try:
                draft = DraftModel.load(name, self.target)
            except ValueError as error:
                raise Missing(f"its draft model cannot be loaded: {error}") from None
            if draft.vocabulary is None:
                raise Missing(f"draft model {name} has no tokenizer, and without one its drafts cannot be read")
            self._foreign[name] = ordinary(draft.target), draft.vocabulary.tokenizer
        return name, *self._foreign[name]

    @cached_property
    def folder(self) -> Path:
        """The target as a checkpoint on disk."""
        if self.vocabulary is None:
            raise Missing(f"{self.target.name} came without its tokenizer, which the checkpoint it loads must hold")
        folder = self.disk / "target"
        self.borrowed().save_pretrained(folder)
        self.vocabulary.tokenizer.save_pretrained(folder)
        return folder

    @cached_property
    def disk(self) -> Path:
        """A folder for converted copies; it goes when this does."""
        leaving = ExitStack()
        weakref.finalize(self, leaving.close)
        return leaving.enter_context(workplace())


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The parts from which a peer is made."""

    name: str
    """The spec, by which tables call it."""
    options: dict[str, str]
    weights: PeerWeights
    draft_tokens: int | None
    sampling: Sampling

    def whole(self, option: str, default: T, most: int = 128) -> int | T:
        """An option that is a whole number from 1 on, or its default."""
        given = self.options.get(option)
        if given is None:
            return default
        if not (given.isdecimal() and 0 < int(given) <= most):
            name = self.name.partition(":")[0]
            raise InputError(f"option {option!r} of {name} is a whole number from 1 to {most}, not {given!r}")
        return int(given)


class TextReader(ABC):
    """A model that another library has loaded, and one text that it has read."""

    widest: int
    """The most rows of a forward that have logits."""
    text: list[int]

    @abstractmethod
    def read(self, tokens: Sequence[int], scored: int = 1) -> None:
        """Read on; the last ``scored`` tokens have logits afterwards."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forget all but ``length`` tokens of the text."""

    @abstractmethod
    def logits(self, row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Of a row of the last forward, -1 being the last; valid until the next forward."""

    @abstractmethod
    def close(self) -> None:
        """Release the memory."""
