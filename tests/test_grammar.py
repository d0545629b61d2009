"""Texts that follow a grammar: valid, the same with every method, and masked as a search over all texts says."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import paceline
from paceline import Grammar, InputError, Sampling
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.forced import spelled
from paceline.grammar import llguidance
from paceline.grammar.following import TextMatcher, bound_to
from paceline.law import Law, Outlook
from paceline.targets.table import TableTarget, random_table
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from schemas import ANIMAL, SCHEMAS, YES, made_of

PROMPT = "Once upon a time"
TEMPERATURES = (0.0, 0.8, 1.2)
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "auto"},
    {"method": "lookup"},
    {"method": "assistant", "draft_model": "pocket-draft", "planner": "fixed:4"},
    {"method": "forced", "planner": "fixed:12"},
)
LONGEST = 160


@pytest.fixture(scope="module")
def lm() -> Iterator[paceline.LanguageModel]:
    model = paceline.load("pocket", dtype="float32", generation_config=False, probe=False)
    yield model
    model.forget()


def every(temperature: float | None = None) -> list[dict[str, Any]]:
    """The settings of a text of each schema, at one temperature or at all in turn."""
    return [
        {
            "grammar": Grammar.json_schema(schema),
            "temperature": TEMPERATURES[number % 3] if temperature is None else temperature,
            "seed": number,
            "max_new_tokens": LONGEST,
        }
        for number, schema in enumerate(SCHEMAS.values())
    ]


def written_together(lm: paceline.LanguageModel, each: list[dict[str, Any]], **how: Any) -> list[paceline.Generation]:
    return [text for (text,) in lm.generate_batch([PROMPT] * len(each), each=each, **how)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain(lm: paceline.LanguageModel) -> list[paceline.Generation]:
    return [lm.generate(PROMPT, method="plain", **settings) for settings in every()]


# --- texts --------------------------------------------------------------------------------------------------


def valid(text: paceline.Generation, schema: Any) -> bool:
    """Whether a text that ended by its end token is valid; others were cut."""
    if text.finish != "eos":
        return False
    jsonschema.validate(json.loads(text.text), schema)
    return True


def test_texts_are_valid(plain: list[paceline.Generation]) -> None:
    ended = [valid(text, schema) for text, schema in zip(plain, SCHEMAS.values(), strict=True)]
    assert len(SCHEMAS) == 30
    assert sum(ended) >= 28


@pytest.mark.parametrize("how", METHODS, ids=lambda how: how["method"])
def test_every_method_writes_plains_text_in_a_batch(
    how: dict[str, Any], lm: paceline.LanguageModel, plain: list[paceline.Generation]
) -> None:
    step = 4 if how["method"] == "assistant" else 1  # which is slow, and drafts without the grammar
    texts = written_together(lm, every()[::step], **how)
    assert [text.tokens for text in texts] == [text.tokens for text in plain[::step]]
    assert sum(each.accepted for text in texts for each in text.rounds) > 0


@pytest.mark.parametrize("how", METHODS, ids=lambda how: how["method"])
def test_every_method_writes_plains_text_alone(
    how: dict[str, Any], lm: paceline.LanguageModel, plain: list[paceline.Generation]
) -> None:
    for number in range(2, len(SCHEMAS), 9):
        assert lm.generate(PROMPT, **how, **every()[number]).tokens == plain[number].tokens


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_method_writes_plains_text_of_every_schema_at_every_temperature(
    temperature: float, lm: paceline.LanguageModel
) -> None:
    each = every(temperature)
    plain = [lm.generate(PROMPT, method="plain", **settings) for settings in each]
    assert sum(valid(text, schema) for text, schema in zip(plain, SCHEMAS.values(), strict=True)) >= 24
    for how in METHODS:
        alone = [lm.generate(PROMPT, **how, **settings).tokens for settings in each]
        assert alone == [text.tokens for text in plain], how
        together = [text.tokens for text in written_together(lm, each, **how)]
        assert together == alone, how


def test_texts_of_the_rejection_rule_are_valid(lm: paceline.LanguageModel) -> None:
    each = [settings for number, settings in enumerate(every(1.2)) if number % 6 == 0]
    texts = written_together(lm, each, method="assistant", draft_model="pocket-draft", rule=Rule.REJECTION)
    ended = [valid(text, schema) for text, schema in zip(texts, list(SCHEMAS.values())[::6], strict=True)]
    assert sum(ended) >= 3


def test_samples_and_paused_texts_are_plains(lm: paceline.LanguageModel) -> None:
    how: Any = {"grammar": Grammar.json_schema(SCHEMAS["person"]), "temperature": 1.2, "seed": 5}
    alone = lm.sample(PROMPT, n=3, method="plain", **how)
    assert len({text.text for text in alone}) > 1
    assert [text.tokens for text in lm.sample(PROMPT, n=3, method="forced", **how)] == [text.tokens for text in alone]
    with lm.batch() as batch:
        texts = [batch.add(PROMPT, sample=number, method="auto", **how) for number in range(3)]
        for _ in range(3):
            batch.step()
        batch.pause(texts[1])
        for _ in range(4):
            batch.step()
        batch.resume(texts[1])
        for _ in batch:
            pass
        assert [text.result().tokens for text in texts] == [text.tokens for text in alone]
    assert texts[0].result().sampling == Sampling(**how), "the settings as they were given"


@pytest.mark.parametrize("layout", ["line", "compact", "any"])
def test_layouts_of_json(layout: str, lm: paceline.LanguageModel) -> None:
    schema = made_of({"a": YES, "b": {"type": "array", "items": YES, "minItems": 2, "maxItems": 2}})
    text = lm.generate(PROMPT, grammar=Grammar.json_schema(schema, layout=layout), seed=1, temperature=0.8)
    found = json.loads(text.text)
    jsonschema.validate(found, schema)
    separators = {"line": (", ", ": "), "compact": (",", ":")}.get(layout)
    if separators:
        assert text.text == json.dumps(found, separators=separators)


OTHERS = {
    "regex": (Grammar.regex(r"[A-Z]{2}/\d{1,3}( ł+|!)"), r"[A-Z]{2}/[0-9]{1,3}( ł+|!)"),
    "choice": (Grammar.choice(["żółw", 'a b"c\\d', "кіт\n", "x|y"]), 'żółw|a b"c\\\\d|кіт\n|x[|]y'),
    "lark": (Grammar.lark('start: "a"+ (" b" | " c") NUMBER\nNUMBER: /[0-9]{1,2}/'), "a+ [bc][0-9]{1,2}"),
    "gbnf": (Grammar.gbnf('root ::= "a"+ item\nitem ::= "x" | "y"'), "a+[xy]"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_grammars(kind: str, lm: paceline.LanguageModel) -> None:
    grammar, expression = OTHERS[kind]
    for seed in range(4):
        how: Any = {"grammar": grammar, "temperature": 1.0, "seed": seed, "max_new_tokens": 200}
        text = lm.generate(PROMPT, method="plain", **how)
        assert text.finish != "eos" or re.fullmatch(expression, text.text), text.text
        assert lm.generate(PROMPT, method="auto", **how).tokens == text.tokens


def test_any_json_object(lm: paceline.LanguageModel) -> None:
    how: Any = {"grammar": Grammar.json_object(), "temperature": 1.0, "max_new_tokens": 120}
    texts = [lm.generate(PROMPT, method="auto", seed=seed, **how) for seed in range(3)]
    assert all(text.text.startswith("{") for text in texts)
    for text in texts:
        assert text.finish == "length" or isinstance(json.loads(text.text), dict)


def test_a_text_is_free_up_to_its_marker(lm: paceline.LanguageModel) -> None:
    """The marker ends wherever it may in a token, and inside a draft."""
    grammar = Grammar.json_schema(SCHEMAS["unicode enum"], after=" the")
    seen = 0
    for seed in range(4):
        how: Any = {"grammar": grammar, "temperature": 0.8, "seed": seed, "max_new_tokens": LONGEST}
        plain = lm.generate(PROMPT, method="plain", **how)
        for method in ("lookup", "forced"):
            assert lm.generate(PROMPT, method=method, **how).tokens == plain.tokens
        free, marker, rest = plain.text.partition(" the")
        if plain.finish == "eos":
            seen += 1
            assert marker
            rest = rest[rest.index("{") :]
            jsonschema.validate(json.loads(rest), SCHEMAS["unicode enum"])
            assert plain.text.startswith(free)
    assert seen >= 3


# --- what is allowed ----------------------------------------------------------------------------------------

PIECES = ("a", "b", "ab", "ba", "aab", '"', '"a', "{", "}", "1", "12", ":", "x", "a}", ": ")
END, OTHER_END, SPECIAL = len(PIECES), len(PIECES) + 1, len(PIECES) + 2
WIDTH = len(PIECES) + 7
"""Logits of the model: more than the vocabulary has tokens."""
TINY = {
    "a+b": (Grammar.regex("a+b"), "a+b"),
    "choice": (Grammar.choice(["ab", "aabab", "x"]), "ab|aabab|x"),
    "optional": (Grammar.regex("(ab)*x?"), "(ab)*x?"),
    "json": (Grammar.json_schema(made_of({"a": {"enum": [1, 12, 121]}}), layout="line"), '{"a": (1|12|121)}'),
    "lark": (Grammar.lark('start: "a" start "b" | "x"'), None),
}


def vocabulary_of(pieces: tuple[str, ...]) -> Vocabulary:
    backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="a"))
    from tokenizers import decoders

    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_special_tokens({"eos_token": "<e>", "additional_special_tokens": ["<f>", "ab}"]})
    return Vocabulary(tokenizer)


@cache
def tiny() -> Vocabulary:
    return vocabulary_of(PIECES)


def matcher_of(grammar: Grammar, ends: tuple[int, ...] = (END, OTHER_END)) -> TextMatcher:
    return bound_to(grammar, tiny(), frozenset(ends)).open()


@cache
def language(name: str) -> set[str]:
    """All texts of a tiny grammar that are short."""
    expression = TINY[name][1]
    if expression is None:
        return {"a" * n + "x" + "b" * n for n in range(6)}
    if name == "json":
        return {f'{{"a": {n}}}' for n in (1, 12, 121)}
    texts = ("".join(letters) for n in range(9) for letters in product("abx", repeat=n))
    return {text for text in texts if re.fullmatch(expression, text)}


def brute_force(name: str, written: str) -> set[int]:
    """The tokens that some text of the grammar goes on with, and the ends where it is complete."""
    texts = language(name)
    tokens = {number for number, piece in enumerate(PIECES) if any(t.startswith(written + piece) for t in texts)}
    return tokens | ({END, OTHER_END} if written in texts else set())


@pytest.mark.parametrize("name", TINY)
def test_masks_are_those_of_a_search(name: str) -> None:
    """In any order of the texts, so that the matcher goes back and on."""
    assert tiny().size == len(PIECES) + 3
    random, matcher = np.random.default_rng(1), matcher_of(TINY[name][0])
    seen: set[tuple[int, ...]] = set()
    for _ in range(60):
        path: list[int] = []
        while len("".join(PIECES[token] for token in path)) < 5:
            matcher.go_to(np.array(path, np.int64))
            allowed = set(np.flatnonzero(matcher.mask(WIDTH)).tolist())
            assert allowed == brute_force(name, "".join(PIECES[token] for token in path)), path
            seen.add(tuple(path))
            going = sorted(allowed - {END, OTHER_END})
            if not going:
                break
            path.append(int(random.choice(going)))
    assert len(seen) > 3


def test_a_text_that_breaks_the_grammar_can_only_end_and_goes_on_where_it_is_taken_back() -> None:
    matcher = matcher_of(TINY["a+b"][0])
    for text, allowed in (
        ([0, 1], [END, OTHER_END]),
        ([0, 12], [END, OTHER_END]),
        ([0, 12, 0], [END, OTHER_END]),
        ([0, SPECIAL, 0], [END, OTHER_END]),
        ([0, WIDTH - 1], [END, OTHER_END]),
        ([0], [0, 1, 2, 4]),
        ([], [0, 2, 4]),
        ([0, END], [END, OTHER_END]),
        ([0, 0, 0], [0, 1, 2, 4]),
        ([4], [END, OTHER_END]),
    ):
        matcher.go_to(np.array(text, np.int64))
        assert np.flatnonzero(matcher.mask(WIDTH)).tolist() == allowed, text


def test_narrow_rows_and_an_end_that_is_a_word() -> None:
    matcher = matcher_of(TINY["a+b"][0], (1,))
    assert np.flatnonzero(matcher.mask(3)).tolist() == [0, 2]
    matcher.go_to(np.array([0]))
    assert np.flatnonzero(matcher.mask(WIDTH)).tolist() == [0, 2, 4], "b would end the text before it is complete"
    with pytest.raises(InputError, match="no token of the model's vocabulary can go on"):
        matcher_of(Grammar.regex("zz")).mask(WIDTH)


def test_a_marker_is_found_across_tokens_and_given_up_where_it_is_taken_back() -> None:
    matcher = matcher_of(Grammar.regex("x", after="bb}"))
    everything = sorted(set(range(WIDTH)) - {END, OTHER_END})
    for text, allowed in (
        ([], everything),
        ([2, 1], everything),
        ([2, 1, 8], [12]),
        ([2, 1, 8, 12], [END, OTHER_END]),
        ([2, 1, 0], everything),
        ([2, 1, 0, 8, 1, 1, 8], [12]),
        ([0, 1], everything),
        ([0, 1, 1, 8], [12]),
    ):
        matcher.go_to(np.array(text, np.int64))
        assert np.flatnonzero(matcher.mask(WIDTH)).tolist() == allowed, text


def test_an_optional_marker_leaves_the_text_free_to_end_and_is_not_looked_for_before_another() -> None:
    grammar = Grammar("regex", "x", after="bb}", optional=True, not_before="1:")
    matcher, everything = matcher_of(grammar), list(range(WIDTH))
    for text, allowed in (
        ([], everything),
        ([2, 1, 8], everything),
        ([2, 1, 8, 9, 11], everything),
        ([9, 11, 2, 1, 8], [12]),
        ([2, 1, 8, 9, END], everything),
        ([9, 11, 1, 1, 8], [12]),
        ([9, 11, 1, 1, 8, 12], [END, OTHER_END]),
        ([9, 11, 1, 1], everything),
        ([9, 1, 1, 8], everything),
    ):
        matcher.go_to(np.array(text, np.int64))
        assert np.flatnonzero(matcher.mask(WIDTH)).tolist() == allowed, text
    assert Grammar.unpacked(json.loads(json.dumps(grammar.packed()))) == grammar


@pytest.mark.parametrize("far", [False, True])
def test_the_law_is_masked_before_temperature_and_after_the_rest(far: bool) -> None:
    bound = bound_to(TINY["a+b"][0], tiny(), frozenset([END]))
    sampling = Sampling(temperature=0.5, grammar=bound, logit_bias={0: 50.0}, top_k=2)
    row: Any = np.arange(WIDTH, dtype=np.float32)
    row = torch.from_numpy(row) if far else row
    law = Law(sampling, 1)
    assert law.distribution(row, np.array([7])).ids.tolist() == [0, 4]
    assert law.distribution(row, np.array([7, 4])).ids.tolist() == [END]
    assert float(row[3]) == 3.0, "the model's row is not written to"
    assert not law.reads_ahead
    free = Outlook(replace(sampling, logit_bias={}), 1).laws(row[None], [])[0]
    assert free.ids.tolist() == [WIDTH - 2, WIDTH - 1], "drafts leave it out"


# --- what is forced -----------------------------------------------------------------------------------------


def test_forced_bytes_are_drafted_as_the_tokenizer_spells_them(lm: paceline.LanguageModel) -> None:
    assert lm.vocabulary is not None
    text = '{"zwierzę": "'
    for cut in range(len(text)):
        before = lm.vocabulary.encode(PROMPT + text[:cut]).tolist()[-8:]
        tokens = spelled(lm.vocabulary, before, text[cut:].encode())
        assert b"".join(map(lm.vocabulary.token_bytes, tokens)).decode() == text[cut:]
    half = "ż".encode()[:1]
    assert spelled(lm.vocabulary, [], half) == []
    whole = spelled(lm.vocabulary, [], b"ab" + half)
    assert b"".join(map(lm.vocabulary.token_bytes, whole)) == b"ab"


def test_a_forced_draft_is_what_the_grammar_leaves_and_then_its_end(lm: paceline.LanguageModel) -> None:
    assert lm.vocabulary is not None
    bound = bound_to(Grammar.json_schema({"const": {"ok": True}}), lm.vocabulary, lm.target.eos)
    drafter = make_drafter("forced")
    drafter.fit(lm.target, lm.vocabulary)
    context = Context([5], Sampling(grammar=bound), Ending(max_new_tokens=50, eos=lm.target.eos))
    state = drafter.open(context)
    (draft,) = drafter.propose([Ask(state, Budget(40, 40))])
    *chain, end = draft.tokens.tolist()
    assert lm.vocabulary.text(chain) == '{"ok": true}'
    assert {end} == lm.target.eos
    (short,) = drafter.propose([Ask(state, Budget(2, 9))])
    assert short.tokens.tolist() == chain[:2]
    context.commit(chain[0])
    (later,) = drafter.propose([Ask(state, Budget(40, 40))])
    assert later.tokens.tolist() == [*chain[1:], end]


def test_forced_bytes_are_encoded_no_further_than_the_draft_goes(
    lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lm.vocabulary is not None
    said = " ".join(["The old man and the sea."] * 4000)
    bound = bound_to(Grammar.json_schema({"const": said}), lm.vocabulary, lm.target.eos)
    drafter = make_drafter("forced")
    drafter.fit(lm.target, lm.vocabulary)
    state = drafter.open(Context([5], Sampling(grammar=bound), Ending(max_new_tokens=50, eos=lm.target.eos)))
    whole = spelled(lm.vocabulary, [5], json.dumps(said).encode())
    encode, lengths = Vocabulary.encode, list[int]()

    def measured(self: Vocabulary, text: str, **how: Any) -> Any:
        lengths.append(len(text))
        return encode(self, text, **how)

    monkeypatch.setattr(Vocabulary, "encode", measured)
    (draft,) = drafter.propose([Ask(state, Budget(12, 12))])
    assert draft.tokens.tolist() == whole[:12]
    assert 0 < max(lengths) < 1000


def test_forced_bytes_that_are_left_are_those_of_a_new_matcher() -> None:
    """Wherever a text goes on, or goes back."""
    grammar = Grammar.regex("aab(ab|b)ba*")
    vocabulary = tiny()
    following = matcher_of(grammar)
    texts = [tokens for length in range(6) for tokens in product(range(vocabulary.size), repeat=length)]
    dice = np.random.default_rng(2)
    for number in dice.choice(len(texts), 400):
        for cut in range(len(texts[number]) + 1):
            tokens = np.asarray(texts[number][:cut], np.int64)
            new = matcher_of(grammar)
            new.go_to(tokens)
            following.go_to(tokens)
            assert following.forced() == new.forced()


def test_a_text_without_a_grammar_has_no_forced_drafts(lm: paceline.LanguageModel) -> None:
    drafter = make_drafter("forced")
    state = drafter.open(Context([5], Sampling(), Ending(max_new_tokens=5)))
    assert state is None
    assert len(drafter.propose([Ask(state, Budget(4, 4))])[0]) == 0


def test_forced_drafts_save_rounds(lm: paceline.LanguageModel, plain: list[paceline.Generation]) -> None:
    texts = written_together(lm, every(), method="forced", planner="fixed:12")
    assert sum(len(text.rounds) for text in texts) < 0.9 * sum(len(text.rounds) for text in plain)
    assert {piece.source for text in texts for piece in text.pieces} >= {"forced"}


# --- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar.json_schema({"type": "strin"}), "the JSON schema cannot be used: Invalid type: strin"),
        (Grammar.json_schema({"if": {"type": "null"}}), 'the JSON schema cannot be used: Unimplemented keys: ["if"]'),
        (Grammar.regex("(a"), "the regular expression has a mistake: "),
        (Grammar.lark("start: nothing"), 'the grammar has a mistake: at 1(8): unknown name: "nothing"'),
        (Grammar.lark('start: <|end|> "a"'), "the grammar"),
    ],
)
def test_a_mistake_is_named(grammar: Grammar, said: str, lm: paceline.LanguageModel) -> None:
    with pytest.raises(InputError) as error:
        lm.generate(PROMPT, grammar=grammar)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_what_is_no_grammar_is_refused(lm: paceline.LanguageModel) -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: Grammar.json_schema([1]), "a JSON schema is a dict, True or False, not [1]"),  # type: ignore[arg-type]
        (lambda: Grammar.json_schema("{"), "the schema is no JSON"),
        (lambda: Grammar.json_schema({}, layout="wide"), "layout is line, compact, any, not 'wide'"),
        (lambda: Grammar.choice("ab"), "a choice is a list of texts"),
        (lambda: Grammar.choice(["a", ""]), "an entry of a choice is a text that is not empty, not ''"),
        (
            lambda: Grammar.regex("a" * (128 << 10) + "a"),
            "a grammar has at most 128 KiB of text, and this one has 131073",
        ),
        (lambda: Grammar.choice(["ę" * 70_000]), "at most 128 KiB of text"),
        (lambda: Grammar.json_schema({"const": "\ud800"}), "the grammar holds half a character"),
        (
            lambda: lm.generate(PROMPT, grammar=Grammar.json_schema({"x-guidance": []})),
            "x-guidance of a JSON schema is an object of options, not []",
        ),
        (lambda: Grammar.regex("a", after=""), "the marker after which a grammar applies is a text"),
        (lambda: Sampling(grammar="{}"), "grammar is a Grammar, such as Grammar.json_schema(...), not '{}'"),  # type: ignore[arg-type]
        (lambda: Law(Sampling(grammar=Grammar.regex("a")), 1), "a grammar needs the tokenizer of a model"),
        (lambda: lm.generate(PROMPT, grammar=Grammar.regex("a"), ignore_eos=True), "a text with a grammar ends where"),
        (lambda: lm.generate(PROMPT, grammar=Grammar.regex("a"), eos=[]), "a text with a grammar ends by a token"),
    ]
    untold = paceline.LanguageModel(TableTarget(random_table(9), 9))
    wrong.append((lambda: untold.generate([1], grammar=Grammar.regex("a")), "table came without a tokenizer"))
    for make, said in wrong:
        with pytest.raises(InputError) as error:
            make()
        assert said in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda long: Grammar.json_schema([long]),
        lambda long: Grammar.json_schema({}, layout=long),
        lambda long: Grammar.choice(long),
        lambda long: Grammar.choice([[long]]),
        lambda long: Sampling(grammar=long),
        lambda long: Sampling(logit_bias=long),
        lambda long: Sampling(logit_bias={1: long}),
        lambda long: Sampling(banned=long),
        lambda long: Sampling(banned=[long]),
        lambda long: Sampling(banned=[[long]]),
        lambda long: Sampling(temperature=long),
        lambda long: Sampling(processors=[long]),
    ],
)
def test_a_message_does_not_repeat_a_long_value(make: Any) -> None:
    with pytest.raises(InputError) as error:
        make("x" * 5000)
    assert "x" * 50 in str(error.value)
    assert len(str(error.value)) < 200


def test_without_the_library_one_sentence_says_what_to_install(
    lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.errors.find_spec", lambda package: None)
    with pytest.raises(InputError) as error:
        lm.generate(PROMPT, grammar=Grammar.regex("a"))
    assert str(error.value) == "a grammar needs llguidance: pip install 'paceline[grammar]'"


def test_a_description_is_a_value_and_goes_through_json() -> None:
    grammar = Grammar.json_schema({"enum": ["ż"]}, after="</think>")
    assert grammar == Grammar.json_schema('{"enum": ["ż"]}', after="</think>")
    assert len({grammar, Grammar.json_schema({"enum": ["ż"]})}) == 2
    for given in (grammar, None):
        sampling = Sampling(temperature=0.5, grammar=given)
        assert Sampling.unpacked(json.loads(json.dumps(sampling.packed()))) == replace(
            sampling, banned=[], processors=()
        )
    bound = bound_to(grammar, tiny(), frozenset([END]))
    assert Sampling.unpacked(json.loads(json.dumps(Sampling(grammar=bound).packed()))).grammar == grammar


def test_few_compiled_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance, "KEPT", 2)
    compiler = llguidance.Compiler(tiny())
    for text in ("a", "b", "a", "x", "a"):
        compiler.compiled(Grammar.regex(text))
    assert [text for _, text, _ in compiler._made] == ["x", "a"]


def test_a_grammar_that_compiles_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, begun, go_on = llguidance.Compiler(tiny()), threading.Event(), threading.Event()
    right = llguidance.Compiler._first

    def first(self: llguidance.Compiler, grammar: Grammar) -> Any:
        if grammar.text == "b":
            begun.set()
            assert go_on.wait(60)
        return right(self, grammar)

    monkeypatch.setattr(llguidance.Compiler, "_first", first)
    with ThreadPoolExecutor(2) as threads:
        slow = [threads.submit(compiler.compiled, Grammar.regex("b")) for _ in range(2)]
        try:
            assert begun.wait(60)
            other = threading.Thread(target=compiler.compiled, args=[Grammar.regex("a")], daemon=True)
            other.start()
            other.join(60)
            assert not other.is_alive()
        finally:
            go_on.set()
        assert slow[0].result() is slow[1].result(), "compiled once"


def test_a_text_begins_without_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its grammar is kept no more."""
    monkeypatch.setattr(llguidance, "KEPT", 1)
    vocabulary = tiny()
    bound = [bound_to(Grammar.regex(text), vocabulary, frozenset([END])) for text in ("a", "b")]

    def refused(*_: object) -> None:
        raise AssertionError("compiled by the thread that writes")

    monkeypatch.setattr(llguidance.Compiler, "_first", refused)
    for grammar, text in zip(bound, (b"a", b"b"), strict=True):
        assert grammar.open().forced() == text


def test_a_grammar_that_cannot_be_compiled_is_not_kept() -> None:
    compiler = llguidance.Compiler(tiny())
    for _ in range(2):
        with pytest.raises(InputError, match="the regular expression has a mistake"):
            compiler.compiled(Grammar.regex("(a"))
    assert not compiler._made


# --- planted faults -----------------------------------------------------------------------------------------


def test_a_matcher_that_does_not_go_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextMatcher, "_back", lambda self, length: None)
    with pytest.raises((AssertionError, InputError)):
        test_masks_are_those_of_a_search("a+b")


def test_an_end_that_is_always_allowed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance.LLGuidanceMatcher, "accepting", True)
    with pytest.raises(AssertionError):
        test_masks_are_those_of_a_search("a+b")


def test_a_mask_of_another_place_is_seen(lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a matcher that is a token behind its text."""
    how: Any = {"grammar": Grammar.json_schema(made_of({"a": ANIMAL, "b": YES})), "seed": 3, "temperature": 0.8}
    right = TextMatcher.go_to
    monkeypatch.setattr(TextMatcher, "go_to", lambda self, emitted: right(self, emitted[: max(3, len(emitted) - 1)]))
    with pytest.raises((json.JSONDecodeError, jsonschema.ValidationError, AssertionError)):
        assert valid(lm.generate(PROMPT, method="plain", max_new_tokens=40, **how), how["grammar"])
