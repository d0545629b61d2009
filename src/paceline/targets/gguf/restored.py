"""The tokenizer of a GGUF file, made again for the tokenizers library where llama.cpp is not there to encode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from paceline.targets.gguf.spelling import MARKER, SPLITTING, byte_level_decoder, sentencepiece_decoder

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens."""
WHOLE_FIRST = ("llama-bpe", "tekken")
"""Patterns with which llama.cpp takes a word that is a token as it is, without merging."""
NAMED = ("bos", "eos", "pad")

Said = Callable[..., Any]
"""A value of the file's metadata, or the default."""


def restored(said: Said) -> PreTrainedTokenizerFast | None:
    """The tokenizer; None for a kind that is not known here."""
    kind, pre = said("tokenizer.ggml.model"), said("tokenizer.ggml.pre", "")
    strings: list[str] = said("tokenizer.ggml.tokens", [])
    types: list[int] = said("tokenizer.ggml.token_type", [NORMAL] * len(strings))
    if kind == "gpt2" and pre in SPLITTING:
        tokenizer = _byte_level(said, strings, types, pre)
    elif kind == "llama":
        tokenizer = _sentencepiece(said, strings, types)
    else:
        return None
    for wanted in (CONTROL, USER_DEFINED):
        found = [string for string, one in zip(strings, types, strict=True) if one == wanted]
        tokenizer.add_tokens([AddedToken(string, special=wanted == CONTROL, normalized=False) for string in found])
    named = {name: said(f"tokenizer.ggml.{name}_token_id") for name in NAMED}
    begin = named["bos"]
    if said("tokenizer.ggml.add_bos_token", kind == "llama") and begin is not None:
        bos = strings[begin]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, begin)])
    given = {f"{name}_token": strings[token] for name, token in named.items() if token is not None}
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)
    whole.chat_template = said("tokenizer.chat_template")
    return whole


def _ids(strings: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    return {string: token for token, string in enumerate(strings) if types[token] != UNUSED}


def _byte_level(said: Said, strings: Sequence[str], types: Sequence[int], pre: str) -> Tokenizer:
    merges = [tuple(pair.split(" ", 1)) for pair in said("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(_ids(strings, types), merges, ignore_merges=pre in WHOLE_FIRST))
    split = pre_tokenizers.Split(Regex(SPLITTING[pre]), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = byte_level_decoder()
    return tokenizer


def _sentencepiece(said: Said, strings: Sequence[str], types: Sequence[int]) -> Tokenizer:
    ids, prefix = _ids(strings, types), bool(said("tokenizer.ggml.add_space_prefix", True))
    scores: list[float] = said("tokenizer.ggml.scores")
    merges = [
        (scores[token], string[:cut], string[cut:])
        for token, string in enumerate(strings)
        if types[token] == NORMAL
        for cut in range(1, len(string))
        if string[:cut] in ids and string[cut:] in ids
    ]
    merges.sort(key=lambda merge: -merge[0])
    unknown = said("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            ids,
            [(left, right) for _, left, right in merges],
            unk_token=strings[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    before = [normalizers.Prepend(MARKER)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", MARKER)])
    tokenizer.decoder = sentencepiece_decoder(prefix)
    return tokenizer
