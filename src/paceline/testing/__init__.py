"""The test double for drafters: a drafter is tested in a second, without weights.

>>> from paceline.drafters import make_drafter
>>> trial = check_drafter(lambda: make_drafter("lookup"))
>>> trial.accepted > 0
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from paceline.api.model import LanguageModel
from paceline.api.writing import Generation
from paceline.context import Context, Ending
from paceline.drafters.asking import admitted, answered, asked, fit
from paceline.drafters.base import Ask, Budget, Drafter
from paceline.law import Law, Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target
from paceline.targets.table import Table, TableTarget
from paceline.testing.counted import Counted
from paceline.testing.evidence import ALARM, Evidence, law_evidence, p_value, teacher_forced
from paceline.tree import DraftTree
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary

__all__ = ["Trial", "check_drafter", "drafted", "habitual"]

SIZE = 24
"""Tokens of the model that is tested with."""
PROMPTS = ([1, 2, 3, 1, 2], [5, 4, 5, 4, 5, 4], [7], [9, 8, 7, 6, 9, 8])
TOKENS = 48
TEXTS = 24
"""Sampled texts under the rejection rule."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The counts of a drafter in `check_drafter`, summed over all texts under the coupled rule."""

    rounds: int
    drafted: int
    accepted: int


def habitual(size: int = SIZE, *, seed: int = 0, memory: int = 2) -> TableTarget:
    """A model that has a favourite token after the same ``memory`` tokens, so its texts repeat themselves."""

    @cache
    def weights(recent: tuple[int, ...]) -> list[float]:
        digest = hashlib.sha256(f"{seed}:{recent}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        found = random.integers(-2, 3, size).astype(float)
        found[random.integers(size)] += 4.5
        return list(found)

    table: Table = lambda history: weights(history[-memory:])  # noqa: E731
    return TableTarget(table, size)


def drafted(drafter: Drafter, tokens: Sequence[int], *, nodes: int = 8, target: Target | None = None) -> DraftTree:
    """The draft of a drafter for a text that it sees for the first time, checked."""
    target = target or habitual(max([SIZE - 1, *tokens]) + 1)
    fit(drafter, target, None)
    context = Context(tokens, Sampling(), Ending(max_new_tokens=2 * nodes))
    state = asked(drafter, "open", context)
    try:
        (tree,) = answered(drafter, "propose", [Ask(state, Budget(nodes, nodes))], DraftTree)
        return admitted(drafter, tree, drafter.leaves * nodes, target.vocab_size)
    finally:
        asked(drafter, "close", state)


def check_drafter(
    make: Callable[[], Drafter], *, target: Target | None = None, vocabulary: Vocabulary | None = None
) -> Trial:
    """Write small texts with a drafter, alone and together, under both rules, and hold them against plain decoding's.

    Raises a `DrafterError` where the drafter fails, and an AssertionError where a text is not plain decoding's, where
    sampled tokens do not follow their law, where a state stays open or where nothing is drafted at all.
    """
    lm = LanguageModel(target or habitual(), vocabulary)
    found = list[Generation]()
    for temperature in (0.0, 1.0):
        for rule in Rule if temperature == 0 else (Rule.COUPLED,):
            texts = _written(lm, make(), rule, temperature)
            found += texts if rule is Rule.COUPLED else []
    _check_law(lm, make())
    trial = Trial(
        rounds=sum(text.totals.rounds for text in found),
        drafted=sum(text.totals.drafted for text in found),
        accepted=sum(text.totals.accepted for text in found),
    )
    assert trial.drafted > 0, f"{type(make()).__name__} drafted nothing in {trial.rounds} rounds"
    return trial


def _written(lm: LanguageModel, drafter: Drafter, rule: Rule, temperature: float) -> list[Generation]:
    """Texts of all prompts, alone and together, which are plain decoding's; no state of the drafter is open then."""
    counted = Counted(drafter)
    how: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_new_tokens": TOKENS, "strict": True}
    plain = [lm.generate(prompt, method="plain", **how) for prompt in PROMPTS]
    how |= {"method": counted, "rule": str(rule), "planner": f"fixed:{drafter.nodes}"}
    alone = [lm.generate(prompt, **how) for prompt in PROMPTS]
    together = [text for (text,) in lm.generate_batch(PROMPTS, **how)]
    for name, texts in (("alone", alone), ("in a batch", together)):
        for prompt, text, expected in zip(PROMPTS, texts, plain, strict=True):
            same = text.tokens == expected.tokens
            assert same, f"after {prompt} the text {name} under {rule} is {text.tokens}, not {expected.tokens}"
    assert not counted.open_states, f"{counted.open_states} states were not closed"
    return alone


def _check_law(lm: LanguageModel, drafter: Drafter) -> None:
    """Sampled tokens under the rejection rule follow the model's law."""
    fit(drafter, lm.target, lm.vocabulary)
    drafts, likely = list[Evidence](), list[Evidence]()
    for seed in range(TEXTS):
        prompt, ending = PROMPTS[seed % len(PROMPTS)], Ending(max_new_tokens=TOKENS)
        context = Context(prompt, Sampling(temperature=1.0, seed=seed), ending)
        rows = lm.target.open(len(context) + TOKENS)
        drafts += law_evidence(context, lm.target, drafter, Fixed(drafter.nodes), rows)
        likely += _likely(context, lm.target)
        rows.close()
    impossible = sum(each.place is None for each in drafts)
    assert impossible == 0, f"{impossible} tokens cannot follow under the model's law"
    p = min(p_value(drafts), p_value(likely))
    assert p >= ALARM, f"sampled tokens do not follow the model's law (p = {p:.1e}); is `drawn` the law of the samples?"


def _likely(context: Context, target: Target) -> Iterator[Evidence]:
    """Whether probable tokens come as often as the law says: a false `drawn` favours what the drafter favours."""
    law, first = Law(context.sampling, context.prompt_length), context.prompt_length
    for index, row in enumerate(teacher_forced(target, context.tokens, first), start=first):
        found = law.distribution(row, context.tokens[:index])
        probs = np.asarray(found.probs, np.float64)
        mean = float(probs @ probs)
        own = float(probs[found.ids == context.tokens[index]].sum())
        yield Evidence(None, own - mean, float(probs @ (probs - mean) ** 2))
