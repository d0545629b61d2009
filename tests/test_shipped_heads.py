"""The trained heads that come with `pocket`: they fit it, draft well, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import paceline
from paceline.api.model import LanguageModel
from paceline.drafters.networks.heads import CONFIG, SHIPPED, STREAMING, method_for, shipped_folder, shipped_methods
from paceline.errors import InputError
from paceline_make.cards import CARD

PROMPTS = ("The old house stood at the end of", "Stary dom stał na końcu drogi, a", "Старий будинок стояв край")
BRINGS = {"redrafter": 2.0, "eagle": 1.8, "medusa": 1.3}
"""Tokens a round that a head brings at least, with 16 nodes."""
MOST_BYTES = 30_000_000
"""Of everything that was trained or counted and comes with the package."""


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


def head_of(method: str) -> Path:
    return shipped_folder(method) / "pocket"


def test_these_heads_come_along() -> None:
    assert set(shipped_methods("pocket")) == set(BRINGS)
    assert {method_for(str(head_of(method))) for method in BRINGS} == set(BRINGS)


@pytest.mark.parametrize("method", BRINGS)
def test_a_head_drafts_well_and_changes_nothing(lm: LanguageModel, method: str) -> None:
    how = {"temperature": 0.8, "seed": 3, "max_new_tokens": 48}
    plain = lm.generate_batch(list(PROMPTS), method="plain", **how)
    found = lm.generate_batch(list(PROMPTS), method=method, planner="fixed:16", **how)
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in plain]
    rounds = sum(len(one.rounds) - 1 for (one,) in found)
    assert sum(len(one.tokens) - 1 for (one,) in found) >= BRINGS[method] * rounds


@pytest.mark.parametrize("method", BRINGS)
def test_its_card_is_about_this_head_and_this_model(lm: LanguageModel, method: str) -> None:
    folder = head_of(method)
    card = (folder / CARD).read_text()
    [weights] = folder.glob("*.safetensors")
    assert lm.target.fingerprint() in card
    assert f"{weights.stat().st_size:,} bytes" in card
    assert f"tools.pocket_heads {method} " in card
    assert json.loads((folder / CONFIG).read_text())["paceline"]["target"] == lm.target.fingerprint()


@pytest.mark.parametrize("method", BRINGS)
def test_it_is_for_no_other_model(method: str) -> None:
    other = paceline.load("pocket-draft", dtype="float32")
    with pytest.raises(InputError, match=rf"{SHIPPED}|no .*head"):
        other.generate("The", method=method, max_new_tokens=2)


def test_streams_of_the_draft_model_come_along(lm: LanguageModel) -> None:
    """They save forwards of the draft model, and change neither drafts nor text."""
    assert shipped_methods("pocket-draft") == [STREAMING]
    folder = shipped_folder(STREAMING) / "pocket-draft"
    draft = paceline.load("pocket-draft", dtype="float32").target
    card = (folder / CARD).read_text()
    assert draft.fingerprint() in card
    assert "tools.pocket_heads streaming " in card
    assert (folder / "model.safetensors").stat().st_size <= 1_000_000
    how = {"temperature": 0.8, "seed": 3, "max_new_tokens": 48, "planner": "fixed:7"}
    alone = lm.generate_batch(list(PROMPTS), method="assistant:model=pocket-draft,length=7", **how)
    found = lm.generate_batch(list(PROMPTS), method="streaming:length=7", **how)
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in alone]
    tokens, forwards = (
        sum(each.counts[name] for (one,) in found for each in one.rounds) for name in ("draft_tokens", "draft_forwards")
    )
    assert tokens >= 1.1 * forwards > 0


def test_all_that_comes_along_is_small() -> None:
    package = Path(paceline.__file__).parent
    made = [file for kind in ("*.safetensors", "*.dict", "tokenizer.json") for file in package.rglob(kind)]
    assert len(made) > 8
    assert sum(file.stat().st_size for file in made) <= MOST_BYTES


@pytest.mark.parametrize("method", ["eagle", "block", "hydra", "redrafter"])
def test_the_folder_of_another_method_is_named(lm: LanguageModel, method: str) -> None:
    with pytest.raises(InputError, match=f"is one for medusa, not for {method}; give medusa:head="):
        lm.generate("a", method=f"{method}:head={head_of('medusa')}", max_new_tokens=1)
