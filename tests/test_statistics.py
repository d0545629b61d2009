"""On a real model, with production law and noise: the law of sampled texts is the model's, and a bias would be seen.

Exactness is proved elsewhere; here stands that nothing between a transformers model and the text spoils it.
"""

from collections import Counter
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from scipy import stats

from engine import write
from families import build
from paceline import verify
from paceline.context import Context
from paceline.drafters import Budget, Drafter
from paceline.law import Dice, Distribution, Sampling, Stream
from paceline.targets.hf.load import load_target
from paceline.targets.hf.target import HFTarget
from paceline.tree import ROOT, DraftTree
from paceline.verify import Rule
from thinning import crossed, thinned

PROMPT = (11, 3, 58, 3, 40, 11)
KEPT, LENGTH = 5, 3
SEEDS = 1000
HONEST, BIASED = 1e-4, 1e-6

Tokens = tuple[int, ...]
Laws = dict[Tokens, Distribution]
"""After each text, the law of its next token."""


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return load_target(build("llama", num_hidden_layers=1))


@pytest.fixture(scope="module")
def laws(target: HFTarget) -> Laws:
    """The best few of each row in proportion to their likelihood, by the model alone and without its cache."""
    found: Laws = {}
    level: list[Tokens] = [PROMPT]
    for _ in range(LENGTH):
        with torch.no_grad():
            rows = target.model(torch.tensor(level)).logits[:, -1].double()
        best = rows.topk(KEPT)
        for text, ids, logits in zip(level, best.indices.numpy(), best.values.numpy(), strict=True):
            order = np.argsort(ids)
            found[text] = Distribution(ids[order], np.exp(logits - logits.max())[order])
        level = [(*text, int(token)) for text in level for token in found[text].ids]
    return found


class Likeliest(Drafter):
    """A tree of the likeliest continuations: point masses, chosen by knowing the target well."""

    def __init__(self, laws: Laws) -> None:
        self._laws = laws

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        text = tuple(state.tokens.tolist())
        beams = []
        for first in self._best(text, 3):
            beams.append([first])
            beams += [[first, second] for second in self._best((*text, first), 2)]
        return DraftTree.from_beams([beam[: budget.depth] for beam in beams])

    def _best(self, text: Tokens, count: int) -> list[int]:
        law = self._laws.get(text)
        return [] if law is None else law.ids[np.argsort(-law.weights)[:count]].tolist()


class Sampled(Drafter):
    """Two children and two grandchildren drawn without replacement from laws that favour what the target does not."""

    def __init__(self, laws: Laws) -> None:
        self._laws = laws

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        text = tuple(state.tokens.tolist())
        tokens, parents, drawn = list[int](), list[int](), dict[int, Distribution]()
        level: list[tuple[int, Tokens]] = [(ROOT, text)]
        for _ in range(min(budget.depth, 2)):
            above, level = level, []
            for parent, before in above:
                drawn[parent], children = self._draw(state, before)
                for token in children:
                    level.append((len(tokens), (*before, token)))
                    tokens.append(token)
                    parents.append(parent)
        return DraftTree.build(tokens, parents, drawn=drawn)

    def _draw(self, context: Context, before: Tokens) -> tuple[Distribution, list[int]]:
        law = self._laws[before]
        contrary = Distribution(law.ids, law.weights**-0.3)
        clocks = context.noise.exponential(Stream.DRAFT, len(before), law.ids) / contrary.weights
        return contrary, law.ids[np.argsort(clocks)[:2]].tolist()


DRAFTERS = {"tree": Likeliest, "sampled": Sampled}


def p_value(target: HFTarget, laws: Laws, drafter: Drafter, rule: Rule, seeds: int = SEEDS) -> tuple[float, int]:
    """Of the texts of many seeds under the model's law, and how many drafted tokens they took."""
    rows, texts, accepted = target.open(16), Counter[Tokens](), 0
    for seed in range(seeds):
        session = write(
            target,
            PROMPT,
            drafter,
            nodes=9,
            rule=rule,
            sampling=Sampling(temperature=1.0, top_k=KEPT, seed=seed),
            rows=rows,
            max_new_tokens=LENGTH,
        )
        texts[tuple(session.context.emitted.tolist())] += 1
        accepted += sum(round.accepted for round in session.rounds)
    return goodness_of_fit(texts, laws, seeds), accepted


def goodness_of_fit(texts: Counter[Tokens], laws: Laws, count: int) -> float:
    """Chi-square over complete texts; those too rare for it are one class together."""
    expected: dict[Tokens, float] = {}
    vocabulary = sorted({int(token) for law in laws.values() for token in law.ids})
    for text in product(vocabulary, repeat=LENGTH):
        steps = [((*PROMPT, *text[:i]), text[i]) for i in range(LENGTH)]
        if all(before in laws and laws[before].probability(token) for before, token in steps):
            expected[text] = count * prod(float(laws[before].probability(token)) for before, token in steps)
    assert set(texts) <= set(expected), "a text that the model rules out"
    common = [text for text, often in expected.items() if often >= 5]
    observed = [texts[text] for text in common]
    often = [expected[text] for text in common]
    pooled = stats.chisquare([*observed, count - sum(observed)], [*often, count - sum(often)])
    assert len(common) > 20
    return float(pooled.pvalue)


@pytest.mark.parametrize(("drafter", "rule"), crossed(DRAFTERS, Rule))
def test_sampled_texts_have_the_models_law(target: HFTarget, laws: Laws, drafter: str, rule: Rule) -> None:
    p, accepted = p_value(target, laws, DRAFTERS[drafter](laws), rule)
    assert p > HONEST
    assert accepted > SEEDS / 2


@pytest.mark.parametrize("drafter", thinned(DRAFTERS))
def test_tokens_accepted_with_p_would_be_seen(
    target: HFTarget, laws: Laws, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def biased(tree: DraftTree, node: int, p: Distribution, rule: Rule, dice: Dice, index: int) -> int:
        q = tree.drawn.get(node)
        for token in tree.tokens[tree.children(node)].tolist():
            if dice.accept(index, token, p.probability(token)):
                return int(token)
            if q is not None:
                p, q = p.minus(q), q.without(token)
        return dice.draw(index, p)

    monkeypatch.setattr(verify, "_settle", biased)
    p, _ = p_value(target, laws, DRAFTERS[drafter](laws), Rule.REJECTION, seeds=600)
    assert p < BIASED
