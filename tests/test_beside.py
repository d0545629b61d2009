"""Work of drafters between forwards: on one thread of torch's beside a compiled target, where it is light."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import torch

import paceline
from paceline.api.model import LanguageModel
from paceline.drafters import make_drafter
from paceline.drafters.asking import fit
from paceline.drafters.networks import fitting
from paceline.drafters.networks.medusa import Medusa
from paceline.targets.hf.threads import one_thread

PROMPT = "The old house stood at the end of"


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    had = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(had)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    if not lm.target.compiled:
        pytest.skip("forwards are not compiled here")
    return lm


def threads_of(lm: LanguageModel, method: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], set[int]]:
    """The threads that torch had in the drafts of a text, and while the drafter read its prompt."""
    drafting, reading = set[int](), set[int]()
    propose, observe = Medusa.propose, Medusa.observe

    def proposing(drafter: Medusa, asks: object) -> object:
        drafting.add(torch.get_num_threads())
        return propose(drafter, asks)  # type: ignore[arg-type]

    def observing(drafter: Medusa, seen: object) -> None:
        if not all(each.verdict.tokens for each in seen):  # type: ignore[attr-defined]
            reading.add(torch.get_num_threads())
        observe(drafter, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(Medusa, "propose", proposing)
    monkeypatch.setattr(Medusa, "observe", observing)
    lm.forget()
    lm.generate(PROMPT, method=method, planner="fixed:8", max_new_tokens=8)
    assert torch.get_num_threads() == 2
    return drafting, reading


def test_light_drafts_have_one_thread_and_prompts_all(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_of(lm, "medusa", monkeypatch) == ({1}, {2})
    assert threads_of(lm, "medusa+suffix", monkeypatch) == ({1}, {2})


def test_heavy_drafts_have_all(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "LIGHT", 1_000)
    assert threads_of(lm, "medusa", monkeypatch) == ({2}, {2})
    union = make_drafter("suffix+medusa")
    fit(union, lm.target, lm.vocabulary)
    assert not union.light


def test_a_failure_gives_the_threads_back() -> None:
    with contextlib.suppress(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_a_thread_that_begins_meanwhile_has_all() -> None:
    found = list[int]()

    def compute() -> None:
        torch.ones(10).sum()
        found.append(torch.get_num_threads())

    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)  # so that this is not the only thread
    other.start()
    with one_thread():
        begun = threading.Thread(target=compute)
        begun.start()
        begun.join()
        assert torch.get_num_threads() == 1
    waiting.set()
    other.join()
    assert found == [2]
