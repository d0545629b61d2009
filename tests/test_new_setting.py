"""A setting of sampling that nobody knows of yet: its row, and the functions that it names, are all that is written."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import paceline
from drafting import as_plain
from engine import PROMPT, tabled
from paceline.cli.arguments import Parser
from paceline.cli.options import provenance
from paceline.context import Context, Ending
from paceline.drafters import Plain, make_drafter
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.mirror.worker import context_of, facts_of
from paceline.errors import InputError
from paceline.law import KeyedDice, Law, Noise, Outlook, Place, Sampling, laws
from paceline.law.contenders import contenders
from paceline.law.table import Acts, setting, table
from paceline.law.values import number
from paceline.law.warp import Survivors, Warps
from paceline.targets.table import TableTarget, random_table
from paceline_lab.bench.peers.transformers import sampled
from paceline_lab.check.cases import samplings, settings
from paceline_lab.check.record import law_faults, record

NAME = "top_n_sigma"


def within_sigmas(left: Survivors, count: float) -> NDArray[np.bool_]:
    """Tokens whose logits are within so many standard deviations of the best."""
    possible = left.scores[np.isfinite(left.scores)]
    kept: NDArray[np.bool_] = left.scores >= possible.max() - count * possible.std(dtype=np.float64)
    return kept


def masked_beyond(scores: torch.Tensor, emitted: torch.Tensor, count: float) -> torch.Tensor:
    possible = scores[scores.isfinite()]
    return scores.masked_fill(scores < possible.max() - count * possible.std(correction=0), -torch.inf)


ROW: dict[str, Any] = {
    "kind": float,
    "check": number(lambda value: value >= 0, "use a number of standard deviations, or 0 to keep all"),
    "help": "keep tokens within N standard deviations of the best logit",
    "largest": 1000,
    "acts": Acts.AS_CUT,
    "host": within_sigmas,
    "elsewhere": {"llama.cpp": NAME},
    "label": "top-n-sigma",
    "tried": (1.2, 2.5),
    "reference": masked_beyond,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class WithSigmas(Sampling):
    """The settings with one more."""

    top_n_sigma: float = setting(0.0, **ROW)


@dataclass(frozen=True, kw_only=True, repr=False)
class WithMistake(Sampling):
    """The same, with another law than it says."""

    top_n_sigma: float = setting(0.0, **{**ROW, "host": lambda left, count: within_sigmas(left, count / 2)})


WARM = WithSigmas(temperature=0.8, top_n_sigma=2.0, seed=4)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the field were in `Sampling`."""
    monkeypatch.setattr("paceline.api.settings.Sampling", WithSigmas)


@pytest.fixture(scope="module")
def lm() -> Iterator[paceline.LanguageModel]:
    model = paceline.load("pocket", dtype="float32", generation_config=False)
    yield model
    model.forget()


# --- the law ------------------------------------------------------------------------------------------------


def test_a_law_is_cut_by_it_after_the_other_cuts() -> None:
    row = 3 * torch.randn(5000, generator=torch.Generator().manual_seed(2))
    none = np.array([1])
    for how in ({}, {"top_k": 200}, {"top_p": 0.99}, {"min_p": 1e-4}, {"presence_penalty": 0.5}):
        wide = Sampling(temperature=0.8, **how)
        narrow = WithSigmas(temperature=0.8, top_n_sigma=1.5, **how)
        whole, cut = (Law(each, 1).distribution(row, none) for each in (wide, narrow))
        scores = row.numpy()[whole.ids]
        assert cut.ids.tolist() == whole.ids[scores >= scores.max() - 1.5 * scores.std(dtype=np.float64)].tolist()
        assert 0 < cut.ids.size < whole.ids.size
    assert Law(WithSigmas(top_n_sigma=1.5), 1).argmax_only


def test_no_kernel_chooses_where_it_acts() -> None:
    assert Warps.of(replace(WARM, top_n_sigma=0.0)).in_kernels
    warps = Warps.of(WARM)
    assert not warps.in_kernels
    row = 3 * torch.randn(9000, generator=torch.Generator().manual_seed(2))
    assert contenders([row], warps, [(Noise(1), 3)]) == [None]
    assert Outlook(WARM, 1).draw(Noise(1), 3) is None
    assert Outlook(replace(WARM, top_n_sigma=0.0), 1).draw(Noise(1), 3) is not None
    assert not Law(WARM, 1).reads_ahead
    law, text = Law(WARM, 1), np.array([1, 2])
    for seed in range(30):
        noise = Noise(seed)
        (raced,) = laws([Place(law, row, text, noise)])
        assert not isinstance(raced, Exception)
        dice = KeyedDice(noise)
        assert dice.choose(2, raced) == dice.choose(2, law.distribution(row, text))


# --- texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lookup", "suffix", "foresight"])
def test_drafts_of_a_table_change_no_token(method: str) -> None:
    changed = 0
    for seed in range(8):
        sampling = replace(WARM, seed=seed, top_n_sigma=1.0)
        session = as_plain(tabled(), PROMPT, make_drafter(method), sampling=sampling, max_new_tokens=24)
        without = as_plain(tabled(), PROMPT, Plain(), sampling=replace(sampling, top_n_sigma=0.0), max_new_tokens=24)
        changed += session.context.emitted.tolist() != without.context.emitted.tolist()
    assert changed


@pytest.mark.usefixtures("known")
def test_every_method_writes_plains_text_alone_and_in_a_batch(lm: paceline.LanguageModel) -> None:
    prompts = ["Once upon a time", "Stary człowiek"]
    how: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_new_tokens": 24, NAME: 1.5}
    plain = [lm.generate(prompt, method="plain", **how).tokens for prompt in prompts]
    wide = [lm.generate(prompt, method="plain", **{**how, NAME: 0.0}).tokens for prompt in prompts]
    assert plain != wide
    drafting: list[dict[str, Any]] = [
        {"method": "assistant", "draft_model": "pocket-draft", "planner": "fixed:4"},
        {"method": "redrafter", "planner": "fixed:6"},
        {"method": "mirror:overlap=always", "draft_model": "pocket-draft", "planner": "fixed:4"},
        {"method": "auto"},
    ]
    for method in drafting:
        alone = [lm.generate(prompt, **method, **how) for prompt in prompts]
        assert [one.tokens for one in alone] == plain, method
        assert any(each.accepted for one in alone for each in one.rounds), method
        batch = lm.generate_batch(prompts, **method, **how)
        assert [one.tokens for (one,) in batch] == plain, method


def test_a_draft_in_another_process_gets_the_settings_that_it_knows() -> None:
    sampling = replace(WARM, logit_bias={3: 1.5}, banned=((4, 5),), top_k=9)
    context = Context([1, 2, 3], sampling, Ending(max_new_tokens=9))
    facts = json.loads(json.dumps(facts_of(context, 50, DraftShape(), "mirror")))
    assert facts["sampling"][NAME] == 2.0
    assert WithSigmas.unpacked(facts["sampling"]) == replace(sampling, banned=[[4, 5]])
    known = context_of(facts, context.tokens).sampling
    assert known == Sampling(temperature=0.8, seed=4, logit_bias={3: 1.5}, banned=[[4, 5]], top_k=9)


# --- what is checked, shown and sent ------------------------------------------------------------------------


def test_a_check_tries_it_and_sees_a_wrong_law() -> None:
    known = samplings(9, 0, WithSigmas)
    name = "t=1 top-n-sigma 1.2"
    assert {name, "t=0.8 top-k 40 top-p 0.95 min-p 0.02 top-n-sigma 2.5"} <= set(known)
    target = TableTarget(random_table(9), 9, dtype="float64")
    (first, *_) = settings(target, None, max_new_tokens=12)
    recording = record(replace(first, sampling=known[name]), target, target.open())
    assert law_faults(recording) == ()
    mistaken = replace(recording.setting, sampling=samplings(9, 0, WithMistake)[name])
    assert law_faults(replace(recording, setting=mistaken)) != ()


def test_it_has_a_flag_with_bounds() -> None:
    parser = Parser(prog="x")
    parser.add_sampling([row for row in table(WithSigmas) if row.help is not None])
    assert parser.parse_args(["--top-n-sigma", "1.5", "--top-k", "3"]).top_n_sigma == 1.5
    assert "keep tokens within N standard deviations" in parser.format_help()


@pytest.mark.usefixtures("known")
def test_records_of_a_text_hold_it(lm: paceline.LanguageModel) -> None:
    how, sampling = lm.settings_for("x", {NAME: 1.5, "temperature": 1.0, "seed": 1})
    assert provenance(lm, how, sampling, {NAME})[NAME] == 1.5


def test_other_libraries_get_it_where_they_have_it() -> None:
    assert WARM.elsewhere("llama.cpp") == {NAME: 2.0}
    assert WARM.lacking("llama.cpp") == []
    assert WARM.lacking("transformers") == [NAME]
    assert replace(WARM, temperature=0.0).lacking("transformers") == [], "it acts on sampled texts alone"
    assert NAME not in sampled(WARM)


def test_it_is_shown_and_refused_like_others() -> None:
    assert repr(WARM) == "WithSigmas(temperature=0.8, seed=4, top_n_sigma=2.0)"
    for value, sentence in (
        (-1, "top_n_sigma is -1: use a number of standard deviations, or 0 to keep all"),
        ("2", "top_n_sigma is a number, not '2'; write 2.0"),
        (None, "top_n_sigma is a number, not None; leave it out for the default"),
    ):
        with pytest.raises(InputError) as error:
            WithSigmas(top_n_sigma=value)  # type: ignore[arg-type]
        assert str(error.value) == sentence
