"""The two tokenizers of the bundled models: different kinds on purpose, so that drafting across them is real work."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
UNKNOWN = "<unk>"
WORDS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""Where byte-pair merges may not cross: words with the space before them, numbers of up to three digits, line ends."""


def byte_level(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Byte-pair encoding over bytes, as GPT-2, Llama 3 and Qwen have it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return _wrapped(backend)


def unigram(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """A unigram language model over pieces with a visible space, and bytes for what no piece covers: the form of
    SentencePiece."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", behavior="removed"),
            pre_tokenizers.Split("▁", behavior="merged_with_next"),
        ]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=size - len(fallback) - 1, unk_token=UNKNOWN, special_tokens=[UNKNOWN], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    learned = [(piece, score) for piece, score in _pieces(backend) if piece != UNKNOWN]
    pieces = [(UNKNOWN, 0.0), *((piece, 0.0) for piece in fallback), *learned]
    backend.model = models.Unigram(pieces, unk_id=0, byte_fallback=True)
    backend.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _wrapped(backend)


def _pieces(backend: Tokenizer) -> list[tuple[str, float]]:
    model = json.loads(backend.to_str())["model"]
    return [(str(piece), float(score)) for piece, score in model["vocab"]]


def _wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([END])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, clean_up_tokenization_spaces=False)
