"""A draft model with another tokenizer: the text stays the target's, and drafts are the target's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import paceline
from drafting import as_plain
from engine import PROMPT, SIZE, habitual, tabled, write
from enumeration import Coins, World, outcome_of, output_law, played
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Plain
from paceline.drafters.networks import growth
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.assistant.foreign import ForeignState
from paceline.errors import InputError
from paceline.law import Distribution, Sampling
from paceline.targets.table import Table, TableTarget
from paceline.translate import Spellings
from paceline.tree import Floats, Ints
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from tokenizer_kinds import OPAQUE, vocabulary_of

STRATEGIES = ["none", "naive", "context:0", "context:5", "lattice", "tli"]
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 0.8, "seed": 2},
    "cut": {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 3},
    "named": {"temperature": 1.0, "seed": 4, "logit_bias": {300: 2.0}, "banned": [[301], [5, 302]]}
    | {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
}
TEXTS = ["The old house stood", "Na końcu długiej drogi stał", "Старий будинок стояв на"]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


# --- the text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_text_is_plain_decodings(lm: LanguageModel, strategy: str, setting: str) -> None:
    how: dict[str, Any] = {"max_new_tokens": 20, "planner": "fixed", **SETTINGS[setting]}
    plain = [text.tokens for (text,) in lm.generate_batch(TEXTS, method="plain", **how)]
    method = f"assistant:top=2,translate={strategy}"
    found = [text for (text,) in lm.generate_batch(TEXTS, method=method, draft_model="pocket-foreign", **how)]
    assert [text.tokens for text in found] == plain
    assert sum(text.totals.drafted for text in found) > 0
    assert strategy == "none" or sum(text.totals.accepted for text in found) > 0


@pytest.mark.parametrize("method", ["assistant:beams=3", "assistant:beams=2,noise=none", "auto"])
def test_beams_and_the_default_method_draft_across_tokenizers(lm: LanguageModel, method: str) -> None:
    how: dict[str, Any] = {"max_new_tokens": 48, "temperature": 0.8, "seed": 6, "planner": "fixed:8"}
    found = lm.generate(TEXTS[1], method=method, draft_model="pocket-foreign", **how)
    assert found.tokens == lm.generate(TEXTS[1], method="plain", **how).tokens
    assert "assistant" in " ".join(piece.source for piece in found.pieces)


def test_noise_gets_more_first_tokens_accepted(lm: LanguageModel) -> None:
    taken = {}
    for noise in ("shared", "none"):
        how: dict[str, Any] = {"draft_model": "pocket-foreign", "planner": "fixed", "temperature": 0.8, "seed": 8}
        method = f"assistant:noise={noise},length=1"
        texts = [text for (text,) in lm.generate_batch(TEXTS, method=method, max_new_tokens=64, **how)]
        rounds = [each for text in texts for each in text.rounds if each.drafted]
        taken[noise] = sum(each.accepted > 0 for each in rounds) / len(rounds)
    assert taken["shared"] > 1.4 * taken["none"] > 0


# --- the same model under other ids ------------------------------------------------------------------------


def letters(order: str, end: str = "", spare: bool = False) -> Vocabulary:
    """A vocabulary of single letters, in this order, with a special token that ends a text if one is named. ``spare``
    byte tokens stand before the letters and spell the same, as in SentencePiece; the tokenizer never writes them."""
    names = [f"<0x{ord(letter):02X}>" for letter in order if spare] + list(order)
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate(names)}, [], byte_fallback=spare))
    if not spare:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteFallback() if spare else decoders.ByteLevel()
    if end:
        tokenizer.add_special_tokens([AddedToken(end)])
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


OURS, THEIRS = "abcdef", "dfxcabe"
TO_OURS = {token: OURS.find(letter) for token, letter in enumerate(THEIRS)}


def renamed(table: Table) -> Table:
    """The same table over the letters of `THEIRS`, of which it never writes the third."""

    def weights(history: tuple[int, ...]) -> Sequence[float]:
        ours = table(tuple(TO_OURS[token] for token in history))
        return [-np.inf if TO_OURS[token] < 0 else ours[TO_OURS[token]] for token in range(len(THEIRS))]

    return weights


def twin(**options: Any) -> Assistant:
    """A drafter with the target itself as draft model, under other ids."""
    model = TableTarget(renamed(habitual()), len(THEIRS))
    drafter = Assistant(model=DraftModel(model, letters(THEIRS)), **options)
    drafter.fit(tabled(), letters(OURS))
    return drafter


@pytest.mark.parametrize("strategy", ["lattice", "tli"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0, seed=3),
        Sampling(temperature=0.6, seed=3),
        Sampling(temperature=1.2, top_k=4, top_p=0.9, min_p=0.02, seed=3),
        Sampling(temperature=1.0, logit_bias={2: 0.7, 5: -1.0}, banned=((1,), (0, 3)), seed=3),
    ],
    ids=["greedy", "warm", "cold", "cut", "named"],
)
def test_the_target_under_other_ids_is_never_wrong(strategy: str, sampling: Sampling) -> None:
    """So noise, settings and places are those of the target's tokens."""
    session = as_plain(tabled(), PROMPT, twin(translate=strategy), sampling=sampling, max_new_tokens=40)
    assert all(each.accepted == each.drafted for each in session.rounds)
    assert sum(each.accepted for each in session.rounds) > 25


def behind(spares: int, table: Table) -> Table:
    """The same table behind spare tokens, which it never writes."""
    return lambda history: [*[-np.inf] * spares, *table(tuple(token - spares for token in history))]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("strategy", ["lattice", "tli"])
@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True), (True, True)])
def test_byte_tokens_that_spell_the_same_as_letters_change_no_draft(
    ours: bool, theirs: bool, strategy: str, temperature: float
) -> None:
    """The tokenizers write the letters, so drafts are made of those: never wrong, as without byte tokens."""
    before, their = SIZE * ours, len(THEIRS) * theirs
    target = TableTarget(behind(before, habitual()), before + SIZE)
    model = TableTarget(behind(their, renamed(habitual())), their + len(THEIRS))
    drafter = Assistant(model=DraftModel(model, letters(THEIRS, spare=theirs)), translate=strategy)
    drafter.fit(target, letters(OURS, spare=ours))
    prompt = [before + token for token in PROMPT]
    session = as_plain(target, prompt, drafter, sampling=Sampling(temperature=temperature, seed=3), max_new_tokens=40)
    assert sum(each.accepted for each in session.rounds) > 25
    assert all(each.accepted == each.drafted for each in session.rounds)


def test_an_added_token_comes_before_the_byte_that_the_model_falls_back_to() -> None:
    tokenizer = Tokenizer(models.BPE({"<0x61>": 0, "<0x62>": 1, "a": 2}, [], byte_fallback=True))
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_tokens([AddedToken("b")])
    made = Spellings(Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer)))
    assert made.of == [b"a", b"b", b"a", b"b"]
    assert (made.id_of(b"a"), made.id_of(b"b")) == (2, 3)


def test_naive_and_context_translate_what_the_draft_model_is_sure_of() -> None:
    for strategy in ("naive", "context:0", "context:3"):
        session = as_plain(tabled(), PROMPT, twin(translate=strategy), max_new_tokens=40)
        assert all(each.accepted == each.drafted for each in session.rounds), strategy


def test_ids_passed_as_they_are_mean_something_else() -> None:
    session = as_plain(tabled(), PROMPT, twin(translate="none"), max_new_tokens=40)
    assert sum(each.accepted for each in session.rounds) < sum(each.drafted for each in session.rounds) / 2


@pytest.mark.parametrize(
    ("strategy", "temperature"), [("lattice", 0.0), ("tli", 0.0), ("context:2", 0.0), ("lattice", 1.0), ("tli", 1.0)]
)
def test_the_draft_models_end_is_the_targets(strategy: str, temperature: float) -> None:
    """The end has other names and other ids; it is drafted, accepted, and nothing follows it."""
    end, their_end = SIZE, len(THEIRS)

    def ending(history: tuple[int, ...]) -> Sequence[float]:
        return [*([-np.inf] * SIZE), 0.0] if len(history) == len(PROMPT) + 9 else [*habitual()(history), -np.inf]

    def theirs(history: tuple[int, ...]) -> Sequence[float]:
        return (
            [*([-np.inf] * their_end), 0.0] if len(history) == len(PROMPT) + 9 else [*renamed(habitual())(history), -9]
        )

    target = TableTarget(ending, SIZE + 1, eos=frozenset({end}))
    model = TableTarget(theirs, len(THEIRS) + 1, eos=frozenset({their_end}))
    drafter = Assistant(model=DraftModel(model, letters(THEIRS, "<stop>")), translate=strategy)
    drafter.fit(target, letters(OURS, "<end>"))
    sampling = Sampling(temperature=temperature, seed=1)
    session = as_plain(target, PROMPT, drafter, sampling=sampling, nodes=4, max_new_tokens=40)
    last = session.emissions[-1]
    assert (last.token, last.source) == (end, "assistant")


# --- tokens that both have, under the rejection rule -------------------------------------------------------

THREE, OTHER = "abc", "cxab"


def told(history: tuple[int, ...]) -> list[float]:
    """A draft model over the letters of `OTHER` that is right about nothing in particular."""
    return [float((3 * len(history) + 2 * history[-1] + token) % 3) for token in range(len(OTHER))]


def sampled_by(coins: Coins) -> Any:
    """`foremost` where a draft is sampled: without replacement, with coins that are enumerated."""

    def foremost(law: Distribution, count: int, exponentials: Floats | None = None) -> tuple[Ints, Floats]:
        left, found = law, list[int]()
        while len(found) < count and left.ids.size:
            exact = Distribution(left.ids, np.array([Fraction(weight) for weight in left.weights.tolist()]))
            found.append(coins.fresh(exact))
            left = left.without(found[-1])
        return np.array(found, np.int64), np.zeros(len(found))

    return foremost


def law_of_shared(monkeypatch: pytest.MonkeyPatch, top: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The law of texts whose drafts are of shared tokens, and plain decoding's."""
    world = World(length=2)

    def play(coins: Coins) -> Any:
        monkeypatch.setattr(growth, "foremost", sampled_by(coins))
        model = DraftModel(TableTarget(told, len(OTHER)), letters(OTHER))
        drafter = Assistant(model=model, translate="tli", length=1, top=top)
        drafter.fit(world.target, letters(THREE))
        return outcome_of(played(world, Rule.REJECTION, drafter, coins, nodes=2))

    return output_law(play), world.plain()


@pytest.mark.parametrize("top", [1, 2])
def test_drafts_of_shared_tokens_keep_the_law(monkeypatch: pytest.MonkeyPatch, top: int) -> None:
    found, plain = law_of_shared(monkeypatch, top)
    assert found.keys() == plain.keys()
    for text, probability in plain.items():
        assert float(found[text]) == pytest.approx(float(probability), abs=1e-9)


def test_a_law_over_the_wrong_tokens_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of others: ids in one order, probabilities in another."""
    honest = growth.Growth.tree

    def crossed(self: growth.Growth, source: str) -> Any:
        tree = honest(self, source)
        wrong = {node: Distribution(law.ids, law.weights[::-1].copy()) for node, law in tree.drawn.items()}
        return replace(tree, drawn=wrong)

    monkeypatch.setattr(growth.Growth, "tree", crossed)
    found, plain = law_of_shared(monkeypatch, 1)
    assert max(abs(float(found.get(text, 0)) - float(plain[text])) for text in plain) > 0.01


# --- rows, records, prompts --------------------------------------------------------------------------------


@cache
def pair() -> tuple[LanguageModel, DraftModel]:
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    return lm, DraftModel.load("pocket-foreign", lm.target)


def states(text: str, tokens: int, **options: Any) -> Iterator[ForeignState]:
    """A state of the drafter after every drafted round of a text."""
    lm, model = pair()
    drafter = Assistant(model=model, **options)
    drafter.fit(lm.target, lm.vocabulary)
    prompt = lm.encode(text)
    follow = lm.generate(text, method="plain", max_new_tokens=tokens, temperature=0.8, seed=9).tokens
    context = Context(prompt, Sampling(temperature=0.8, seed=9), Ending(max_new_tokens=tokens + 9))
    state = drafter.open(context)
    for number, token in enumerate(follow):
        context.commit(token)
        if number % 3:
            drafter.propose([Ask(state, Budget(4, 4))])
            state.rows.check()
            yield state
    drafter.close(state)


@pytest.mark.parametrize("strategy", ["lattice", "tli", "naive"])
def test_rows_are_those_of_the_followed_text_and_few_are_read_again(strategy: str) -> None:
    rolled_back = tokens = 0
    for state in states(TEXTS[1], 60, translate=strategy):
        assert state.rows.tokens.tolist() == state.follower.ids[: state.rows.committed]
        assert state.rows.committed == state.length, "a draft begins with all of the text read"
        assert bytes(state.follower.text) == state.foreign.bridge.text(state.context.tokens.tolist())
        rolled_back += state.tally.take().get("rows_rolled_back", 0)
        tokens = state.length
    assert 0 < rolled_back < tokens / 2


def test_the_record_of_a_round_counts_what_the_draft_model_did(lm: LanguageModel) -> None:
    how: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.8, "seed": 9, "planner": "fixed:4"}
    totals = lm.generate(TEXTS[1], method="assistant:noise=none", draft_model="pocket-foreign", **how).totals
    assert totals.counts["draft_forwards"] == totals.counts["draft_tokens"] > totals.drafting_rounds
    assert totals.counts["bytes_translated"] > totals.drafted
    assert totals.counts["rows_rolled_back"] > 0
    own = lm.generate(TEXTS[1], method="assistant", draft_model="pocket-draft", **how).totals
    assert own.counts["draft_forwards"] == own.counts["draft_tokens"] == own.drafted > 0
    assert own.counts["rows_rolled_back"] == own.counts["bytes_translated"] == 0
    assert lm.generate(TEXTS[1], method="lookup", **how).totals.counts["draft_forwards"] == 0


def test_a_draft_model_reads_the_rendering_that_is_meant_for_it() -> None:
    lm, model = pair()
    drafter = Assistant(model=model)
    drafter.fit(lm.target, lm.vocabulary)
    assert model.vocabulary is not None

    def followed(draft_prompt: Any) -> list[int]:
        context = Context(lm.encode("User: Hello"), Sampling(), Ending(max_new_tokens=9), draft_prompt=draft_prompt)
        return list(drafter.open(context).follower.ids)

    assert followed(None) == model.vocabulary.encode("User: Hello").tolist()
    assert followed("Another text") == model.vocabulary.encode("Another text").tolist()
    messages = [{"role": "user", "content": "Hello"}]
    assert followed(messages) == followed(None), "without a template of its own it reads the text"


def test_messages_go_through_the_template_of_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    lm, model = pair()
    assert model.vocabulary is not None
    monkeypatch.setattr(Vocabulary, "conversation", lambda self, messages: f"[{messages[0]['content']}]")
    drafter = Assistant(model=model)
    drafter.fit(lm.target, lm.vocabulary)
    messages = [{"role": "user", "content": "Hello"}]
    context = Context(lm.encode("x"), Sampling(), Ending(max_new_tokens=9), draft_prompt=messages)
    assert drafter.open(context).follower.ids == model.vocabulary.encode("[Hello]").tolist()


# --- what cannot be translated -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OPAQUE)[:1])
def test_an_opaque_tokenizer_is_refused(name: str) -> None:
    drafter = Assistant(model=DraftModel(TableTarget(habitual(), SIZE), vocabulary_of(name)))
    with pytest.raises(InputError, match="no bytes can be translated"):
        drafter.fit(tabled(), letters(OURS))


def test_a_strategy_needs_both_tokenizers() -> None:
    drafter = Assistant(model=TableTarget(habitual(), SIZE), translate="lattice")
    with pytest.raises(InputError, match=r"translate=lattice needs both tokenizers, and .* without its tokenizer"):
        drafter.fit(tabled(), letters(OURS))
    other = Assistant(model=DraftModel(TableTarget(habitual(), SIZE), letters(THEIRS)), translate="tli")
    with pytest.raises(InputError, match="translate=tli needs both tokenizers"):
        other.fit(tabled())


def test_what_the_draft_model_cannot_read_silences_it() -> None:
    """A text of bytes that its vocabulary lacks, and a prompt of special tokens alone."""
    model = DraftModel(TableTarget(habitual(size=3), 3), letters("xyz"))
    drafter = Assistant(model=model)
    drafter.fit(tabled(), letters(OURS))
    plain = write(tabled(), PROMPT, Plain())
    session = write(tabled(), PROMPT, drafter)
    assert session.context.emitted.tolist() == plain.context.emitted.tolist()
    assert all(not each.drafted for each in session.rounds)
