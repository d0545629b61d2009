"""Speculative streams of a draft model: what they compute, and drafts that are the model's own in fewer forwards."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from drafting import context_of
from families import FAMILIES, WINDOW, build
from paceline.api.model import LanguageModel
from paceline.context import Context
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.heads import CONFIG, method_for
from paceline.drafters.networks.mirror.messages import Ahead, Go, Message, MessageKind, Window
from paceline.drafters.networks.mirror.worker import Worker, facts_of
from paceline.drafters.networks.reading import ReadText
from paceline.drafters.networks.streaming import Streaming
from paceline.drafters.networks.streaming.fitting import _adapter, adapter_for
from paceline.errors import InputError
from paceline.targets.base import Rows
from paceline.targets.cache import CacheRows
from paceline.targets.hf import attention
from paceline.targets.hf.integers.target import quantized
from paceline.targets.hf.streams import sizes_of
from paceline.targets.hf.target import HFTarget
from paceline.targets.streams import Streams
from paceline.targets.table import TableTarget, random_table
from paceline.tree import DraftTree
from paceline_make.heads.data import TokenStream
from paceline_make.heads.kinds.base import Ground
from paceline_make.heads.kinds.streaming import StreamingKind
from paceline_make.heads.labels import LabelSettings, Teacher, joined
from paceline_make.heads.loss import Objective
from scoring import load_quietly, tokens
from streaming import Reference, made_adapter, path_of, saved, scored_streams

KNOWN = ("llama", "qwen3", "qwen2", "mistral")
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "cold": {"temperature": 0.8, "seed": 3},
    "warm": {"temperature": 1.0, "seed": 4},
    "cut": {"temperature": 1.0, "top_p": 0.8, "top_k": 20, "seed": 5},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "seed": 6},
}
TREE = [3, 9, 27, 81, 5], [-1, 0, 0, 1, 2]
"""A draft of two paths that begin alike."""


@pytest.fixture(scope="module")
def model() -> HFTarget:
    return load_quietly(build("llama").requires_grad_(False))


@pytest.fixture(scope="module")
def head(model: HFTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(made_adapter(model), tmp_path_factory.mktemp("adapter"), model)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


# --- what streams compute ---


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(("row", "rank"), [(-1, 4), (0, 4), (3, 4), (4, 4), (3, 0)])
def test_streams_are_those_of_a_dense_forward(name: str, row: int, rank: int) -> None:
    """Behind the text and behind rows of a draft, also where others lie between, and where a window ends."""
    plain = build(name).requires_grad_(False)
    target, text = load_quietly(plain), tokens(2 * WINDOW, 1).tolist()
    adapter = made_adapter(target, rank=rank)
    logits, found = scored_streams(target, text, *TREE, row, adapter)
    path = [*text, *(TREE[0][each] for each in path_of(TREE[1], row))]
    reference = Reference(plain, FAMILIES[name].windowed)
    wanted = reference.logits(path, adapter).float()
    spread = wanted.std()
    assert (torch.as_tensor(logits) - wanted[0]).abs().max() < 1e-3 * spread
    assert (found - wanted[1:]).abs().max() < 1e-3 * spread
    reference.later_is_seen = True
    assert (found - reference.logits(path, adapter)[1:].float()).abs().max() > 0.05 * spread


def test_a_stream_that_sees_a_later_one_is_noticed(model: HFTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, text = made_adapter(model), tokens(9, 2).tolist()
    _, honest = scored_streams(model, text, [], [], -1, adapter)
    monkeypatch.setattr(attention, "later", lambda count, device: torch.zeros(count, count, dtype=torch.bool))
    _, broken = scored_streams(model, text, [], [], -1, adapter)
    assert (honest[0] - broken[0]).abs().max() > 0.05


def test_fewer_streams_are_the_first_of_more(model: HFTarget) -> None:
    adapter, text = made_adapter(model), tokens(9, 2).tolist()
    _, three = scored_streams(model, text, [], [], -1, adapter)
    adapter.stream_embedding = torch.nn.Parameter(adapter.stream_embedding[:1])
    adapter.shape = replace(adapter.shape, streams=1)
    _, one = scored_streams(model, text, [], [], -1, adapter)
    assert torch.allclose(one, three[:1], atol=1e-5)


def test_streams_in_integers_are_near_those_in_floats() -> None:
    floats = load_quietly(build("llama").requires_grad_(False))
    adapter, text = made_adapter(floats), tokens(9, 2).tolist()
    _, wanted = scored_streams(floats, text, *TREE, 4, adapter)
    _, found = scored_streams(quantized(load_quietly(build("llama"))), text, *TREE, 4, adapter)
    assert 0 < (found - wanted).abs().mean() < 0.1 * wanted.std()


def test_streams_by_the_models_own_weights_multiply_nothing_else(
    model: HFTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tokens(9, 2).tolist()
    monkeypatch.setattr("paceline.targets.hf.streams.F", None)
    scored_streams(model, text, [], [], -1, made_adapter(model, rank=0))
    with pytest.raises(AttributeError):
        scored_streams(model, text, [], [], -1, made_adapter(model))


def test_a_model_with_ballast_has_the_small_ones_streams(tmp_path: Path) -> None:
    small = paceline.load("pocket-draft", dtype="float32").target
    large = paceline.load("pocket-draft+ballast:8M", dtype="float32").target
    assert isinstance(small, HFTarget)
    assert isinstance(large, HFTarget)
    assert large.layers > small.layers
    folder = saved(made_adapter(small), tmp_path, small)
    found = [_behind_a_text(each, folder) for each in (small, large)]
    assert (found[0] - found[1]).abs().max() < 1e-3 * found[0].std()


def _behind_a_text(target: HFTarget, folder: Path) -> torch.Tensor:
    drafter = Streaming(model=target, head=folder, length=4, streams=3)
    drafter.fit(target)
    (logits, *_) = _streamed(drafter, context_of(tokens(9, 2).tolist()))
    return logits


def _streamed(drafter: Streaming, context: Context) -> list[torch.Tensor]:
    """All logits of streams that a draft was made with."""
    found, target = list[torch.Tensor](), drafter.network._target
    honest = target.streamed
    with pytest.MonkeyPatch.context() as patch:

        def kept(*asked: Any) -> torch.Tensor | None:
            logits = honest(*asked)
            assert logits is not None
            found.append(logits)
            return logits

        patch.setattr(target, "streamed", kept)
        patch.setattr(target, "drafted", lambda _: None)  # a compiled draft does not ask for them
        drafter.propose([Ask(drafter.open(context), Budget(4, 4))])
    return found


def test_streams_are_trained_as_they_are_computed(lm: LanguageModel) -> None:
    """The lesson's predictions at a position are the streams behind the text up to there."""
    draft = paceline.load("pocket-draft", dtype="float32")
    assert isinstance(draft.target, HFTarget)
    adapter, stream = made_adapter(draft.target), tokens(64, 3)
    kind = StreamingKind(layers=2, rank=4).fitted(draft.target)
    settings = LabelSettings(kind="truth", ahead=3, window=16)
    teacher = Teacher(draft.target, TokenStream(stream.astype(np.int32), np.ones(64, np.bool_)), settings, kind.reading)
    lesson = kind.lesson(adapter, Ground(draft.target, stream.astype(np.int32), 3), Objective())
    lesson.unit = teacher.size
    predicted = [logits.clone() for logits in lesson.predict(joined([teacher.label(0), teacher.label(1)]), 0)[1]]
    for row in (0, 5, 15, 16, 25):
        window = stream[row // 16 * 16 : row + 1].tolist()
        _, found = scored_streams(draft.target, window, [], [], -1, adapter)
        assert (found - torch.stack([logits[row] for logits in predicted])).abs().max() < 1e-3 * found.std()


# --- drafts ---


class Both:
    """One text as two drafters see it, `assistant` and `streaming` with the same model."""

    def __init__(
        self,
        model: HFTarget,
        head: Path,
        *,
        hidden: bool = False,
        length: int = 6,
        streams: int | None = 3,
        **options: Any,
    ) -> None:
        noise = {"noise": options.pop("noise")} if "noise" in options else {}
        self.drafters = (
            Assistant(model=DraftModel(model), length=length, **noise),
            Streaming(model=DraftModel(model), head=head, length=length, streams=streams, **noise, **options),
        )
        self.hidden = hidden
        for drafter in self.drafters:
            drafter.fit(model)

    def texts(self, several: Sequence[Sequence[int]], **settings: Any) -> list[list[tuple[Context, ReadText]]]:
        found = []
        for drafter in self.drafters:
            contexts = [context_of(text, **settings) for text in several]
            for context in contexts:
                context.foreseeable = not self.hidden
            found.append([(context, drafter.open(context)) for context in contexts])
        return found

    def proposed(self, texts: list[list[tuple[Context, ReadText]]], budget: Budget) -> list[list[DraftTree]]:
        pairs = zip(self.drafters, texts, strict=True)
        return [drafter.propose([Ask(state, budget) for _, state in own]) for drafter, own in pairs]


def agree(both: Both, rounds: int, *, several: int = 1, seed: int = 0, **settings: Any) -> tuple[int, int]:
    """Drafts along texts that go on with a part of each draft and another token. Tokens, and forwards of streaming."""
    random = np.random.default_rng(seed)
    texts = both.texts([tokens(5 + 3 * number, seed + number).tolist() for number in range(several)], **settings)
    drafted = forwards = 0
    for _ in range(rounds):
        plain, ours = both.proposed(texts, Budget(6, int(random.integers(1, 7))))
        for one, other in zip(plain, ours, strict=True):
            same(one, other)
            drafted += len(other)
        for number, tree in enumerate(ours):
            kept = int(random.integers(0, len(tree) + 1))
            follows = [*tree.tokens[:kept].tolist(), int(random.integers(0, 97))]
            for own in texts:
                for token in follows:
                    own[number][0].commit(token)
        for _, state in texts[1]:
            state.rows.check()
        forwards += sum(int(both.drafters[1].counts(state)["draft_forwards"]) for _, state in texts[1])
    return drafted, forwards


def same(one: DraftTree, other: DraftTree) -> None:
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    assert np.allclose(one.scores, other.scores, atol=1e-3)
    assert one.drawn.keys() == other.drawn.keys()
    for node, law in one.drawn.items():
        assert law.ids.tolist() == other.drawn[node].ids.tolist()
        assert np.allclose(law.probs, other.drawn[node].probs, atol=1e-4)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("hidden", [False, True])
def test_drafts_are_those_of_the_model_alone(model: HFTarget, head: Path, setting: str, hidden: bool) -> None:
    """Under the rejection rule with the same coins, and with the laws that they were drawn from."""
    drafted, forwards = agree(Both(model, head, hidden=hidden), 12, **SETTINGS[setting])
    assert drafted >= forwards > 12


def test_drafts_without_the_noise_too(model: HFTarget, head: Path) -> None:
    agree(Both(model, head, noise="none", guesses=9), 8, temperature=1.0, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_two_thousand_rounds(model: HFTarget, head: Path, hidden: bool, temperature: float) -> None:
    both = Both(model, head, hidden=hidden)
    for seed in range(17):
        agree(both, 20, seed=seed, temperature=temperature)


def test_confirmed_guesses_save_forwards(head: Path, model: HFTarget, tmp_path: Path) -> None:
    """Streams of an adapter that adds nothing are the row at other places. Their guesses race with the same noise, so
    some are right at a high temperature, and then a forward drafts more than a token."""
    flat = made_adapter(model)
    with torch.no_grad():
        for name, weight in flat.named_parameters():
            if not name.endswith(".a"):
                weight.zero_()
    both = Both(model, saved(flat, tmp_path, model))
    drafted, forwards = agree(both, 30, temperature=3.0, seed=7)
    assert forwards < 0.97 * drafted


@pytest.mark.parametrize("several", [3, 9])
def test_texts_draft_together_with_fewer_streams(
    model: HFTarget, head: Path, several: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = set[int]()
    honest = HFTarget.streamed

    def counted(self: HFTarget, asked: Any, wanted: Streams) -> Any:
        counts.add(wanted.count)
        return honest(self, asked, wanted)

    monkeypatch.setattr(HFTarget, "streamed", counted)
    both = Both(model, head)
    agree(both, 4, several=several, temperature=1.0)
    assert counts == {2 if several <= 8 else 1}
    agree(both, 2, temperature=1.0)
    assert 3 in counts


# --- planted mistakes ---


def test_an_adapter_on_the_models_own_rows_is_noticed(
    model: HFTarget, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, (_, layer) = Both(model, head), (0, model.modules.layers[-1] if model.modules else None)
    assert layer is not None
    inward, outward = both.drafters[1].network.adapter.layers[-1]["o"]
    ours = both.drafters[1].network
    honest = ours._submit

    def leaking(requests: Any) -> Any:
        weight = layer.out.weight
        before = weight.data.clone()
        weight.data += outward @ inward
        model.forget()
        try:
            return honest(requests)
        finally:
            weight.data.copy_(before)
            model.forget()

    monkeypatch.setattr(ours, "_submit", leaking)
    with pytest.raises(AssertionError):
        agree(both, 6, temperature=1.0)


def test_streams_leave_the_models_rows_as_they_are(model: HFTarget, head: Path) -> None:
    drafter = Both(model, head).drafters[1]
    state = drafter.open(context_of(tokens(9, 2).tolist(), temperature=1.0))
    honest, before = drafter.network._target.streamed, list[torch.Tensor]()
    with pytest.MonkeyPatch.context() as patch:

        def watched(asked: Any, wanted: Streams) -> Any:
            rows = asked[0].rows
            held = [each.clone() for layer in rows.layers.values() for each in layer.span(0, layer.filled)]
            found = honest(asked, wanted)
            now = [each for layer in rows.layers.values() for each in layer.span(0, layer.filled)]
            assert len(held) == len(now) > 0
            assert all(map(torch.equal, held, now))
            before.extend(held)
            return found

        patch.setattr(drafter.network._target, "streamed", watched)
        drafter.propose([Ask(state, Budget(6, 6))])
    assert before


def test_a_kept_row_of_a_refused_guess_is_noticed(model: HFTarget, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first rows behind those that stay were kept, whatever they are of."""

    def careless(self: Rows, path: Sequence[int]) -> None:
        self.tentative = len(path)
        for layer in self.layers.values() if isinstance(self, CacheRows) else ():
            layer.filled = self.committed + len(path)

    both = Both(model, head, guesses=9)
    agree(both, 30, temperature=1.5, seed=3)
    keep = Rows.keep
    monkeypatch.setattr(Rows, "hold", careless)
    monkeypatch.setattr(Rows, "keep", lambda self, path: _kept(keep, monkeypatch, self, path))
    with pytest.raises(AssertionError):
        agree(both, 30, temperature=1.5, seed=3)


HOLD = Rows.hold


def _kept(keep: Any, patch: pytest.MonkeyPatch, rows: Rows, path: Sequence[int]) -> None:
    HOLD(rows, path)
    rows.committed, rows.tentative = rows.committed + rows.tentative, 0


def test_a_draft_holds_no_more_rows_than_it_has_tokens(model: HFTarget, head: Path) -> None:
    drafter = Both(model, head, guesses=9).drafters[1]
    state = drafter.open(context_of(tokens(9, 2).tolist(), temperature=1.0))
    (tree,) = drafter.propose([Ask(state, Budget(6, 6))])
    assert len(tree) == 6
    assert state.rows.tentative == 5
    assert state.rows.drafted.tolist() == tree.tokens[:5].tolist()
    assert state.parents.tolist() == [-1, 0, 1, 2, 3]


# --- with the engine ---


@pytest.mark.parametrize(
    "spec", ["streaming:{}", "streaming:{},streams=3+suffix", "auto:{}", "suffix,streaming:{},streams=1"]
)
def test_the_text_is_plains(lm: LanguageModel, tmp_path: Path, spec: str) -> None:
    draft = paceline.load("pocket-draft", dtype="float32").target
    assert isinstance(draft, HFTarget)
    head = saved(made_adapter(draft), tmp_path, draft)
    how: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 16}
    prompts = ["The old house stood at", "Stary dom", "Old"]
    plain = lm.generate_batch(prompts, method="plain", **how)
    ours = lm.generate_batch(prompts, method=spec.format(f"head='{head}'"), planner="fixed:6", **how)
    assert [one.tokens for (one,) in ours] == [one.tokens for (one,) in plain]
    forwards = sum(each.counts["draft_forwards"] for (one,) in ours for each in one.rounds)
    assert 0 < forwards <= sum(each.counts["draft_tokens"] for (one,) in ours for each in one.rounds)


class Link:
    """Takes what a worker says."""

    def __init__(self) -> None:
        self.windows = list[Window]()

    def send_bytes(self, packed: bytes) -> None:
        message = Message.of(packed)
        if message.kind is MessageKind.WINDOW:
            self.windows.append(Window.of(message.said, 97, 5, "mirror"))


def windows_of(model: HFTarget, head: Path | None) -> list[Window]:
    """Windows of Mirror's worker: behind a text, and behind one of several outcomes, which are read as one tree."""
    link: Any = Link()
    worker = Worker(link, queue.SimpleQueue(), DraftModel(model), None if head is None else str(head))
    context = context_of(tokens(9, 2).tolist(), temperature=1.0, seed=3)
    facts = facts_of(context, 97, DraftShape(length=5), "mirror") | {"prompt": context.tokens.tolist()}
    worker._hear(Message(MessageKind.OPEN, 1, 9, facts))
    worker._hear(Message(MessageKind.GO, 1, 9, Go(5, np.empty(0, np.int64)).said()))
    finish(worker)
    draft = link.windows[0].tree
    stops, proxies = np.array([-1, 0, 1, 1]), np.array([(int(draft.tokens[0]) + 1) % 97, 7, 8, 9])
    worker._hear(Message(MessageKind.AHEAD, 1, 9, Ahead(5, draft.tokens, draft.parents, stops, proxies).said()))
    worker._forward()
    worker._forward()
    worker._hear(Message(MessageKind.GO, 1, 9, Go(5, np.array([*draft.tokens[:2], 9])).said()))
    finish(worker)
    return list(link.windows)


def finish(worker: Worker) -> None:
    count = len(worker._link.windows)  # type: ignore[attr-defined]
    while len(worker._link.windows) == count:  # type: ignore[attr-defined]
        worker._forward()
        for number, (text, _) in worker._texts.items():
            if (found := text.window()) is not None:
                worker._say(Message(MessageKind.WINDOW, number, found[0], found[1].said()))


def test_mirrors_windows_are_those_of_the_model_alone(model: HFTarget, head: Path) -> None:
    alone, ours = windows_of(model, None), windows_of(model, head)
    assert len(alone) == len(ours) == 2
    for one, other in zip(alone, ours, strict=True):
        assert one.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert len(one.tree) == 5
        assert other.forwards <= one.forwards
    assert ours[1].ready > 0


def test_mirror_says_what_does_not_go_together() -> None:
    for spec, sentence in {
        "mirror:draft=streaming,top=2": "drafts one token after another; leave top=2 out",
        "mirror:model=pocket-draft,head=x": "a head is for mirror:draft=streaming",
        "mirror:model=pocket-draft,draft=other": "mirror takes draft=assistant or draft=streaming, not 'other'",
        "mirror": "method 'mirror' needs a draft model: write mirror:model=NAME",
    }.items():
        with pytest.raises(InputError, match=sentence):
            make_drafter(spec)


# --- files and mistakes of users ---


def test_a_folder_is_known_by_its_method_and_reads_back(model: HFTarget, head: Path, tmp_path: Path) -> None:
    assert method_for(head) == "streaming"
    adapter = adapter_for(head, model).adapter
    assert (adapter.streams, adapter.depth, adapter.rank) == (3, 2, 4)
    wanted = made_adapter(model)
    for layer, maps in zip(adapter.layers, wanted.maps, strict=True):
        assert all(torch.equal(*pair) for name in maps for pair in zip(layer[name], maps[name], strict=True))
    small = saved(wanted, tmp_path, model, int8=True)
    rough = adapter_for(small, model).adapter
    assert 0 < (rough.layers[0]["q"][0] - adapter.layers[0]["q"][0]).abs().max() < 0.02
    said = json.loads((head / CONFIG).read_text())
    assert said["architectures"] == ["PacelineStreaming"]
    assert said["base"]["fingerprint"] == model.fingerprint()


def refused(folder: Path, model: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        Streaming(model=DraftModel(model) if isinstance(model, HFTarget) else model, head=folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_no_two_adapters_have_one_key(model: HFTarget, head: Path) -> None:
    """Also where one has the memory of another that is gone: a compiled draft keeps the adapter of a key."""
    assert model.modules is not None
    sizes = [sizes_of(layer) for layer in model.modules.layers]
    assert len({_adapter(made_adapter(model), model, sizes).key for _ in range(50)}) == 50
    one, other = adapter_for(head, model), adapter_for(head, model)
    assert one.adapter.key == other.adapter.key


def test_mistakes_are_sentences(model: HFTarget, head: Path, tmp_path: Path) -> None:
    assert "streams=4, and the adapter has 3" in refused(head, model, streams=4)
    assert "streams of at least 1, not 0" in refused(head, model, streams=0)
    assert "at most guesses=64 in a forward, not 100000" in refused(head, model, guesses=100_000)
    assert "was trained for" in refused(head, load_quietly(build("llama", seed=5).requires_grad_(False)))
    assert "llama's structure" in refused(head, TableTarget(random_table(97), 97))
    assert "is no adapter of streams" in refused(_as(head, tmp_path / "other", "ReDrafter"), model)
    deeper = made_adapter(model, layers=3)
    deeper.shape = replace(deeper.shape, layers=9)
    assert "layers" in refused(saved(deeper, tmp_path / "deep", model), model)
    whole = (head / "model.safetensors").read_bytes()
    for number, content in enumerate((b"", whole[:-50], whole[:9] + b"}" + whole[10:])):
        folder = _as(head, tmp_path / f"damaged{number}", "PacelineStreaming")
        (folder / "model.safetensors").write_bytes(content)
        assert "damaged" in refused(folder, model)
    folder = _as(head, tmp_path / "nothing", "PacelineStreaming")
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(folder, model)
    narrow = made_adapter(model)
    narrow.layers[0]["up"].a = torch.nn.Parameter(torch.zeros(4, 5))
    assert "layers.0.up.a" in refused(saved(narrow, tmp_path / "narrow", model), model)


def _as(head: Path, folder: Path, architecture: str) -> Path:
    """A copy of another kind."""
    folder.mkdir()
    for file in head.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((head / CONFIG).read_text()) | {"architectures": [architecture]}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def test_another_tokenizer_is_a_sentence(lm: LanguageModel, tmp_path: Path) -> None:
    foreign = paceline.load("pocket-foreign", dtype="float32").target
    assert isinstance(foreign, HFTarget)
    folder = saved(made_adapter(foreign), tmp_path, foreign)
    with pytest.raises(InputError, match=r"pocket-foreign has another tokenizer than pocket; draft with it by assist"):
        lm.generate("a", method=f"streaming:head='{folder}'", max_new_tokens=1)


def test_the_paper_has_three_streams_and_no_noise() -> None:
    drafter = make_drafter("streaming:paper", "pocket-draft")
    assert isinstance(drafter, Streaming)
    assert drafter.spec_options["streams"] == 3
    assert drafter.shape.length == 7
    assert not drafter.shape.shared
    assert drafter.planner == "fixed"
