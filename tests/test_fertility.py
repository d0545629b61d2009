"""Many texts encoded at once, and how many tokens a word takes."""

import pytest
from tokenizers import processors

from paceline.vocabulary import Vocabulary
from tokenizer_kinds import OPAQUE, REAL_NAMES, STREAMABLE, TEXTS, byte_level, tokenizer_of, wrapped

KINDS = [*STREAMABLE, *OPAQUE, *REAL_NAMES]
AWKWARD = [
    "",
    " ",
    "\n",
    "<|end|>the rider<|user|>",
    "the",
    " the",
    "the rider",
    "ê ż ółw",
    *TEXTS,
    *" ".join(TEXTS).split(),
]


@pytest.mark.parametrize("name", KINDS)
def test_texts_encoded_at_once_are_texts_encoded_one_by_one(name: str) -> None:
    vocabulary = Vocabulary(tokenizer_of(name))
    assert vocabulary.encode_all(AWKWARD) == [vocabulary.encode(text, add_special=False).tolist() for text in AWKWARD]
    assert vocabulary.encode_all([]) == []


def test_texts_encoded_at_once_are_neither_cut_nor_padded_nor_marked() -> None:
    """Whoever used the tokenizer before may have left it cutting and padding."""
    tokenizer = wrapped(byte_level())
    backend, vocabulary = tokenizer.backend_tokenizer, Vocabulary(tokenizer)
    marks = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<|user|>", "<|end|>")]
    backend.post_processor = processors.TemplateProcessing(single="<|user|> $A <|end|>", special_tokens=marks)
    assert len(vocabulary.encode("the")) == len(vocabulary.encode_all(["the"])[0]) + 2
    whole = [vocabulary.encode(text, add_special=False).tolist() for text in AWKWARD]
    backend.enable_truncation(2)
    backend.enable_padding(length=400)
    assert vocabulary.encode_all(AWKWARD) == whole
