"""A tokenizer as GGUF files have it, and back: byte-level BPE by the name of its pattern, and SentencePiece's BPE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import decoders

from paceline.errors import UnsupportedModel
from paceline.vocabulary import Vocabulary

NOT_LETTERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPLITTING = {
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "dbrx": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + NOT_LETTERS + r"|\s*[\r\n]|\s+(?!\S)|\s+",
    "llama-bpe": ENDINGS + r"|\p{N}{1,3}" + NOT_LETTERS + SPACES,
    "qwen2": ENDINGS + r"|\p{N}" + NOT_LETTERS + SPACES,
    "tekken": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    + SPACES,
}
"""llama.cpp's name of a pattern that splits a text -> the pattern."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
MARKER = "\u2581"
NEVER = -1e9
"""The score of tokens that are not merged from others."""
ENDS = ("eos", "eot", "eom")
"""Keys of a file for tokens that end a text."""
ANOTHER = "write the file without it, with --no-tokenizer, for texts as token ids"


def byte_level_decoder() -> Any:
    return decoders.ByteLevel()


def sentencepiece_decoder(prefix: bool) -> Any:
    """``prefix``: a text is read as if a space stood before it."""
    steps = [decoders.Replace(MARKER, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(content=" ", left=1, right=0)] if prefix else steps)


def add_tokenizer(writer: Any, vocabulary: Vocabulary, size: int) -> None:
    """Write ``size`` tokens and how a text is split into them. `UnsupportedModel` where llama.cpp splits otherwise."""
    rule = json.loads(vocabulary.backend.to_str())
    model, decoder = rule["model"], (rule["decoder"] or {}).get("type")
    if model["type"] != "BPE":
        raise _refused(f"its model is {model['type']}")
    strings = [vocabulary.backend.id_to_token(token) for token in range(size)]
    if decoder == "ByteLevel":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pattern(rule))
        writer.add_token_list(_named(strings))
        writer.add_token_merges([" ".join(pair) for pair in _merges(model)])
    elif model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(_named(strings))
        writer.add_token_scores(_scores(strings, model))
        writer.add_add_space_prefix(_begins_with_space(vocabulary))
    else:
        raise _refused("it is neither byte-level nor of SentencePiece")
    writer.add_token_types(_types(vocabulary, strings, model))
    _add_specials(writer, vocabulary, size)


def _refused(why: str) -> UnsupportedModel:
    return UnsupportedModel(f"this tokenizer is not written to GGUF files here: {why}; {ANOTHER}")


def _named(strings: list[str | None]) -> list[str]:
    return [f"[PAD{token}]" if string is None else string for token, string in enumerate(strings)]


def _merges(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for pair in model["merges"]:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        yield left, right


def _pattern(rule: dict[str, Any]) -> str:
    """llama.cpp's name of the pattern by which a byte-level tokenizer splits a text."""
    given = rule["pre_tokenizer"] or {}
    parts = given.get("pretokenizers", [given])
    if (rule["normalizer"] or {}).get("type", "NFC") != "NFC":
        raise _refused(f"it changes texts by {rule['normalizer']['type']}")
    *before, last = parts
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise _refused("it does not read the bytes of a text as they are")
    pattern: str | None = None
    if last.get("use_regex", True):
        pattern = SPLITTING["gpt-2"] if not before else None
    elif len(before) == 1 and before[0]["type"] == "Split" and before[0]["behavior"] == "Isolated":
        pattern = before[0]["pattern"].get("Regex")
    name = next((name for name, known in SPLITTING.items() if known == pattern), None)
    if name is None:
        raise _refused("llama.cpp has no name that is known here for the pattern by which it splits a text")
    return name


def _scores(strings: list[str | None], model: dict[str, Any]) -> list[float]:
    """SentencePiece merges the pair whose token has the best score; tokenizers has the pairs in that order, but for
    runs of spaces, which all give the same tokens."""
    scores, before = dict[str, float](), ""
    for rank, pair in enumerate(_merges(model)):
        token = "".join(pair)
        if token in scores and token != before and token.strip(MARKER):
            raise _refused("its merges are in no order that scores of tokens give")
        scores.setdefault(token, -float(rank))
        before = token
    return [NEVER if string is None else scores.get(string, NEVER) for string in strings]


def _begins_with_space(vocabulary: Vocabulary) -> bool:
    """Whether a text is read as if a space stood before it."""
    first = vocabulary.encode("a", add_special=False)
    return bool(vocabulary.backend.id_to_token(int(first[0])).startswith(MARKER))


def _types(vocabulary: Vocabulary, strings: list[str | None], model: dict[str, Any]) -> list[int]:
    import gguf

    kinds = gguf.TokenType
    added = vocabulary.backend.get_added_tokens_decoder()

    def kind(token: int, string: str | None) -> Any:
        if string is None:
            return kinds.UNUSED
        if string == model.get("unk_token"):
            return kinds.UNKNOWN
        if token in vocabulary.specials:
            return kinds.CONTROL
        if token in added:
            return kinds.USER_DEFINED
        return kinds.BYTE if model.get("byte_fallback") and BYTE.fullmatch(string) else kinds.NORMAL

    return [kind(token, string) for token, string in enumerate(strings)]


def _add_specials(writer: Any, vocabulary: Vocabulary, size: int) -> None:
    """The tokens with a meaning, and which of them stand around every text."""
    tokenizer: Any = vocabulary.tokenizer
    known = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "unk", "pad")}
    inside, whole = vocabulary.encode("a", add_special=False).tolist(), vocabulary.encode("a").tolist()
    at = next((at for at in range(len(whole)) if whole[at : at + len(inside)] == inside), 0)
    front, back = whole[:at], whole[at + len(inside) :]
    if len(front) > 1 or back:
        raise _refused("it puts more around a text than one token before it")
    if front:
        known["bos"] = front[0]
    for name, token in known.items():
        if token is not None and token < size:
            getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_bos_token(bool(front))
    writer.add_add_eos_token(False)
    if template := getattr(tokenizer, "chat_template", None):
        several = isinstance(template, dict)
        writer.add_chat_template(
            [{"name": name, "template": text} for name, text in template.items()] if several else template
        )


def add_ends(writer: Any, ends: frozenset[int], usual: int | None) -> None:
    """The tokens that end a text: the tokenizer's own first."""
    ordered = sorted(ends, key=lambda token: (token != usual, token))
    for name, token in zip(ENDS, ordered, strict=False):
        getattr(writer, f"add_{name}_token_id")(token)
