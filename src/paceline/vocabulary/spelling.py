"""The contribution of one token to the text, read from the tokenizer's own decoder.

A tokenizer's decoder maps a list of token strings to a text. Streaming needs that map to be a concatenation, so that a
token's part is known when the token is. For nearly every tokenizer in use it is one, up to three irregularities, and a
`Spelling` is a decoder written in those terms:

- the token that opens the text may be spelled differently (Metaspace drops its marker, WordPiece its space);
- bytes that make no character by themselves wait for their neighbours. Byte-level tokenizers repair invalid bytes one
  by one; byte-fallback tokenizers (`<0xNN>`) replace the whole run of byte tokens;
- the finished text may lose leading characters (SentencePiece strips the space that it once prepended).

A decoder that does anything else is *opaque*: its text is found by decoding sequences, never token by token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Piece = str | bytes
"""Whole characters as `str`; bytes that are no text by themselves as `bytes`."""

Step = Callable[[str, bool], str]
"""One decoder applied to one token string; the flag says whether the token opens the text."""


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """A decoder as a concatenation of pieces."""

    steps: tuple[Step, ...] = ()
    byte_level: bool = False
    byte_runs: bool = False
    strip: str = " "
    strip_count: int = 0
    """At most this many `strip` characters are taken off the front of the text."""

    def piece(self, token: str, opens: bool = False) -> Piece:
        """What `token` spells inside a text, or at the beginning of one."""
        if self.byte_level:
            return _as_text(_alphabet_bytes(token))
        for step in self.steps:
            token = step(token, opens)
        byte = _fallback_byte(token) if self.byte_runs else None
        return token if byte is None else byte


class PieceTable:
    """The spelling of a whole vocabulary, by id; `None` where an id contributes nothing."""

    def __init__(self, spelling: Spelling, strings: list[str | None], specials: frozenset[int]) -> None:
        self.spelling = spelling
        self._strings = strings
        self.all = [None if string is None else spelling.piece(string) for string in strings]
        self.plain = self.all.copy()
        for token in specials:
            self.plain[token] = None

    def opening(self, token: int) -> Piece:
        """The text of a token that is the first of a text."""
        string = self._strings[token]
        assert string is not None, f"id {token} is unused"
        return self.spelling.piece(string, opens=True)


def canonical_rule(decoder: dict[str, Any] | None) -> str:
    """The decoder's JSON in one fixed form, without the fields that only encoding reads."""
    steps = None if decoder is None else [_without_encoder_fields(step) for step in _flatten(decoder)]
    return json.dumps(steps, sort_keys=True)


def read_decoder(decoder: dict[str, Any] | None) -> Spelling | None:
    """The spelling behind a decoder's JSON, `None` if it is opaque."""
    if decoder is None:  # a tokenizer without one puts spaces between its tokens
        return Spelling(steps=(_joined_by_spaces,))
    steps = _flatten(decoder)
    if [step["type"] for step in steps] in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return Spelling(byte_level=True)
    return _read_steps(steps)


def _read_steps(steps: list[dict[str, Any]]) -> Spelling | None:
    """Token-wise steps, then perhaps byte fallback, then perhaps one strip of the fused text; else `None`.

    After byte fallback the tokens are no longer the tokenizer's, and after `Fuse` there is only one, so a token-wise
    step in either place would look across token boundaries.
    """
    per_token: list[Step] = []
    byte_runs = fused = False
    strip: dict[str, Any] | None = None
    for step in steps:
        kind = step["type"]
        build = _PER_TOKEN.get(kind)
        if kind == "Fuse":
            fused = True
        elif fused and kind == "Strip" and strip is None and not step["stop"]:
            strip = step
        elif kind == "ByteFallback" and not (fused or byte_runs):
            byte_runs = True
        elif build is not None and not (fused or byte_runs) and (built := build(step)) is not None:
            per_token.append(built)
        else:
            return None
    spelling = Spelling(steps=tuple(per_token), byte_runs=byte_runs)
    return replace(spelling, strip=strip["content"], strip_count=strip["start"]) if strip else spelling


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]


def _without_encoder_fields(step: dict[str, Any]) -> dict[str, Any]:
    """Decoders share their classes with pre-tokenizers, some of whose fields never reach the decoded text."""
    encoding_only = ("add_prefix_space", "trim_offsets", "use_regex", "split")
    return {field: value for field, value in step.items() if field not in encoding_only}


# ---- token-wise decoders ----------------------------------------------------------------------------------


def _joined_by_spaces(token: str, opens: bool) -> str:
    return token if opens else " " + token


def _replace(step: dict[str, Any]) -> Step | None:
    pattern, content = step["pattern"].get("String"), step["content"]
    return (lambda token, opens: token.replace(pattern, content)) if pattern else None


def _metaspace(step: dict[str, Any]) -> Step:
    marker = step["replacement"]
    opening = " " if step["prepend_scheme"] == "never" else ""
    return lambda token, opens: token.replace(marker, opening if opens else " ")


def _strip(step: dict[str, Any]) -> Step:
    content, start, stop = step["content"], step["start"], step["stop"]

    def stripped(token: str, opens: bool) -> str:
        token = _strip_leading(token, content, start)
        return _strip_leading(token[::-1], content, stop)[::-1]

    return stripped


def _wordpiece(step: dict[str, Any]) -> Step:
    prefix, cleanup = step["prefix"], step["cleanup"]

    def word(token: str, opens: bool) -> str:
        if not opens:
            token = token.removeprefix(prefix) if token.startswith(prefix) else " " + token
        return _tidy_english(token) if cleanup else token

    return word


_PER_TOKEN: dict[str, Callable[[dict[str, Any]], Step | None]] = {
    "Replace": _replace,
    "Metaspace": _metaspace,
    "Strip": _strip,
    "WordPiece": _wordpiece,
}

_TIDY = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'"), (" n't", "n't"), (" 'm", "'m")]
_TIDY += [(" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")]


def _tidy_english(text: str) -> str:
    """The clean-up that WordPiece decoders apply to each token, in their order."""
    for untidy, tidy in _TIDY:
        text = text.replace(untidy, tidy)
    return text


def _strip_leading(text: str, character: str, most: int) -> str:
    bare = text.lstrip(character)
    return text[min(most, len(text) - len(bare)) :]


# ---- bytes ------------------------------------------------------------------------------------------------


def _alphabet() -> dict[int, int]:
    """Code point -> byte of the byte-level alphabet, which gives every byte a printable character.

    Printable Latin-1 stands for itself, the other bytes follow in order from U+0100. The code points of those others
    are not in the alphabet; sending them beyond Latin-1 lets one `encode` notice them.
    """
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in themselves]
    return (
        dict.fromkeys(others, 0xFFFF)
        | dict(zip(themselves, themselves, strict=True))
        | {0x100 + i: b for i, b in enumerate(others)}
    )


_BYTE_OF_CODE_POINT = _alphabet()
_BYTE_TOKEN = re.compile("<0x([0-9a-fA-F]{2})>")


def _alphabet_bytes(token: str) -> bytes:
    """The bytes of a token. One with a character outside of the alphabet (an added token) is spelled as it stands."""
    try:
        return token.translate(_BYTE_OF_CODE_POINT).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _as_text(raw: bytes) -> Piece:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _fallback_byte(token: str) -> bytes | None:
    found = _BYTE_TOKEN.fullmatch(token)
    return None if found is None else bytes.fromhex(found[1])
