"""A head that reads the target's states joins the networks in eighty lines, and its rows are those of its text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Seen
from paceline.drafters.networks.drafter import NetworkDrafter
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.network import Network
from paceline.drafters.networks.reading import DraftedText, TokenColumns
from paceline.drafters.networks.states import StateText
from paceline.law import Distribution, Outlook, Sampling
from paceline.targets.base import Request, Target, Want
from paceline.tree import DraftTree
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary
from toy_head import Toy

KNOWN = np.arange(0, 8000, 2)
PROMPT = "Once upon a time there was a little girl who lived in a village near the forest. One morning"


@cache
def model() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_the_text_is_plain_decodings(temperature: float) -> None:
    how: dict[str, Any] = {"temperature": temperature, "seed": 4, "max_new_tokens": 24}
    prompts = [PROMPT, "Kraków jest", PROMPT + " she"]
    plain = [lm.tokens for (lm,) in model().generate_batch(prompts, method="plain", **how)]
    drafter = Toy()
    alone = model().generate(PROMPT, method=drafter, planner="fixed:6", **how)
    assert alone.tokens == plain[0]
    assert alone.totals.drafted > 24
    together = model().generate_batch(prompts, method=drafter, planner="fixed:6", **how)
    assert [one.tokens for (one,) in together] == plain


def shown(drafter: Toy, state: StateText, rows: Any, request: Request, verdict: Verdict) -> None:
    """Have the target score a request, keep what the verdict accepts, and show it to the drafter."""
    (scores,) = model().target.score([request])
    rows.keep([0, *(node + 1 for node in verdict.path)])
    for token in verdict.tokens:
        state.context.commit(token)
    drafter.observe([Seen(state, verdict, scores)])


def opened(drafter: Toy, tokens: Any) -> StateText:
    """A text whose prompt the target has read, in two pieces."""
    context = Context(tokens, Sampling(), Ending(max_new_tokens=60))
    state, rows = drafter.open(context), model().target.open(99)
    for piece in np.array_split(context.tokens[:-1], 2):
        request = Request.of_prompt(rows, piece, Want(hidden=drafter.needs.hidden))
        shown(drafter, state, rows, request, Verdict(path=tuple(range(len(piece) - 1)), tokens=(), accepted=0))
    state.target_rows = rows
    return state


def keys_of(state: StateText) -> torch.Tensor:
    state.rows.check()
    return torch.cat(state.rows.layers[0].span(0, state.rows.committed))


def fitted() -> Toy:
    drafter = Toy()
    drafter.fit(model().target)
    return drafter


def test_rows_are_those_of_a_forward_from_scratch_after_any_verdict() -> None:
    random, drafter = np.random.default_rng(0), fitted()
    states = [opened(drafter, model().encode(prompt)) for prompt in (PROMPT, PROMPT + " she", "Kraków jest")]
    for _ in range(8):
        trees = drafter.propose([Ask(state, Budget(6, 3)) for state in states])
        assert all(len(tree) == 6 and tree.depth > 1 for tree in trees)
        for state in states:
            accepted = int(random.integers(0, 4))
            line = random.integers(0, 8000, accepted + 1).tolist()
            draft = DraftTree.build([7, *line[:-1]], [-1, -1, *range(1, accepted)][: accepted + 1])
            verdict = Verdict(path=tuple(range(1, accepted + 1)), tokens=tuple(line), accepted=accepted)
            request = Request.of_tree(state.target_rows, state.context.root, draft, Want(hidden=drafter.needs.hidden))
            shown(drafter, state, state.target_rows, request, verdict)
    drafter.propose([Ask(state, Budget(6, 3)) for state in states])
    for state in states:
        fresh = fitted()
        again = opened(fresh, state.context.tokens)
        fresh.propose([Ask(again, Budget(6, 3))])
        assert torch.allclose(keys_of(again), keys_of(state), atol=1e-4)
        assert state.rows.committed == len(state.context)


def test_drafts_of_several_texts_are_read_together() -> None:
    drafter = fitted()
    states = [opened(drafter, model().encode(prompt)) for prompt in (PROMPT, "Kraków jest", "Київ")]
    before = drafter.head.forwards
    drafter.propose([Ask(state, Budget(6, 3)) for state in states])
    assert drafter.head.forwards - before == 3


def test_rows_are_reused_by_the_next_turn() -> None:
    drafter, how = Toy(), {"temperature": 0.8, "seed": 4, "max_new_tokens": 12, "planner": "fixed:6"}
    first = model().encode(PROMPT)
    turn = model().generate(first, method=drafter, **how)
    longer = [*first, *turn.tokens, *model().encode(" and then")]
    state = drafter.open(Context(longer, Sampling(), Ending(max_new_tokens=9)))
    assert state.rows.committed > len(first)
    drafter.close(state)
    assert (
        model().generate(longer, method=drafter, **how).tokens == model().generate(longer, method="plain", **how).tokens
    )


class AllAtOnce(Network):
    """Medusa's shape: the levels are computed together, each without the tokens of the one before. It knows a part of
    the target's tokens."""

    def __init__(self, target: Target) -> None:
        self._target, self.forwards = target, 0

    def begin(self, growths: Sequence[Growth]) -> None:
        self.forwards += 1
        for growth in growths:
            turned = [growth.state.hidden.roll(level) for level in range(growth.depth)]
            growth.kept = self._target.unembed(torch.stack(turned))[:, KNOWN]

    def level(self, growths: Sequence[Growth]) -> list[list[Distribution]]:
        return [growth.laws(growth.kept[growth.level].expand(len(growth.above), -1)) for growth in growths]


class AtOnce(NetworkDrafter):
    """Drafts by that network."""

    name = "at-once"
    tokens = frozenset[int]()

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        self._target, self._network, self.needs = target, AllAtOnce(target), Want(hidden=frozenset({target.layers}))

    @property
    def network(self) -> Network:
        return self._network

    def open(self, context: Context) -> Any:
        columns = TokenColumns(self._target.vocab_size, KNOWN)
        return DraftedText(context, Outlook(context.sampling, context.prompt_length), columns)

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            row = verdict.path[-1] + 1 if verdict.path else 0
            state.hidden = scores.hidden(self._target.layers)[row].clone()

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        trees = super().propose(asks)
        self.tokens = {*self.tokens, *(int(token) for tree in trees for token in tree.tokens)}
        return trees

    def growth(self, ask: Ask) -> Growth:
        ready = hasattr(ask.state, "hidden")
        return Growth(ask.state, self.shape, ask.budget.nodes, min(3, ask.budget.depth) if ready else 0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_network_without_rows_gives_all_levels_at_once(temperature: float) -> None:
    how: dict[str, Any] = {"temperature": temperature, "seed": 4, "max_new_tokens": 24, "planner": "fixed:6"}
    drafter = AtOnce(DraftShape(top=2))
    found = model().generate(PROMPT, method=drafter, **how)
    assert found.tokens == model().generate(PROMPT, method="plain", **how).tokens
    drafted = [round for round in found.rounds if round.drafted]
    assert drafter.tokens <= set(KNOWN.tolist())
    assert max(round.depth for round in drafted) == 3
    assert drafter.network.forwards <= len(found.rounds)
