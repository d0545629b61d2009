"""Drafts of several tokens a forward in one call: those of one token a forward, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from drafting import SETTINGS
from families import FAMILIES, WINDOW, build
from paceline.law import Noise, Sampling
from paceline.law.outlook import Outlook
from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fused import guessing
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.guessing import LARGEST_INT8, StreamJob
from paceline.targets.hf.integers import kernels
from paceline.targets.hf.integers.target import quantized
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.targets.streams import StreamAdapter, Streams
from scoring import load_quietly, tokens
from streaming import Reference, made_adapter
from thinning import crossed

if kernels.without_numba() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.without_numba()}", allow_module_level=True)

TEXTS = [tokens(count, seed).tolist() for count, seed in ((1, 0), (7, 1), (40, 2))]
DEPTHS = [4, 9, 6]
UNREAD = [1, 5, 2]
"""Tokens of each text that the first forward of a draft reads."""
KINDS = ["float32", "bfloat16", "int8"]
SHAPES = [(1, 1), (2, 2), (3, 3), (3, 6)]
"""Streams and guesses."""


@pytest.fixture(autouse=True)
def everything_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random models are sure of nothing."""
    monkeypatch.setattr(guessing, "LEAST_GUESS", 0.0)
    monkeypatch.setattr(guessing, "LEAST_STREAM", 0.0)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    had = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(had)


@cache
def compiled(kind: str = "float32", name: str = "llama") -> HFTarget:
    if kind == "int8":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("paceline.targets.hf.integers.linear.kernel_for", lambda threads: kernels.Compiled)
            return quantized(load_quietly(build(name)))
    target = HFTarget(build(name, getattr(torch, kind)).requires_grad_(False))
    target.compiles = True
    return prepare(target)


@cache
def made(name: str = "llama", layers: int = 2, seed: int = 1, rank: int = 5) -> Any:
    """An adapter that rounding to 8-bit integers leaves as it is; rank 5 is no multiple of anything."""
    adapter = made_adapter(compiled(name=name), layers=layers, rank=rank, seed=seed)
    with torch.no_grad():
        for maps in adapter.maps:
            for narrow, wide in maps.values():
                narrow.copy_(_rounded(narrow))
                wide.copy_(_rounded(wide.T).T)
    return adapter


def _rounded(rows: torch.Tensor) -> torch.Tensor:
    steps = rows.abs().amax(dim=1, keepdim=True) / LARGEST_INT8
    return (rows / steps).round() * steps


def held(name: str = "llama", layers: int = 2, seed: int = 1, rank: int = 5) -> StreamAdapter:
    adapter: StreamAdapter = made(name, layers, seed, rank).as_adapter((name, layers, seed, rank))
    return adapter


def chains(
    target: HFTarget,
    streams: Streams | None = None,
    guesses: int = 0,
    *,
    ends: Sequence[int] = (),
    texts: Sequence[Sequence[int]] = TEXTS,
    depths: Sequence[int] = DEPTHS,
    **sampling: Any,
) -> list[Chain]:
    """Of texts that are read but for their last tokens."""
    made_chains = []
    for number, (text, depth) in enumerate(zip(texts, depths, strict=True)):
        rows, ids, unread = target.open(), np.array(text), UNREAD[number]
        if len(ids) > unread:
            target.submit([Request.of_prompt(rows, ids[:-unread])]).result()
            rows.keep(range(len(ids) - unread))
        settings = Sampling(**sampling)
        noise = None if settings.greedy else Noise(settings.seed or 0, sample=number)
        draw = Outlook(settings, len(ids)).draw(noise, len(ids))
        assert draw is not None
        made_chains.append(
            Chain(rows, ids[rows.committed :].copy(), depth, draw, None, frozenset(ends), streams, guesses)
        )
    return made_chains


def drafted(target: HFTarget, asked: Sequence[Chain]) -> list[ChainDraft]:
    found = target.drafted(asked)
    assert found is not None
    return found


def cached(chain: Chain) -> torch.Tensor:
    """All keys and values of a text and its draft."""
    assert isinstance(chain.rows, CacheRows)
    chain.rows.check()
    end = chain.rows.committed + chain.rows.tentative
    return torch.cat([part.flatten().double() for layer in chain.rows.layers.values() for part in layer.span(0, end)])


def assert_same(target: HFTarget, ours: Sequence[Chain], theirs: Sequence[Chain]) -> int:
    """Tokens, scores and rows, bit for bit; how many forwards guesses have spared."""
    spared = 0
    for one, other in zip(drafted(target, ours), drafted(target, theirs), strict=True):
        assert one.tokens == other.tokens
        assert one.scores == other.scores
        spared += other.forwards - one.forwards
    for mine, plain in zip(ours, theirs, strict=True):
        assert mine.rows.drafted.tolist() == plain.rows.drafted.tolist()
        assert mine.rows.committed == plain.rows.committed
        assert torch.equal(cached(mine), cached(plain))
    return spared


@pytest.mark.parametrize(("setting", "kind", "shape"), crossed(SETTINGS, KINDS, SHAPES))
@pytest.mark.usefixtures("threads")
def test_it_is_the_draft_of_the_model_alone(setting: str, kind: str, shape: tuple[int, int]) -> None:
    """Of several texts, of other lengths, depths and unread tokens."""
    target, how, streams = compiled(kind), SETTINGS[setting], Streams(held(), shape[0])
    assert_same(target, chains(target, streams, shape[1], **how), chains(target, **how))


@pytest.mark.parametrize(("name", "layers", "kind"), crossed(["mistral", "qwen2", "qwen3"], [1, 3], KINDS))
def test_of_every_family_and_in_any_number_of_layers(name: str, layers: int, kind: str) -> None:
    target, streams = compiled(kind, name), Streams(held(name, layers), 2)
    how: dict[str, Any] = {"temperature": 0.7, "seed": 5}
    assert_same(target, chains(target, streams, 3, **how), chains(target, **how))


@pytest.mark.parametrize(("kind", "temperature"), crossed(KINDS, [0.0, 0.8, 1.0]))
@pytest.mark.usefixtures("threads")
def test_of_a_model_whose_own_weights_make_its_streams(kind: str, temperature: float) -> None:
    target, how = compiled(kind), {"temperature": temperature, "seed": 6}
    assert_same(target, chains(target, Streams(held(rank=0), 2), 3, **how), chains(target, **how))


def test_confirmed_guesses_spare_forwards() -> None:
    """Those that are the first below another, and those whose rows have to move: greedy texts of random models repeat
    themselves, so that some of many guesses hold."""
    target, spared = compiled(), 0
    for seed in range(12):
        how: dict[str, Any] = {"texts": [tokens(9, seed).tolist()], "depths": [9], "temperature": 0.5, "seed": seed}
        spared += assert_same(target, chains(target, Streams(held(), 2), 12, **how), chains(target, **how))
    assert spared >= 5


def test_a_refused_row_among_the_kept_ones_is_noticed() -> None:
    """The planted mistake: keys of the row behind the draft stand where a confirmed one's should."""
    target, text = compiled(), {"texts": TEXTS[1:2], "depths": [6]}
    [ours], [theirs] = chains(target, Streams(held(), 2), 3, **text), chains(target, **text)
    assert_same(target, [ours], [theirs])
    assert isinstance(ours.rows, CacheRows)
    keys = ours.rows.layers[1].keys
    assert keys is not None
    end = ours.rows.committed + ours.rows.tentative
    keys[:, :, end - 1] = keys[:, :, end]
    assert not torch.equal(cached(ours), cached(theirs))


@pytest.mark.parametrize(("name", "layers"), [("llama", 1), ("llama", 2), ("mistral", 2), ("qwen2", 3), ("qwen3", 2)])
@pytest.mark.parametrize("rank", [0, 5])
def test_rows_find_what_a_dense_forward_finds(name: str, layers: int, rank: int) -> None:
    """The model's own rows, certain and guessed, and the streams behind each."""
    assert _farthest(name, layers, rank) < 1e-3


def test_a_stream_that_sees_a_later_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sees = Reference._sees

    def later(self: Reference, layer: int, row: int, other: int, main: int) -> bool:
        return sees(self, layer, row, other, main) or row >= main

    monkeypatch.setattr(Reference, "_sees", later)
    assert _farthest("llama", 2) > 1e-2


def test_adapters_on_the_models_own_rows_are_noticed() -> None:
    """The planted mistake: the maps of streams are part of the model's weights."""
    target, text = compiled(), {"texts": TEXTS[1:2], "depths": [6]}
    [honest] = drafted(target, chains(target, Streams(held(), 2), 3, **text))
    model = build("llama").requires_grad_(False)
    for layer, maps in zip(model.model.layers[-2:], held().layers, strict=True):
        for name, (narrow, wide) in maps.items():
            part = layer.self_attn if name in "qkvo" else layer.mlp
            getattr(part, f"{name}_proj").weight += torch.as_tensor(wide @ narrow)
    leaking = HFTarget(model)
    leaking.compiles = True
    [found] = drafted(prepare(leaking), chains(leaking, **text))
    assert found.scores != honest.scores


def _farthest(name: str, layers: int, rank: int = 5) -> float:
    """How far logits are from those of a dense forward in doubles, as a share of their spread. The draft ends in the
    forward whose rows are looked at, by its token."""
    target, adapter, apart, looked = compiled(name=name), made(name, layers, rank=rank), 0.0, 0
    reference = Reference(target.model, FAMILIES[name].windowed)
    text = {"texts": [tokens(WINDOW + 5, 3).tolist()], "depths": [9], "temperature": 0.6, "seed": 2}
    streams = Streams(held(name, layers, rank=rank), 3)
    [whole] = drafted(target, chains(target, streams, 4, **text))
    last = next(n for n in range(2, 6) if whole.tokens[n] not in whole.tokens[:n])
    asked = chains(target, streams, 4, ends=[whole.tokens[last]], **text)
    jobs = list[StreamJob]()
    with pytest.MonkeyPatch.context() as patch:
        run = StreamJob.run

        def kept(self: StreamJob) -> list[ChainDraft]:
            jobs.append(self)
            return run(self)

        patch.setattr(StreamJob, "run", kept)
        [draft] = drafted(target, asked)
    [job] = jobs
    state, nodes, logits = job._arrays[at.GUESSED][0], job._arrays[at.NODES][0], job._logits
    certain = int(state[at.CERTAIN]) - len(text["texts"][0]) + 1  # tokens of the draft that this forward knew
    before = text["texts"][0] + draft.tokens[:certain]
    for number, node in enumerate(nodes[: state[at.NODE_COUNT]]):
        path, above = list[int](), number
        while above > 0:
            path.insert(0, int(nodes[above, at.NODE_TOKEN]))
            above = int(nodes[above, at.NODE_ABOVE])
        wanted = reference.logits(before + path, adapter)
        count = int(node[at.NODE_STREAMS])
        first = int(node[at.NODE_STREAM])
        found = torch.cat([logits[state[at.LOGITS_ROW] + number][None], logits[first : first + count]]).double()
        apart = max(apart, float((found - wanted[: 1 + count]).abs().max() / wanted.std()))
        looked += count
    assert looked >= 5
    return apart


def test_a_draft_ends_with_the_text_and_where_no_number_is_greatest() -> None:
    target, streams = compiled(), Streams(held(), 3)
    [whole] = drafted(target, chains(target, texts=TEXTS[1:2], depths=[9]))
    end = whole.tokens[4]
    first = whole.tokens.index(end)
    for ends in ([end], [end, 96]):
        [ours] = chains(target, streams, 4, ends=ends, texts=TEXTS[1:2], depths=[9])
        [draft] = drafted(target, [ours])
        assert draft.tokens == whole.tokens[: first + 1]
        assert ours.rows.drafted.tolist() == draft.tokens[:-1]
        cached(ours)
    broken = HFTarget(build("llama").requires_grad_(False))
    broken.compiles = True
    broken = prepare(broken)
    broken.model.lm_head.weight.data[5] = torch.nan
    for draft in drafted(broken, chains(broken, streams, 3, temperature=1.0)):
        assert draft.tokens == []


@pytest.mark.usefixtures("threads")
def test_texts_with_and_without_streams_go_on_beside_one_that_ends() -> None:
    target, streams = compiled("int8"), Streams(held(), 2)
    plain = drafted(target, chains(target))
    end = plain[1].tokens[1]
    asked, without = chains(target, streams, 3, ends=[end]), chains(target, ends=[end])
    mixed = [asked[0], asked[1], without[2]]
    assert_same(target, mixed, chains(target, ends=[end]))


def test_without_a_place_for_guesses_each_forward_finds_a_token() -> None:
    target = compiled()
    for asked in (chains(target, Streams(held(), 2), 0), chains(target, None, 3)):
        assert [draft.forwards for draft in drafted(target, asked)] == DEPTHS


def test_other_adapters_and_missing_compilers_are_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets.hf.fused import path

    target, one = compiled(), Streams(held(), 2)
    too_deep = StreamAdapter(one.adapter.embedding, [*one.adapter.layers] * 2, "deep")
    wide = StreamAdapter(torch.zeros(2, 72), one.adapter.layers, "wide")
    for adapter in (too_deep, wide):
        assert target.drafted(chains(target, Streams(adapter, 1), 2)) is None
    two = chains(target, one, 2)[:1] + chains(target, Streams(held(seed=2), 2), 2)[1:]
    assert target.drafted(two) is None

    def failing() -> int:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("paceline.targets.hf.fused.streams.streamed", failing)
    path._compiles.cache_clear()
    try:
        assert target.drafted(chains(target, one, 2)) is None
        assert target.drafted(chains(target)) is not None
    finally:
        path._compiles.cache_clear()


def test_unlikely_guesses_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor streams that are hardly asked."""
    monkeypatch.setattr(guessing, "LEAST_GUESS", 2.2)
    target, streams = compiled(), Streams(held(), 2)
    asked = chains(target, streams, 4)
    assert [draft.forwards for draft in drafted(target, asked)] == DEPTHS
    monkeypatch.setattr(guessing, "LEAST_GUESS", 0.0)
    monkeypatch.setattr(guessing, "LEAST_STREAM", 2.2)
    assert [draft.forwards for draft in drafted(target, chains(target, streams, 4))] == DEPTHS
