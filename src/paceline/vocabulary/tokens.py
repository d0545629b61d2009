"""The texts and bytes of the ids of one tokenizer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.vocabulary.detokenize import PieceText
from paceline.vocabulary.spelling import PieceTable, canonical_rule, read_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIECE = 1 << 16
"""Characters of a long text that are encoded at once."""
CUT = 64
"""Extra tokens per cut: a text that is cut within a word may have that many more."""
DENSEST = 8
"""Bytes per token of the context up to which a text is encoded without a check."""
FEW = 1 << 20
"""Bytes that are always encoded: a tokenizer may drop bytes, or have one token for all unknown ones."""
FRONT = 4
"""Special tokens that a tokenizer puts before a text, at most."""
LONE_SURROGATE = re.compile("[\\ud800-\\udfff]")
PROBES = 192
"""Ids of a vocabulary that test its tables."""


NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})


class Vocabulary:
    """Ids, bytes and text of a transformers tokenizer, in tables that are built on first use.

    The tables are read from the tokenizer's decoder and then tested: where they differ from the tokenizer's own
    `decode` on a sample of the vocabulary, they are not used and every text is found by decoding. Tokens that are added
    to the tokenizer after the first use are not seen.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Any = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if not hasattr(self._backend, "id_to_token"):
            raise InputError(
                f"{type(tokenizer).__name__} has no tokenizers backend to read a vocabulary from; "
                f"load a fast tokenizer, one with a tokenizer.json"
            )

    def __repr__(self) -> str:
        return f"<vocabulary of {self._name}, {self.size} tokens>"

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer itself, for calls of transformers."""
        tokenizer: PreTrainedTokenizerBase = getattr(self._tokenizer, "whole", self._tokenizer)
        return tokenizer

    @property
    def backend(self) -> Any:
        """The tokenizer of the tokenizers library, with its normaliser, its model and its decoder."""
        return self._backend

    @property
    def _name(self) -> str:
        """The tokenizer in messages: the place it was loaded from, or its class."""
        return str(getattr(self._tokenizer, "name_or_path", "") or type(self._tokenizer).__name__)

    @property
    def size(self) -> int:
        """One more than the highest id. Lower ids may be unused, and a model may have more rows."""
        return len(self._strings)

    @cached_property
    def specials(self) -> frozenset[int]:
        """The ids that have no text where special tokens are skipped."""
        added = self._backend.get_added_tokens_decoder().values()
        names = {token.content for token in added if token.special}
        return frozenset(i for i, string in enumerate(self._strings) if string in names)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two vocabularies whose ids mean the same text, in every process."""
        identity = json.dumps([canonical_rule(self._decoder), self._strings, sorted(self.specials)])
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def token_bytes(self, token: int) -> bytes:
        """The spelling of a token in the middle of a text; a special token's is its name, an unused id's is empty."""
        assert token >= 0, f"token ids are not negative, got {token}"
        if token >= self.size or self._strings[token] is None:
            return b""
        piece = self.table.all[token] if self.table else self._difference(token)
        return piece.encode() if isinstance(piece, str) else piece or b""

    def text(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence, as the tokenizer itself decodes it."""
        how = {"skip_special_tokens": skip_special, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode([int(token) for token in ids], **how))

    def encode(self, text: str, add_special: bool = True) -> NDArray[np.int64]:
        try:
            # not verbose: the model, not the tokenizer, limits the length of a text
            ids = self._tokenizer.encode(text, add_special_tokens=add_special, verbose=False)
        except Exception as error:
            if (half := LONE_SURROGATE.search(text)) is not None:
                where = f"at character {half.start()}, half of a surrogate pair"
                raise InputError(
                    f"the text holds {half[0]!r} {where}, which is no Unicode text; leave it out"
                ) from None
            if type(error) is not Exception:  # which is all that the tokenizers library raises
                raise
            raise InputError(f"the tokenizer of {self._name} cannot encode this text: {error}") from None
        return np.asarray(ids, dtype=np.int64)

    def encode_prompt(self, text: str) -> NDArray[np.int64]:
        """A text with the special tokens that the tokenizer puts in front, once: a text that went through a chat
        template begins with them already."""
        ids = self.encode(text)
        if len(ids) > 1 and int(ids[0]) in self.specials and ids[0] in ids[1 : 1 + FRONT]:
            bare = self.encode(text, add_special=False)
            for front in range(1, min(FRONT, len(bare)) + 1):
                if np.array_equal(ids[front : front + len(bare)], bare) and np.array_equal(ids[:front], bare[:front]):
                    return ids[front:]
        return ids

    def refuse_beyond(self, text: str, limit: int) -> None:
        """Refuse a text that has more tokens than a context for certain, because encoding takes 100 to 250 times its
        bytes of memory. A text that is only a little too long is refused later, by its tokens."""
        size = len(text.encode(errors="surrogatepass"))
        if size <= max(PIECE, DENSEST * limit):
            return
        shorten = f"and the model's context holds {limit}; shorten the prompt so that at least one token can follow"
        if size > max(FEW, self._longest * limit):
            raise InputError(f"the prompt has {size} bytes, tokens have at most {self._longest} bytes, {shorten}")
        tokens = 0
        for cuts, start in enumerate(range(0, len(text), PIECE)):
            tokens += len(self.encode(text[start : start + PIECE], add_special=False))
            if tokens > limit + CUT * cuts:
                read = min(start + PIECE, len(text))
                raise InputError(f"the first {read} characters of the prompt are about {tokens} tokens, {shorten}")

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max((len(self.token_bytes(token)) for token in range(self.size)), default=1)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Many texts at once, without special tokens: twice as fast for short texts as one by one."""
        self.encode("", add_special=False)  # switches off truncation and padding, as it does for every text
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def names_special(self, text: str) -> bool:
        """Whether a text holds the name of a special token, as one does that went through a chat template."""
        return any(name and name in text for name in map(self._strings.__getitem__, self.specials))

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def conversation(self, messages: list[dict[str, Any]], variables: Mapping[str, Any] = NO_VARIABLES) -> str | None:
        """A conversation in the tokenizer's chat template, up to where the model goes on: where the next reply begins,
        or where the last message ends if that is the assistant's. The template sees the variables. None without a
        template."""
        if not self.has_template:
            return None
        begun = messages[-1]["role"] == "assistant"
        how = {"tokenize": False, "add_generation_prompt": not begun, "continue_final_message": begun}
        if ours := sorted(how.keys() & variables.keys()):
            raise InputError(f"chat_template_kwargs cannot set {ours[0]}, which follows from the messages")
        try:
            return str(self._tokenizer.apply_chat_template(messages, **how, **variables))
        except Exception as error:  # a template is a program, and may raise anything
            raise InputError(
                f"the chat template of {self._name} (chat_template.jinja, or chat_template in tokenizer_config.json) "
                f"does not take this conversation: {error}"
            ) from None

    @cached_property
    def table(self) -> PieceTable | None:
        """The spelling of each token by itself; `None` if the decoder is opaque."""
        spelling = read_decoder(self._decoder)
        table = spelling and PieceTable(spelling, self._strings, self.specials)
        return table if table and self._confirms(table) else None

    @cached_property
    def _strings(self) -> list[str | None]:
        size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        return list(map(self._backend.id_to_token, range(size)))

    @cached_property
    def _decoder(self) -> dict[str, Any] | None:
        """The decoder's serialised form; that of the whole tokenizer would take a fifth of a second."""
        decoder = self._backend.decoder
        if decoder is None:
            return None
        try:
            return dict(json.loads(decoder.__getstate__()))
        except Exception:  # a decoder written in Python has no serialised form, and no narrower error
            return {"type": type(decoder).__name__}

    def _confirms(self, table: PieceTable) -> bool:
        """Whether table and tokenizer give the same text, on short sequences from all over the vocabulary."""
        sample = [*range(0, self.size, max(1, self.size // PROBES)), *sorted(self.specials)[:PROBES]]
        for i in range(0, len(sample), 4):
            ids = sample[i : i + 8]
            for skip_special in (True, False):
                text = PieceText(table, skip_special)
                if "".join(map(text.push, ids)) + text.finish() != self.text(ids, skip_special=skip_special):
                    return False
        return True

    def _difference(self, token: int) -> str:
        """The text that a token of an opaque decoder adds to an ordinary one before it, or has alone."""
        before = self.text([self._anchor], skip_special=False)
        both = self.text([self._anchor, token], skip_special=False)
        return both[len(before) :] if both.startswith(before) else self.text([token], skip_special=False)

    @cached_property
    def _anchor(self) -> int:
        ordinary = (i for i in range(self.size) if i not in self.specials)
        return next((i for i in ordinary if (self._strings[i] or "").isalpha()), 0)


def check_ids(
    path: str | Path, tokenizer: str, highest: int, vocab_size: int, vocabulary: Vocabulary | None, name: str = ""
) -> None:
    """Refuse a file of tokens that are not the model's: of a tokenizer with another fingerprint, or higher than the
    model's vocabulary reaches. Without a vocabulary only the highest id can be checked."""
    if vocabulary is not None and vocabulary.fingerprint != tokenizer:
        named = f" ({name})" if name else ""
        raise InputError(f"{path} holds tokens of another tokenizer{named} than the model's; build it for this one")
    if highest >= vocab_size:
        raise InputError(
            f"{path} holds token {highest}, and the model's vocabulary has {vocab_size} tokens; build it for this model"
        )
