"""The decode loop as a user meets it: production law and dice, float64, every drafter against decoding slowly."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from engine import METHODS, PROMPT, SIZE, Erratic, Slow, habitual, tabled, write, write_slowly
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending, Finish
from paceline.drafters import Budget, Drafter, Plain, make_drafter
from paceline.drafters.compose import Union
from paceline.engine.counters import Totals
from paceline.engine.loop import Session
from paceline.law import Sampling
from paceline.targets.base import Pending, Reach, Request
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree, Ints
from paceline.verify import Kind, Rule
from paceline.vocabulary import Vocabulary
from thinning import crossed
from tokenizer_kinds import wrapped

SETTINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=1.0, seed=1),
    "cold": Sampling(temperature=0.3, seed=2),
    "cut": Sampling(temperature=0.9, top_k=4, top_p=0.9, min_p=0.02, seed=3),
    "penalised": Sampling(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, seed=4),
    "greedy penalised": Sampling(repetition_penalty=1.3, frequency_penalty=0.4),
    "biased": Sampling(temperature=1.0, logit_bias={1: 1.5, 2: -3.0}, banned=((5,), (0, 3), (3, 1, 1)), seed=5),
}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS)


# --- same seed, same text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "setting"), crossed(METHODS, SETTINGS))
def test_the_text_is_that_of_decoding_slowly(method: str, setting: str) -> None:
    target, sampling = tabled(), SETTINGS[setting]
    for sample in range(3):
        slow = write_slowly(target, PROMPT, sampling, sample=sample)
        for nodes in (0, 1, 2, 3, 5, 8, 12):
            session = write(target, PROMPT, METHODS[method](), nodes=nodes, sampling=sampling, sample=sample)
            assert session.context.emitted.tolist() == slow.tokens
            assert session.context.finish == slow.finish == Finish.LENGTH


@EVERY_METHOD
def test_drafts_are_accepted_on_the_way(method: str) -> None:
    """Otherwise the test above would show little."""
    accepted = sum(round.accepted for round in write(tabled(), PROMPT, METHODS[method](), max_new_tokens=60).rounds)
    assert accepted == 0 if method == "plain" else accepted > 5


@pytest.mark.filterwarnings("ignore:samples at temperature 0")
@EVERY_SETTING
def test_greedy_text_is_one_under_both_rules_and_sampled_text_is_a_function_of_seed_and_sample(
    setting: str,
) -> None:
    target, sampling = tabled(), SETTINGS[setting]
    lm = LanguageModel(target)
    options: dict[str, Any] = {"method": METHODS["union"](), "max_new_tokens": 20}
    given = {name: getattr(sampling, name) for name in sampling.__dataclass_fields__}
    texts = [text.tokens for text in lm.sample(PROMPT, n=3, **options, **given)]
    assert lm.generate(PROMPT, **options, **given).tokens == texts[0]
    assert len({tuple(text) for text in texts}) == (1 if sampling.greedy else 3)
    rejecting = lm.generate(PROMPT, rule="rejection", **options, **given).tokens
    assert (rejecting == texts[0]) == sampling.greedy
    assert rejecting == lm.generate(PROMPT, rule="rejection", **options, **given).tokens


class Clairvoyant(Drafter):
    """Knows the target and looks at the public noise."""

    name = "clairvoyant"

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        text, table = state.tokens.tolist(), habitual()
        for ahead in range(budget.depth):
            logits = np.array(table(tuple(text))) * np.log(2)
            text.append(int(np.argmax(logits + state.gumbel(ahead, np.arange(SIZE)))))
        return DraftTree.chain(text[len(state) :], source=self.name)


def test_a_drafter_that_knows_the_target_and_the_public_noise_is_never_refused() -> None:
    for sample in range(5):
        sampling = Sampling(temperature=1.0, seed=7)
        session = write(tabled(), PROMPT, Clairvoyant(), sampling=sampling, sample=sample, nodes=4)
        assert [round.accepted for round in session.rounds] == [0, 4, 4, 4]  # the first token comes with the prompt
    rejecting = write(tabled(), PROMPT, Clairvoyant(), sampling=sampling, rule=Rule.REJECTION, nodes=4)
    assert len(rejecting.rounds) > 4


# --- where a text ends --------------------------------------------------------------------------------------


@EVERY_METHOD
@pytest.mark.parametrize("eos", [{0}, {4}, {1, 5}, {0, 1, 2}])
def test_any_of_several_ends_of_text_ends_it(method: str, eos: set[int]) -> None:
    target = tabled(eos=frozenset(eos))
    for seed in range(8):
        sampling = Sampling(temperature=1.0, seed=seed)
        slow = write_slowly(target, PROMPT, sampling)
        session = write(target, PROMPT, METHODS[method](), sampling=sampling)
        assert session.context.emitted.tolist() == slow.tokens
        assert session.context.finish == slow.finish


@EVERY_METHOD
def test_lengths_cut_where_they_say(method: str) -> None:
    slow = write_slowly(tabled(), PROMPT, Sampling())
    for count in range(1, 12):
        session = write(tabled(), PROMPT, METHODS[method](), max_new_tokens=count)
        assert session.context.emitted.tolist() == slow.tokens[:count]
        assert session.context.finish is Finish.LENGTH
        session = write(tabled(context_length=len(PROMPT) + count), PROMPT, METHODS[method]())
        assert session.context.emitted.tolist() == slow.tokens[:count]
        assert session.context.finish is Finish.CONTEXT


class Recorder:
    """A criterion that notes each call and ends the text where ``stops`` says."""

    def __init__(self, stops: Callable[[list[int]], bool] = lambda text: False) -> None:
        self.calls: list[list[int]] = []
        self._stops = stops

    def __call__(self, text: Ints) -> bool:
        self.calls.append(text.tolist())
        return self._stops(self.calls[-1])


@EVERY_METHOD
@EVERY_SETTING
def test_criteria_are_asked_once_per_token_in_order(method: str, setting: str) -> None:
    sampling = SETTINGS[setting]
    counted, watching = Recorder(lambda text: text[-2:] == [1, 4] or len(text) > 17), Recorder()
    session = write(tabled(), PROMPT, METHODS[method](), sampling=sampling, criteria=(counted, watching))
    slow = write_slowly(
        tabled(),
        PROMPT,
        sampling,
        ends=lambda emitted: "criterion" if [*PROMPT, *emitted][-2:] == [1, 4] or len(emitted) > 10 else None,
    )
    assert session.context.emitted.tolist() == slow.tokens
    assert session.context.finish == slow.finish == Finish.CRITERION
    text = [*PROMPT, *slow.tokens]
    assert counted.calls == watching.calls == [text[:i] for i in range(len(PROMPT) + 1, len(text) + 1)]


def test_every_criterion_is_asked_also_about_the_last_token() -> None:
    ending, watching = Recorder(lambda text: True), Recorder()
    target = tabled(eos=frozenset(range(SIZE)))
    session = write(target, PROMPT, Plain(), criteria=(ending, watching))
    assert session.context.finish is Finish.EOS
    assert len(ending.calls) == len(watching.calls) == 1


class Guarded(TableTarget):
    """Scores what it says it can, and nothing that would lie past the last token of a text."""

    reached = Reach()
    last_position = 10**9
    deepest = 0

    def reach(self, position: int) -> Reach:
        return self.reached

    def submit(self, requests: Sequence[Request]) -> Pending:
        for request in requests:
            assert request.positions.max() < self.last_position
            if not request.prefill:
                depth = int(request.positions.max() - request.positions[0])
                self.deepest = max(self.deepest, depth)
                assert self.reached.trees or request.is_chain
                assert self.reached.depth is None or depth <= self.reached.depth
        return super().submit(requests)


@EVERY_METHOD
@pytest.mark.parametrize("reach", [Reach(), Reach(trees=False), Reach(depth=2), Reach(trees=False, depth=0)])
def test_drafts_stay_within_reach_of_the_target_and_short_of_the_end(method: str, reach: Reach) -> None:
    for end in range(1, 8):
        for ending in ({"max_new_tokens": end}, {"context_length": len(PROMPT) + end}):
            target = Guarded(habitual(), SIZE)
            target.reached, target.last_position = reach, len(PROMPT) + end - 1
            session = write(target, PROMPT, METHODS[method](), nodes=12, **ending)
            assert len(session.emissions) == end
    assert (target.deepest > 0) == (method != "plain" and reach.depth != 0)


def test_a_sequence_that_cannot_begin_is_refused() -> None:
    with pytest.raises(ValueError, match="the prompt has 2 tokens and the model's context holds 2"):
        Context([1, 2], Sampling(), Ending(max_new_tokens=4, context_length=2))
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1, not 0"):
        Ending(max_new_tokens=0)


# --- stop strings -------------------------------------------------------------------------------------------

PIECES = ["<unk>", "▁", "a", "b", "ab", "▁ab", "ba▁", "c", "<0xC4>", "<0x85>", "ą"]


@pytest.fixture(scope="module")
def alphabet() -> Any:
    """A tokenizer of a dozen tokens: spaces that vanish at the front, letters cut in two, overlaps."""
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(PIECES)}, [], unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return wrapped(backend)


STOPS: list[tuple[str, ...]] = [("ab",), ("abab", "ba a"), (" ab",), ("ą",), ("bą", "a b"), ("ca", "c "), (" ",)]


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("method", ["plain", "lookup", "erratic", "union"])
def test_stop_strings_cut_where_decoding_slowly_sees_them(method: str, stops: tuple[str, ...], alphabet: Any) -> None:
    size = len(alphabet)
    drafters = {"erratic": Erratic(size), "union": Union([make_drafter("lookup"), Erratic(size, 7)])}
    target = TableTarget(habitual(size, seed=5), size)
    lm = LanguageModel(target, Vocabulary(alphabet))

    def said(prompt: Sequence[int], emitted: Sequence[int]) -> str:
        """What the tokens add to the prompt's text: the prompt opens the text, so no space is stripped after it."""
        before: str = alphabet.decode(list(prompt), skip_special_tokens=True)
        both: str = alphabet.decode([*prompt, *emitted], skip_special_tokens=True)
        return both.removeprefix(before)

    reasons = set()
    for seed in range(12):
        prompt = [2, 3, 7] if seed % 2 else [4]
        sampling = Sampling(temperature=1.0, seed=seed)

        def stopped(emitted: list[int], prompt: list[int] = prompt) -> str | None:
            return "stop" if any(stop in said(prompt, emitted) for stop in stops) else None

        slow = write_slowly(target, prompt, sampling, max_new_tokens=24, ends=stopped)
        options: dict[str, Any] = {
            "method": drafters.get(method, method),
            "stop": stops,
            "max_new_tokens": 24,
            "temperature": 1.0,
            "seed": seed,
        }
        text = lm.generate(prompt, **options)
        assert text.tokens == slow.tokens
        assert text.finish == slow.finish
        whole = said(prompt, slow.tokens)
        assert text.text == min((whole.partition(stop)[0] for stop in stops), key=len)
        assert "".join(piece.text for piece in lm.stream(prompt, **options)) == text.text
        reasons.add(text.finish)
    assert "stop" in reasons


# --- the record ---------------------------------------------------------------------------------------------


@EVERY_METHOD
@EVERY_SETTING
@pytest.mark.parametrize("eos", [frozenset[int](), frozenset({1})])
def test_the_record_describes_emitted_tokens_only(method: str, setting: str, eos: frozenset[int]) -> None:
    target, sampling = tabled(eos=eos), SETTINGS[setting]
    slow = write_slowly(target, PROMPT, sampling, max_new_tokens=21)
    session = write(target, PROMPT, METHODS[method](), sampling=sampling, top_logprobs=2, max_new_tokens=21, nodes=4)
    assert_logprobs(session, slow)
    place = len(PROMPT)
    for round, (start, end) in zip(session.rounds, round_spans(session), strict=True):
        ended_inside = end == len(slow.tokens) and round.accepted == round.emitted
        assert round.position == place
        assert round.emitted == round.accepted + (0 if ended_inside else 1)
        assert round.accepted <= round.drafted <= 4
        sources = [emission.source for emission in session.emissions[start:end]]
        assert all(sources[: round.accepted])
        assert not any(sources[round.accepted :])
        place += round.emitted
    totals = Totals.of(session.rounds, session.seconds_prefill)
    assert totals.tokens == len(slow.tokens) == len(session.emissions) == place - len(PROMPT)
    assert totals.accepted == sum(bool(emission.source) for emission in session.emissions)
    behind = [round for round in session.rounds if not round.prefill]
    assert totals.rounds == len(behind)
    assert totals.forwards == len(session.rounds)
    assert totals.tokens_per_round == sum(round.emitted for round in behind) / len(behind)


class Known(Drafter):
    """Proposes a line that it was given, under a name of its own."""

    def __init__(self, name: str, line: list[int], beside: int) -> None:
        self._source, self._line, self._beside = name, line, beside

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.from_beams([[self._beside], self._line], source=self._source)


def test_every_token_names_the_sources_that_drafted_it() -> None:
    text = write_slowly(tabled(), PROMPT, Sampling(), max_new_tokens=5).tokens[1:]
    other = next(token for token in range(SIZE) if token != text[0])
    drafter = Union([Known("long", text[:3], other), Known("short", text[:1], other)])
    session = write(tabled(), PROMPT, drafter, max_new_tokens=5, nodes=9)
    assert [emission.source for emission in session.emissions] == ["", "long+short", "long", "long", ""]
    kinds = [Kind.PLAIN, Kind.ACCEPTED, Kind.ACCEPTED, Kind.ACCEPTED, Kind.BONUS]
    assert [emission.kind for emission in session.emissions] == kinds


def round_spans(session: Session) -> Iterator[tuple[int, int]]:
    ends = np.cumsum([0, *(round.emitted for round in session.rounds)]).tolist()
    yield from pairwise(ends)


def assert_logprobs(session: Session, slow: Slow) -> None:
    """Before every warp, for the emitted token and the best two, to the bit those of decoding slowly."""
    assert len(session.emissions) == len(slow.tokens) == len(slow.logprobs)
    for emission, token, row in zip(session.emissions, slow.tokens, slow.logprobs, strict=True):
        assert emission.logprobs is not None
        assert emission.logprobs.logprob == row[token]
        assert [value for _, value in emission.logprobs.top] == sorted(row, reverse=True)[:2]
        assert all(row[alternative] == value for alternative, value in emission.logprobs.top)


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    session = write(tabled(), PROMPT, Plain(), top_logprobs=99, max_new_tokens=2)
    for emission in session.emissions:
        assert emission.logprobs is not None
        assert sorted(token for token, _ in emission.logprobs.top) == list(range(SIZE))
    assert write(tabled(), PROMPT, Plain(), max_new_tokens=1).emissions[0].logprobs is None


# --- processors ---------------------------------------------------------------------------------------------


class Rhythm:
    """A processor with a memory, as grammars have: what it does depends on how often it was called."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert ids.shape[0] == scores.shape[0] == 1
        self.calls.append(ids[0].tolist())
        scores = scores.clone()
        scores[0, len(self.calls) % 3] += 2.0
        return scores


@EVERY_METHOD
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_processors_see_the_calls_of_decoding_slowly(method: str, rule: Rule, temperature: float) -> None:
    slow_one, first, second = Rhythm(), Rhythm(), Rhythm()
    target = tabled(eos=frozenset({4}))
    slow = write_slowly(target, PROMPT, Sampling(temperature=temperature, processors=(slow_one,)))
    sampling = Sampling(temperature=temperature, processors=(first, second))
    session = write(target, PROMPT, METHODS[method](), sampling=sampling, rule=rule)
    text = session.context.tokens.tolist()
    assert first.calls == second.calls == [text[:i] for i in range(len(PROMPT), len(text))]
    sampling = Sampling(temperature=temperature, processors=(third := Rhythm(),))
    session = write(target, PROMPT, METHODS[method](), sampling=sampling, rule=rule)
    if rule is Rule.COUPLED or temperature == 0:
        assert session.context.emitted.tolist() == slow.tokens
        assert third.calls == slow_one.calls
