"""The tokenizer in a GGUF file, with what a `Vocabulary` reads of it. llama.cpp encodes, for it knows how every kind of
file splits a text; decoders of the tokenizers library decode, for a vocabulary builds its tables from them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken

from paceline.targets.gguf.spelling import byte_level_decoder, sentencepiece_decoder

if TYPE_CHECKING:
    from paceline.targets.gguf.target import GgufTarget

SPM, BPE_KIND, UGM = 1, 2, 4
"""llama.cpp's kinds of tokenizers: SentencePiece with bytes, byte-level, and SentencePiece by likelihood."""
UNKNOWN, UNUSED, CONTROL = 1, 2, 8
"""Bits of a token's attributes."""


def tokenized(calls: Any, vocab: Any, text: str, special: bool, *, names: bool) -> list[int]:
    """The ids of a text in a vocabulary of llama.cpp."""
    data = text.encode()
    room = len(data) + 8
    while True:
        found = (ctypes.c_int32 * room)()
        count = int(calls.llama_tokenize(vocab, data, len(data), found, room, special, names))
        if count >= 0:
            return list(found[:count])
        room = -count


class GgufTokenizer:
    """Encodes and decodes as transformers' tokenizers do."""

    def __init__(self, target: GgufTarget, calls: Any, vocab: Any, kind: int) -> None:
        self.name_or_path = target.name
        self._target = target
        """It owns the vocabulary in llama.cpp's memory."""
        self._calls, self._vocab, self._kind = calls, vocab, kind
        self.backend_tokenizer = _Backend(self)

    @classmethod
    def of(cls, target: GgufTarget) -> GgufTokenizer | None:
        """The tokenizer of a target's file; None where it has none."""
        calls, vocab = target.calls, target.vocab
        kind = int(calls.llama_vocab_type(vocab))
        return cls(target, calls, vocab, kind) if kind else None

    @cached_property
    def strings(self) -> list[str | None]:
        """The tokens as the file has them; None for ids that are not used."""
        attributes = map(self._attributes, range(self._target.vocab_size))
        text = self._calls.llama_vocab_get_text
        return [
            None if found & UNUSED else text(self._vocab, token).decode(errors="replace")
            for token, found in enumerate(attributes)
        ]

    @cached_property
    def specials(self) -> frozenset[int]:
        """The tokens that have no text where special tokens are skipped."""
        size = self._target.vocab_size
        return frozenset(token for token in range(size) if self._attributes(token) & (UNKNOWN | CONTROL))

    def _attributes(self, token: int) -> int:
        return int(self._calls.llama_vocab_get_attr(self._vocab, token))

    def encode(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> list[int]:
        return self.tokens(text, add_special_tokens, names=True)

    def tokens(self, text: str, special: bool, *, names: bool) -> list[int]:
        """The ids of a text; ``special`` puts those in front that the file asks for, with ``names`` the name of a
        special token is that token."""
        return tokenized(self._calls, self._vocab, text, special, names=names)

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        kept = [token for token in ids if not (skip_special_tokens and token in self.specials)]
        decoder = self.decoder
        if decoder is None:
            return self._detokenized(kept)
        strings = (self.strings[token] if 0 <= token < len(self.strings) else None for token in kept)
        return str(decoder.decode([string for string in strings if string is not None]))

    def _detokenized(self, ids: list[int]) -> str:
        """As llama.cpp decodes."""
        given, room = (ctypes.c_int32 * len(ids))(*ids), 16 * len(ids) + 16
        while True:
            found = ctypes.create_string_buffer(room)
            count = int(self._calls.llama_detokenize(self._vocab, given, len(ids), found, room, False, True))
            if count >= 0:
                return found.raw[:count].decode(errors="replace")
            room = -count

    @cached_property
    def decoder(self) -> Any:
        """Of the tokenizers library; None for kinds that only llama.cpp decodes."""
        if self._kind == BPE_KIND:
            return byte_level_decoder()
        if self._kind not in (SPM, UGM):
            return None
        return sentencepiece_decoder(self._target.metadata("tokenizer.ggml.add_space_prefix") != "false")

    # --- chats ----------------------------------------------------------------------------------------------

    @cached_property
    def chat_template(self) -> str | None:
        found = self._calls.llama_model_chat_template(self._target.model, None)
        return found.decode(errors="replace") if found else None

    def apply_chat_template(self, messages: list[dict[str, Any]], *, tokenize: bool, **variables: Any) -> str:
        """A conversation in the file's template, as transformers renders it."""
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize, "a vocabulary encodes the text"
        given: dict[str, Any] = {"conversations": [messages], "chat_template": self.chat_template, **self._named}
        return str(render_jinja_template(**given, **variables)[0][0])

    @cached_property
    def _named(self) -> Mapping[str, str]:
        """The tokens that templates know by name."""
        calls = {f"{name}_token": getattr(self._calls, f"llama_vocab_{name}") for name in ("bos", "eos", "pad")}
        ids = {name: int(call(self._vocab)) for name, call in calls.items()}
        return {name: self.strings[token] or "" for name, token in ids.items() if token >= 0}


class _Backend:
    """What is read of a tokenizer of the tokenizers library."""

    def __init__(self, tokenizer: GgufTokenizer) -> None:
        self._own = tokenizer
        self.normalizer = self.pre_tokenizer = None
        self.model = SimpleNamespace(tokenize=self._pieces)

    @property
    def decoder(self) -> Any:
        """A class of its own says that no decoder of the library is the file's."""
        return self._own.decoder if self._own.decoder is not None else _LlamaDecoder()

    def id_to_token(self, token: int) -> str | None:
        strings = self._own.strings
        return strings[token] if 0 <= token < len(strings) else None

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        return {string: token for token, string in enumerate(self._own.strings) if string is not None}

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        strings = self._own.strings
        return {token: AddedToken(strings[token] or "", special=True) for token in sorted(self._own.specials)}

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[SimpleNamespace]:
        return [SimpleNamespace(ids=self._own.encode(text, add_special_tokens)) for text in texts]

    def _pieces(self, text: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(id=token) for token in self._own.tokens(text, False, names=False)]


class _LlamaDecoder:
    """Decoding by llama.cpp, which has no serialised form."""
