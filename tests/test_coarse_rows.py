"""Rows that cannot be taken back to any length, as those of models with a state that each token changes: texts are
plain decoding's all the same, and what was lost is read again."""

from typing import Any

import numpy as np
import pytest

from drafting import context_of
from engine import PROMPT, SIZE, habitual
from paceline.api.model import LanguageModel
from paceline.drafters import Ask, Budget
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.targets.table import TableRows, TableTarget

STEP = 4
"""A state is kept after every so many tokens."""


class CoarseRows(TableRows):
    back = 0
    """Rows that were lost beyond those that were to go."""

    def _within_reach(self, length: int) -> int:
        left = length if length == self.committed else length // STEP * STEP
        self.back += length - left
        return left


class CoarseTarget(TableTarget):
    def __init__(self, **how: Any) -> None:
        super().__init__(habitual(memory=2), SIZE, **how)
        self.opened: list[CoarseRows] = []

    def open(self, capacity: int = 0) -> CoarseRows:
        self.opened.append(CoarseRows(capacity))
        return self.opened[-1]

    @property
    def back(self) -> int:
        return sum(rows.back for rows in self.opened)


def plain() -> LanguageModel:
    return LanguageModel(TableTarget(habitual(memory=2), SIZE))


HOW: dict[str, Any] = {"max_new_tokens": 30, "planner": "fixed:4"}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_prompts_that_begin_alike_and_batches(temperature: float) -> None:
    how = {**HOW, "temperature": temperature, "seed": 3, "method": "lookup+recycling"}
    prompts = [[*PROMPT, *range(end)] for end in (6, 5, 3, 4, 1)]
    target = CoarseTarget()
    lm, expected = LanguageModel(target), [plain().generate(prompt, **how).tokens for prompt in prompts]
    assert [lm.generate(prompt, **how).tokens for prompt in prompts] == expected
    assert target.back > 0, "rows were taken back further than was asked"
    batch = LanguageModel(CoarseTarget()).generate_batch(prompts, **how)
    assert [text.tokens for (text,) in batch] == expected


def test_rows_that_are_copied_are_as_far_as_they_were_kept() -> None:
    rows, other = CoarseTarget().open(), CoarseTarget().open()
    rows.write(np.arange(10))
    rows.keep(range(10))
    other.adopt(rows, 7)
    assert other.tokens.tolist() == [0, 1, 2, 3]
    assert rows.committed == 10
    assert rows.rewind(7) == 4 == rows.committed


def test_a_draft_model_reads_again_what_it_lost() -> None:
    """Its text is taken back where the target has refused a draft, and where another prompt begins alike."""
    model = CoarseTarget()
    drafter, exact = (
        Assistant(model=DraftModel(model)),
        Assistant(model=DraftModel(TableTarget(habitual(memory=2), SIZE))),
    )
    for prompt in ([*PROMPT, 3, 4, 5], [*PROMPT, 3, 4], [*PROMPT, 1]):
        found, expected = (plain().generate(prompt, method=one, **HOW) for one in (drafter, exact))
        assert found.tokens == expected.tokens == plain().generate(prompt, method="plain", max_new_tokens=30).tokens
        assert found.totals.accepted == expected.totals.accepted > 0, "drafts are those of exact rows"
    assert model.back > 0


@pytest.mark.parametrize("top", [1, 2])
def test_a_draft_may_be_asked_for_twice(top: int) -> None:
    """Nothing has followed, so the last token is read again; the rows of the draft before are gone with it."""
    context, drafts = context_of([*PROMPT, 3, 4, 5]), []
    for kind in (CoarseTarget, lambda: TableTarget(habitual(memory=2), SIZE)):
        drafter = Assistant(model=DraftModel(kind()), top=top)
        drafter.fit(TableTarget(habitual(memory=2), SIZE))
        state = drafter.open(context)
        drafts += [drafter.propose([Ask(state, Budget(8, 4))])[0].tokens.tolist() for _ in range(3)]
    assert len(drafts[0]) > 1
    assert all(draft == drafts[0] for draft in drafts)
