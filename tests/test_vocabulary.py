"""Ids to text: one truth, the tokenizer's own decode of whole sequences, for every kind of tokenizer."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from paceline.vocabulary import Detokenizer, Vocabulary
from tokenizer_kinds import (
    FOR_TEXT,
    GROWING,
    OPAQUE,
    REAL,
    REAL_NAMES,
    REPLACEMENT,
    STREAMABLE,
    TEXTS,
    byte_level,
    decode,
    ids_named,
    random_sequences,
    tokenizer_of,
    vocabulary_of,
    words,
    wrapped,
)

# --- detokenising -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("name", [*STREAMABLE, *GROWING, *REAL_NAMES])
def test_a_stream_is_the_whole_decode_and_takes_nothing_back(name: str, skip_special: bool) -> None:
    sequences = [vocabulary_of(name).encode(text).tolist() for text in TEXTS] if name in REAL_NAMES else []
    for ids in [*sequences, *random_sequences(name, 200)]:
        text, told = Detokenizer(vocabulary_of(name), skip_special), ""
        whole = decode(name, ids, skip_special)
        for token in ids:
            told += text.push(token)
            assert whole.startswith(told)
        assert told + text.finish() == whole


def test_only_decoders_that_look_across_tokens_are_opaque() -> None:
    real = REAL_NAMES if REAL.exists() else []
    assert [name for name in [*STREAMABLE, *real] if vocabulary_of(name).table is None] == []
    assert [name for name in OPAQUE if vocabulary_of(name).table is not None] == []


@pytest.mark.parametrize("name", FOR_TEXT)
def test_every_character_is_told_as_soon_as_it_is_certain(name: str) -> None:
    vocabulary = vocabulary_of(name)
    for sentence in TEXTS:
        text, told = Detokenizer(vocabulary), ""
        ids = vocabulary.encode(sentence).tolist()
        for i, token in enumerate(ids):
            piece = text.push(token)
            told += piece
            assert REPLACEMENT not in piece
            certain = told + text.unsettled()
            if not decode(name, ids[: i + 1]).endswith(REPLACEMENT):
                assert certain == decode(name, ids[: i + 1])


@pytest.mark.parametrize("name", [*FOR_TEXT, "fuse, then metaspace"])
def test_a_continuation_says_what_the_prompt_has_not(name: str) -> None:
    for sentence in TEXTS:
        ids = vocabulary_of(name).encode(sentence).tolist()
        for cut in range(len(ids) + 1):
            text = Detokenizer(vocabulary_of(name), prefix=ids[:cut])
            rest = "".join(map(text.push, ids[cut:])) + text.finish()
            prompt, whole = decode(name, ids[:cut]), decode(name, ids)
            assert whole.endswith(rest)
            if REPLACEMENT not in prompt:
                assert prompt + rest == whole


@pytest.mark.parametrize("name", STREAMABLE)
def test_priming_with_a_prompt_is_pushing_it_unheard(name: str) -> None:
    """Where the prompt ends with a whole character, that is: what waits at its end is the prompt's own."""
    table = vocabulary_of(name).table
    assert table is not None
    whole = {i for i, piece in enumerate(table.plain) if isinstance(piece, str) and piece}
    for ids in random_sequences(name, 200, seed=1):
        pushed = Detokenizer(vocabulary_of(name))
        for cut, token in enumerate(ids):
            pushed.push(token)
            if token in whole:
                primed, twin = Detokenizer(vocabulary_of(name), prefix=ids[: cut + 1]), pushed.copy()
                rest = ids[cut + 1 :]
                assert [*map(primed.push, rest), primed.finish()] == [*map(twin.push, rest), twin.finish()]


def test_a_space_before_the_first_generated_word_survives() -> None:
    prompt, word = ids_named("fallback, strip", "▁the"), ids_named("fallback, strip", "▁ri")
    assert Detokenizer(vocabulary_of("fallback, strip")).push(word[0]) == "ri"
    assert Detokenizer(vocabulary_of("fallback, strip"), prefix=prompt).push(word[0]) == " ri"
    spaced = ids_named("fallback, strip two", "a", "▁")
    assert Detokenizer(vocabulary_of("fallback, strip two"), prefix=spaced).push(word[0]) == " ri"
    end = ids_named("fallback, strip", "<|end|>")
    assert Detokenizer(vocabulary_of("fallback, strip"), prefix=end).push(word[0]) == "ri"


@pytest.mark.parametrize(
    ("tokens", "pushes", "rest"),
    [
        (["<0xC3>", "<0xA9>", "a"], ["", "", "éa"], ""),
        (["<0xC3>", "<|end|>", "<0xA9>"], ["", "", ""], "é"),
        (["<0xC3>", "<0xA9>", "<0xC3>"], ["", "", ""], "\ufffd\ufffd\ufffd"),
        (["<0xC3>", "<0xA9>", "<0xFF>", "<0x41>", "a"], ["", "", "\ufffd\ufffd\ufffd", "\ufffd", "a"], ""),
        (["<0xE2>", "<0x82>", "a", "<0xAC>"], ["", "", "\ufffd\ufffda", "\ufffd"], ""),
        (["<0x20>", "<0x61>", "b"], ["", "", "ab"], ""),
        (["<0x20>", "<0x61>"], ["", ""], "a"),
    ],
)
def test_a_byte_run_stands_or_falls_as_a_whole(tokens: list[str], pushes: list[str], rest: str) -> None:
    text = Detokenizer(vocabulary_of("fallback, strip"))
    assert [text.push(token) for token in ids_named("fallback, strip", *tokens)] == pushes
    assert text.finish() == rest


@pytest.mark.parametrize("name", [*STREAMABLE, *GROWING])
def test_a_copy_goes_its_own_way(name: str) -> None:
    for ids, other in zip(random_sequences(name, 40), random_sequences(name, 40, seed=2), strict=True):
        text = Detokenizer(vocabulary_of(name))
        told = "".join(map(text.push, ids))
        twin = text.copy()
        assert told + "".join(map(twin.push, other)) + twin.finish() == decode(name, ids + other)
        assert told + "".join(map(text.push, ids)) + text.finish() == decode(name, ids + ids)


# --- the vocabulary ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "token", "spelled"),
    [
        ("byte-level", "Ġ", b" "),
        ("byte-level", "ê", b"\xea"),
        ("byte-level", "ż ółw", "ż ółw".encode()),
        ("byte-level", "ê b", "ê b".encode()),
        ("fallback, strip", "<0xE2>", b"\xe2"),
        ("fallback, strip", "▁▁▁", b"   "),
        ("fallback, strip", "<|end|>", b"<|end|>"),
        ("replace, strip each", "<0xE2>", b"<0xE2>"),
        ("metaspace always", "▁ri▁", b" ri "),
        ("wordpiece", "##s", b"s"),
        ("wordpiece", "rider", b" rider"),
        ("wordpiece", ".", b"."),
        ("wordpiece untidied", ".", b" ."),
        ("no decoder", "##s", b" ##s"),
        ("word ends", "ri", b"ri"),
        ("fuse, then metaspace", "▁the", b" the"),
    ],
)
def test_what_a_token_spells_inside_a_text(name: str, token: str, spelled: bytes) -> None:
    assert vocabulary_of(name).token_bytes(*ids_named(name, token)) == spelled


@pytest.mark.parametrize("name", ["byte-level", "fallback", "metaspace never"])
def test_the_bytes_of_an_encoded_text_are_its_bytes(name: str) -> None:
    vocabulary = vocabulary_of(name)
    for sentence in TEXTS:
        ids = vocabulary.encode(sentence)
        spelled = b"".join(map(vocabulary.token_bytes, ids.tolist()))
        assert spelled.decode() == vocabulary.text(ids) == decode(name, ids.tolist())
        assert spelled.decode().strip() == sentence.strip() or name == "metaspace never"


def test_special_tokens_are_encoded_on_demand() -> None:
    backend = byte_level()
    backend.add_special_tokens(["<|end|>"])
    end = backend.token_to_id("<|end|>")
    backend.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", end)])
    vocabulary = Vocabulary(wrapped(backend))
    ids = vocabulary.encode("łódź")
    assert (ids.dtype, ids[0]) == (np.int64, end)
    assert vocabulary.encode("łódź", add_special=False).tolist() == ids[1:].tolist()
    assert vocabulary.text(ids) == "łódź"
    assert vocabulary.text(ids, skip_special=False) == "<|end|>łódź"


def test_unused_ids_and_ids_beyond_the_vocabulary_say_nothing() -> None:
    gap = Tokenizer(models.WordLevel({"a": 0, "b": 5}, unk_token="a"))
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=gap))
    assert (vocabulary.size, vocabulary.token_bytes(3), vocabulary.token_bytes(99)) == (6, b"", b"")
    text = Detokenizer(vocabulary)
    assert [text.push(token) for token in (3, 0, 99, 5, 4)] == ["", "a", "", " b", ""]


def test_specials_are_the_ids_that_decoding_skips() -> None:
    vocabulary = vocabulary_of("byte-level")
    skipped = {i for i in range(vocabulary.size) if vocabulary.text([i]) != vocabulary.text([i], skip_special=False)}
    assert vocabulary.specials == skipped == set(ids_named("byte-level", "<|end|>", "<|user|>"))


def test_a_tokenizer_that_decodes_its_own_way_is_taken_at_its_word() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return super()._decode(*args, **kwargs).upper()

    vocabulary = Vocabulary(wrapped(byte_level(), Shouting))
    ids = vocabulary.encode("the łódź").tolist()
    text = Detokenizer(vocabulary)
    assert vocabulary.table is None
    assert "".join(map(text.push, ids)) + text.finish() == vocabulary.text(ids) == "THE ŁÓDŹ"


def test_a_decoder_written_in_python_is_opaque() -> None:
    class Reversing:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return [token[::-1] for token in tokens]

    tokenizer = wrapped(words(None))
    tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(Reversing())
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.token_bytes(1) == b"eht"
    assert len(vocabulary.fingerprint) == 16


def test_a_tokenizer_without_backend_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="ByT5Tokenizer has no tokenizers backend"):
        Vocabulary(ByT5Tokenizer())


def fingerprint(vocab: dict[str, int], decoder: Any = None, special: Sequence[str] = ()) -> str:
    backend = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    backend.add_special_tokens(list(special))
    stored = json.loads(backend.to_str()) | {"decoder": decoder}
    loaded = Tokenizer.from_str(json.dumps(stored))
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=loaded)).fingerprint


def test_the_fingerprint_is_a_constant_of_what_ids_spell() -> None:
    vocab = {"a": 0, "b": 1, "ż": 2}
    base = fingerprint(vocab)
    assert base == "490b3eee44f0302d"  # what is stored under it must be found again
    assert base == fingerprint({"ż": 2, "b": 1, "a": 0})
    plain = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    other = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    byte_level_print = fingerprint(vocab, plain)
    assert byte_level_print == fingerprint(vocab, other)
    assert byte_level_print == fingerprint(vocab, {"type": "Sequence", "decoders": [plain]})
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    metaspace_print = fingerprint(vocab, metaspace)
    assert metaspace_print == fingerprint(vocab, metaspace | {"split": False})
    other_meanings = [
        fingerprint({"a": 0, "b": 2, "ż": 1}),
        fingerprint(vocab, special=["b"]),
        fingerprint(vocab, metaspace | {"prepend_scheme": "never"}),
    ]
    assert len({base, byte_level_print, metaspace_print, *other_meanings}) == 6


# --- many texts at once -----------------------------------------------------------------------------------

WORDS = " ".join(TEXTS).split()
AWKWARD = ["", " ", "\n", "<|end|>the rider<|user|>", "the", " the", "the rider", "ê ż ółw", *TEXTS, *WORDS]


@pytest.mark.parametrize("name", [*STREAMABLE, *OPAQUE, *REAL_NAMES])
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
