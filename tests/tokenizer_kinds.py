"""Small tokenizers of every kind that turns ids into text in its own way, and the real ones where they are.

They are made for their decoders: few words, all that is awkward (markers inside tokens, lone bytes, added
tokens outside of the byte alphabet).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paceline.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"
TEXTS = [
    "The rider in front breaks the wind, the others don't.",
    "Zażółć gęślą jaźń: źdźbło, łódź i święto.",
    "Їжак і ґава їдять пиріжки під дощем.",
    "風を切るのは先頭の人だけだ。",
    "👩‍👩‍👧‍👦 café naïve — 🇵🇱🇺🇦 ok 🚴🏽",
    "  two spaces, a tab\tand\n\nlines  ",
]
REAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "tokenizers"
REAL_NAMES = [
    "bielik-v2",
    "bielik-v3-APT4",
    "gpt2",
    "llama3",
    "mistral-nemo-tekken",
    "mistral-v3",
    "qwen2-2.5-3",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    # "ê" is a letter of the byte alphabet and stands for the lone byte 0xEA; a space and "ż" are none, and a
    # token that has one of them is spelled as it stands
    tokenizer.add_tokens([AddedToken(name) for name in ("ê", "ê b", "ż ółw", "<tool>")])
    return tokenizer


def sentencepiece(decoder: Any) -> Tokenizer:
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.,"]
    names += ["▁the", "▁ri", "der", "▁▁▁", "▁w", "ó", "ł", "é▁x"]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    return tokenizer


def unigram(prepend_scheme: str) -> Tokenizer:
    pieces = ["<unk>", "▁", "▁▁", *dict.fromkeys("".join(TEXTS).replace(" ", "")), "▁the", "▁ri▁", "der"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    return tokenizer


def words(decoder: Any) -> Tokenizer:
    names = ["[UNK]", "the", "rider", "##s", "##", "do", "not", "##n't", "n't", ".", "?", "'", "źdźbło", "風"]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoder
    return tokenizer


def word_ends(decoder: Any) -> Tokenizer:
    names = ["<unk>", "the</w>", "ri", "der</w>", "s</w>", "__", "_a__b", "ł</w>", "</w>"]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoder
    return tokenizer


def sequence(*steps: Any) -> Any:
    return decoders.Sequence(list(steps))


SPACE = decoders.Replace("▁", " ")
BYTES, FUSE = decoders.ByteFallback(), decoders.Fuse()
STREAMABLE: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "fallback, strip": lambda: sentencepiece(sequence(SPACE, BYTES, FUSE, decoders.Strip(" ", 1, 0))),
    "fallback, strip two": lambda: sentencepiece(sequence(SPACE, BYTES, FUSE, decoders.Strip(" ", 2, 0))),
    "fallback": lambda: sentencepiece(sequence(SPACE, BYTES, FUSE)),
    "replace, strip each": lambda: sentencepiece(sequence(SPACE, decoders.Strip("r", 0, 1), decoders.Strip(" ", 1, 0))),
    "metaspace always": lambda: unigram("always"),
    "metaspace first": lambda: unigram("first"),
    "metaspace never": lambda: unigram("never"),
    "wordpiece": lambda: words(decoders.WordPiece("##", cleanup=True)),
    "wordpiece untidied": lambda: words(decoders.WordPiece("##", cleanup=False)),
    "no decoder": lambda: words(None),
}
OPAQUE: dict[str, Callable[[], Tokenizer]] = {
    "word ends": lambda: word_ends(decoders.BPEDecoder("</w>")),
    "regex": lambda: word_ends(decoders.Replace(Regex("_+|</w>"), " ")),
    "strip the end": lambda: sentencepiece(sequence(SPACE, FUSE, decoders.Strip("r", 0, 1))),
    "fuse, then metaspace": lambda: sentencepiece(sequence(BYTES, FUSE, decoders.Metaspace(prepend_scheme="never"))),
}
# opaque, but whatever the ids, their text only grows at its end; byte fallback takes good characters back
GROWING = ["word ends", "regex"]
# able to encode the texts above
FOR_TEXT = ["byte-level", "fallback, strip", "fallback", "metaspace always", "metaspace never"]


def wrapped(backend: Tokenizer, cls: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast) -> Any:
    backend.add_special_tokens(["<|end|>", "<|user|>"])
    return cls(tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False)


@cache
def tokenizer_of(name: str) -> Any:
    if name in REAL_NAMES:
        if not REAL.exists():
            pytest.skip("real tokenizers are not here: ../shared/data/tokenizers is absent")
        return AutoTokenizer.from_pretrained(REAL / name)
    return wrapped((STREAMABLE | OPAQUE)[name]())


@cache
def vocabulary_of(name: str) -> Vocabulary:
    return Vocabulary(tokenizer_of(name))


def decode(name: str, ids: Sequence[int], skip_special: bool = True) -> str:
    text: str = tokenizer_of(name).decode(
        list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
    )
    return text


def random_sequences(name: str, count: int, seed: int = 0) -> Iterator[list[int]]:
    """Nonsense rich in what is hard: bytes that make no character, special tokens, ids beyond the last."""
    rng, vocabulary = random.Random(seed), vocabulary_of(name)
    assert vocabulary.table is None or len(vocabulary.table.all) == vocabulary.size
    raw = [i for i, p in enumerate(vocabulary.table.all if vocabulary.table else []) if isinstance(p, bytes)]
    for _ in range(count):
        pools = [raw or range(vocabulary.size), range(vocabulary.size + 2), sorted(vocabulary.specials)]
        yield [rng.choice(rng.choices(pools, [6, 5, 1])[0]) for _ in range(rng.randrange(24))]


def ids_named(name: str, *tokens: str) -> list[int]:
    return [tokenizer_of(name).convert_tokens_to_ids(token) for token in tokens]
