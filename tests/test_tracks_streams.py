"""Streams of draft models in tracks: what they compute, that tracks meet twice with them as without, and drafts that
are the model's own."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline.cli import main
from paceline.drafters.networks.streaming.adapter import StreamingAdapter
from paceline.drafters.networks.streaming.checkpoint import write_adapter
from paceline.drafters.networks.streaming.fitting import adapter_for
from paceline.targets.base import Request
from paceline.targets.hf.streams import share_of
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.tracked import TracksPath
from paceline.targets.hf.tracks import TracksForCausalLM, ends_of
from paceline.targets.hf.variants import TracksModules
from paceline.targets.streams import StreamAdapter, Streams, StreamsBeside
from paceline_make.heads import judging
from paceline_make.heads.data import TokenStream
from paceline_make.heads.kinds.base import Ground
from paceline_make.heads.kinds.streaming import StreamingKind
from paceline_make.heads.kinds.tuned import TunedKind
from paceline_make.heads.labels import LabelSettings, Teacher, joined
from paceline_make.heads.loss import Objective
from scoring import load_quietly, tokens
from streaming import MAPS, made_adapter, path_of, saved, scored_streams
from test_ranks import in_tracks
from test_streaming import SETTINGS, TREE, Both, agree, refused, windows_of
from test_tracks import Together, tracks


def loaded(count: int, **sizes: Any) -> HFTarget:
    return load_quietly(tracks(count, **sizes).requires_grad_(False))


def model_of(target: HFTarget) -> TracksForCausalLM:
    found: TracksForCausalLM = target.model
    return found


class TracksReference:
    """One dense forward of a text and the streams behind its last token: a residual stream in every track, and shards
    of a llama's weights and of the adapter's. From a model's state dict, in double precision."""

    def __init__(self, model: TracksForCausalLM) -> None:
        self.config, self.weights = model.config, {name: each.double() for name, each in model.state_dict().items()}

    def logits(self, text: list[int], adapter: StreamingAdapter) -> torch.Tensor:
        """``[1 + streams, vocabulary]``: of the last row, and of its streams."""
        config, n, shape = self.config, len(text), adapter.shape
        count, deep = config.tracks, config.num_hidden_layers
        states = [self.weights["model.embed_tokens.weight"][torch.tensor(text)]] * count
        places = torch.arange(n)
        for number in range(deep):
            if number in ends_of(deep, config.segments):
                states = [torch.stack(states).mean(0)] * count
            if number == deep - shape.layers:
                streams = adapter.stream_embedding.double()
                states = [torch.cat([each, each[-1] + streams]) for each in states]
                places = torch.cat([places, n + torch.arange(shape.streams)])
            own = number - deep + shape.layers
            maps = adapter.maps[own] if own >= 0 else None
            states = [self._layer(number, each, track, places, n, maps) for track, each in enumerate(states)]
        finals = [self._norm(each[n - 1 :], "model.norm.weight") for each in states]
        shares = self.weights["lm_head.weight"].chunk(count, 1)
        return torch.stack([f.chunk(count, 1)[t] @ shares[t].T for t, f in enumerate(finals)]).sum(0)

    def _layer(
        self, number: int, states: torch.Tensor, track: int, places: torch.Tensor, main: int, maps: Any
    ) -> torch.Tensor:
        lead, count, size = f"model.layers.{number}", self.config.tracks, self.config.head_dim

        def mapped(name: str, rows: torch.Tensor) -> torch.Tensor:
            inputs = name in ("o", "down")
            found = rows @ self.weights[f"{lead}.{MAPS[name]}.weight"].chunk(count, int(inputs))[track].T
            if maps:
                down, up = (each.double() for each in maps[name])
                down, up = (down.chunk(count, 1)[track], up) if inputs else (down, up.chunk(count, 0)[track])
                found[main:] += rows[main:] @ down.T @ up.T
            return found

        given = self._norm(states, f"{lead}.input_layernorm.weight")
        query, key, value = (mapped(name, given).unflatten(1, (-1, size)) for name in "qkv")
        query, key = (self._turned(rows, places) for rows in (query, key))
        key, value = (rows.repeat_interleave(query.shape[1] // rows.shape[1], 1) for rows in (key, value))
        scores = torch.einsum("ihd,jhd->hij", query, key) / size**0.5
        chances = scores.masked_fill(torch.ones(len(states), len(states)).triu(1).bool(), -torch.inf).softmax(-1)
        states = states + mapped("o", torch.einsum("hij,jhd->ihd", chances, value).flatten(1))
        given = self._norm(states, f"{lead}.post_attention_layernorm.weight")
        gate = mapped("gate", given)
        return states + mapped("down", gate * gate.sigmoid() * mapped("up", given))

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return rows * (rows.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * self.weights[name]

    def _turned(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        half = rows.shape[-1] // 2
        angles = places[:, None].double() * 10_000.0 ** -(torch.arange(half).double() / half)
        cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
        one, other = rows[..., :half], rows[..., half:]
        return torch.cat([one * cosines - other * sines, other * cosines + one * sines], dim=-1)


def computed(
    target: HFTarget, adapter: StreamAdapter, count: int, behind: list[int], *, text: list[int] | None = None
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Logits of the rows of `TREE` behind a text, and of the streams behind these of its rows, in one forward."""
    rows = target.open()
    target.score([Request.of_prompt(rows, np.array(text or tokens(9, 1)))])
    rows.keep(range(rows.tentative))
    asked = StreamsBeside(Streams(adapter, count), np.array(behind)) if behind else None
    (scores,) = target.score([Request(rows, np.array(TREE[0]), np.array(TREE[1]), streams=asked)])
    return torch.as_tensor(scores.logits), {row: torch.as_tensor(each) for row, each in scores.streamed.items()}


# --- what streams compute ---


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("layers", "deep"), [(4, 2), (4, 3), (3, 2), (4, 1), (4, 4)])
def test_streams_are_those_of_a_dense_forward(count: int, layers: int, deep: int) -> None:
    """Also where they enter inside a segment, and where the segments meet behind that."""
    target = loaded(count, layers=layers)
    made, text = made_adapter(target, layers=deep), tokens(9, 1).tolist()
    logits, found = computed(target, made.as_adapter("made"), 3, [0, 3, 4])
    reference = TracksReference(model_of(target))
    assert sorted(found) == [0, 3, 4]
    for row, streams in found.items():
        path = [*text, *(TREE[0][each] for each in path_of(TREE[1], row))]
        wanted = reference.logits(path, made).float()
        assert (logits[row] - wanted[0]).abs().max() < 1e-3 * wanted.std()
        assert (streams - wanted[1:]).abs().max() < 1e-3 * wanted.std()
        assert (streams - wanted[:1]).abs().max() > 0.1 * wanted.std(), "a stream is not its row"


def test_one_track_has_a_llamas_streams() -> None:
    """Computed after their row there and beside it here."""
    one = loaded(1)
    llama = load_quietly(_llama_of(one).requires_grad_(False))
    made = made_adapter(one)
    _, found = computed(one, made.as_adapter("made"), 3, [0, 2, 4])
    for row, streams in found.items():
        _, wanted = scored_streams(llama, tokens(9, 1).tolist(), *TREE, row, made)
        assert torch.allclose(streams, wanted, atol=1e-5)


def _llama_of(target: HFTarget) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {name: value for name, value in target.model.config.to_dict().items() if name not in ("model_type",)}
    llama = LlamaForCausalLM(LlamaConfig(**config)).eval()
    llama.load_state_dict(target.model.state_dict())
    return llama


@pytest.mark.parametrize(("layers", "deep"), [(2, 1), (3, 2), (8, 4), (8, 8)])
@pytest.mark.parametrize("streams", [0, 1, 3])
def test_tracks_meet_twice_with_streams_as_without(layers: int, deep: int, streams: int) -> None:
    target = loaded(2, layers=layers)
    adapter, meetings = made_adapter(target, layers=deep).as_adapter("made"), model_of(target).tracks
    computed(target, adapter, 3, [0])
    before = meetings.meetings
    computed(target, adapter, max(1, streams), [0, 1, 4] if streams else [])
    assert meetings.meetings - before == 1 + 2, (
        "once in the text, of which no logits are wanted, and twice in the draft"
    )


@pytest.mark.parametrize("deep", [2, 3])
def test_a_track_a_process_computes_the_streams(deep: int) -> None:
    """Each with its share of the adapter. States meet once with those of streams, and so do logits."""
    whole, together = loaded(2), Together(2)
    adapter = made_adapter(whole, layers=deep).as_adapter("made")
    wanted_rows, wanted = computed(whole, adapter, 3, [0, 2, 4])
    shares, found = list[StreamAdapter](), list[Any]([None, None])
    parts = [loaded(2) for _ in range(2)]

    def process(rank: int) -> None:
        found[rank] = computed(parts[rank], shares[rank], 3, [0, 2, 4])

    for rank, part in enumerate(parts):
        model_of(part).hold(rank, together.of(rank))
        assert isinstance(part.modules, TracksModules)
        shares.append(share_of(adapter, part.modules, "cpu"))
    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for logits, streams in found:
        assert torch.allclose(logits, wanted_rows, atol=1e-5)
        assert all(torch.allclose(streams[row], wanted[row], atol=1e-5) for row in (0, 2, 4))
    rows, more = 5, 3 * 3
    entered = more if deep > 2 else 0
    assert together.sizes[-2:] == [(rows + entered) * 64, (rows + more) * 97], "one sum of states, one of logits"
    divided = {name: sum(part.numel() for part in shares[1].layers[0][name]) for name in MAPS}
    for name, (inward, outward) in adapter.layers[0].items():
        larger = inward.numel() + outward.numel() - divided[name]
        assert larger == (inward.numel() if name in ("o", "down") else outward.numel()) // 2, "one of the two is shared"


# --- drafts ---


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("hidden", [False, True])
def test_drafts_are_those_of_the_model_alone(tmp_path: Path, setting: str, hidden: bool) -> None:
    target = loaded(2, layers=3)
    head = saved(made_adapter(target), tmp_path, target)
    both = Both(target, head, hidden=hidden)
    drafted, forwards = agree(both, 8, several=1 + 2 * hidden, **SETTINGS[setting])
    assert 8 < forwards <= drafted


def test_confirmed_guesses_save_forwards(tmp_path: Path) -> None:
    target = loaded(2)
    flat = made_adapter(target)
    with torch.no_grad():
        for name, weight in flat.named_parameters():
            if not name.endswith(".a"):
                weight.zero_()
    both = Both(target, saved(flat, tmp_path, target))
    before = model_of(target).tracks.meetings
    drafted, forwards = agree(both, 20, temperature=3.0, seed=7)
    assert forwards < 0.97 * drafted
    assert model_of(target).tracks.meetings - before == 2 * (drafted + forwards), "of both drafters"


def test_a_model_that_was_changed_drafts_without_streams(tmp_path: Path) -> None:
    """Its own forward, which a hook may change, computes none."""
    target = loaded(2)
    both = Both(target, saved(made_adapter(target), tmp_path, target))
    assert target.streams_beside
    hook = model_of(target).model.layers[1].register_forward_hook(lambda *_: None)
    drafted, forwards = agree(both, 3, temperature=1.0)
    assert not target.streams_beside
    assert drafted == forwards > 0
    hook.remove()


def test_mirrors_windows_are_those_of_the_model_alone(tmp_path: Path) -> None:
    """Where drafts of one text are read as a tree, each with its own streams."""
    target = loaded(2, layers=3)
    without, ours = windows_of(target, None), windows_of(target, saved(made_adapter(target), tmp_path, target))
    for one, other in zip(without, ours, strict=True):
        assert one.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert len(one.tree) == 5
        assert other.forwards <= one.forwards


def test_streams_are_trained_as_they_are_computed() -> None:
    """Where they enter inside a segment the lesson begins where the segment does."""
    for layers, first in ((4, 2), (3, 0)):
        target = loaded(2, layers=layers)
        made, line = made_adapter(target), tokens(64, 3)
        kind = StreamingKind(layers=2, rank=4).fitted(target)
        assert kind.first == first
        settings = LabelSettings(kind="truth", ahead=3, window=16)
        teacher = Teacher(target, TokenStream(line.astype(np.int32), np.ones(64, np.bool_)), settings, kind.reading)
        lesson = kind.lesson(made, Ground(target, line.astype(np.int32), 3), Objective())
        lesson.unit = teacher.size
        predicted = [each.clone() for each in lesson.predict(joined([teacher.label(0), teacher.label(1)]), 0)[1]]
        reference = TracksReference(model_of(target))
        for row in (0, 5, 15, 16, 25):
            wanted = reference.logits(line[row // 16 * 16 : row + 1].tolist(), made)[1:].float()
            found = torch.stack([logits[row] for logits in predicted])
            assert (found - wanted).abs().max() < 1e-3 * wanted.std()


@pytest.mark.parametrize("rank", [0, 4])
def test_a_model_in_tracks_learns_with_its_streams(rank: int) -> None:
    """Rows of both kinds, by all weights or by maps that are added to them at the end."""
    target, line = loaded(2), tokens(64, 3)
    ground = Ground(target, line.astype(np.int32), 3)
    kind = TunedKind(layers=2, rank=rank).fitted(target)
    head = kind.blank(ground)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if name.endswith((".b", "stream_embedding")):
                weight.normal_(0, 0.3)
    settings = LabelSettings(kind="truth", ahead=3, window=16)
    teacher = Teacher(target, TokenStream(line.astype(np.int32), np.ones(64, np.bool_)), settings, kind.reading)
    lesson = kind.lesson(head, ground, Objective())
    lesson.unit = teacher.size
    predicted = [each.clone() for each in lesson.predict(joined([teacher.label(0), teacher.label(1)]), 0)[1]]
    reference = TracksReference(head.merged(torch.float32))
    for row in (0, 5, 15, 16, 25):
        wanted = reference.logits(line[row // 16 * 16 : row + 1].tolist(), head.adapter).float()
        found = torch.stack([logits[row] for logits in predicted])
        assert (found - wanted).abs().max() < 1e-3 * wanted.std()
    before = TracksReference(model_of(target)).logits(line[:16].tolist(), head.adapter)[0].float()
    assert (torch.allclose(predicted[0][15], before, atol=1e-4)) == (not rank), "the maps act on the model's own rows"


# --- files, commands and mistakes of users ---


FORMS = {"adapter": ("--rank", "4"), "paper": ("--form", "paper"), "lora": ("--form", "paper", "--tune", "lora")}


@pytest.mark.parametrize("form", FORMS)
def test_from_a_draft_model_in_tracks_to_its_streams(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the model, or with it: then the folder is the draft model, in as many tracks."""
    for name in ("PROMPTS", "WRITTEN"):
        monkeypatch.setattr(judging, name, 2)
    model, head, text = in_tracks(tmp_path / "tracks", 2), tmp_path / "head", tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{number}. The old house stood at the end of the lane." for number in range(200)))
    given = ["train", "streaming", "--model", model, "--data", str(text), "--out", str(head), *FORMS[form]]
    assert main([*given, "--positions", "1024", "--epochs", "1", "--batch-size", "512"]) == 0, capsys.readouterr().err
    assert json.loads((head / "config.json").read_text())["paceline"]["tracks"] == 2
    how: dict[str, Any] = {"max_new_tokens": 10, "seed": 3, "planner": "fixed:5"}
    lm, model = paceline.load("pocket", dtype="float32"), model if form == "adapter" else str(head)
    methods = f"assistant:model='{model}'", f"streaming:model='{model}',head='{head}',streams=3", "plain"
    lm.generate("The old house", method=methods[0], **how)  # the first round of all is without a draft
    for temperature in (0.0, 0.8, 1.0):
        found = [lm.generate("The old house", method=method, temperature=temperature, **how) for method in methods]
        assert found[0].tokens == found[1].tokens == found[2].tokens
        drafts = [[(each.drafted, each.accepted) for each in one.rounds] for one in found[:2]]
        assert drafts[0] == drafts[1]


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    target = loaded(2)
    head = tmp_path / "head"
    write_adapter(head, made_adapter(target))  # which says nothing of its model's weights
    assert adapter_for(head, target).adapter.streams == 3
    assert "is for a model in 2 tracks, and" in refused(head, load_quietly(_llama_of(loaded(1)).requires_grad_(False)))
    config = json.loads((head / "config.json").read_text())
    for wrong, said in (
        ({"tracks": 1}, "in 1 tracks, and"),
        ({"tracks": 0}, "is at least 1, not 0"),
        ({"tracks": "x"}, ""),
    ):
        (head / "config.json").write_text(json.dumps(config | {"paceline": config["paceline"] | wrong}))
        assert said in refused(head, target)
    (head / "config.json").write_text(json.dumps(config))
    whole = (head / "model.safetensors").read_bytes()
    (head / "model.safetensors").write_bytes(whole[:-50])
    assert "damaged" in refused(head, target)


def test_a_rotation_by_the_largest_position_has_no_streams(tmp_path: Path) -> None:
    """Such a model is left to transformers."""
    scaled = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}}
    target, plain = loaded(2, **scaled), loaded(2)
    assert not any(isinstance(path, TracksPath) for path in target.paths)
    write_adapter(tmp_path, made_adapter(plain))
    assert "llama's structure" in refused(tmp_path, target)


COPIES = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_copies_of_a_command_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first process says so, and the others are silent."""
    for name, value in COPIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("paceline.targets.torchrun.REPORTING", 0.0)
    assert main(["generate", "Once", "-n", "2"]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines() == [
        "paceline generate: error: torchrun started 2 processes, and each of them would do the whole work; add "
        "--tensor-parallel 2 for one model over all of them, or start one process"
    ]
    monkeypatch.setenv("RANK", "1")
    assert main(["generate", "Once", "-n", "2", "--tensor-parallel", "1"]) == 2
    assert capsys.readouterr() == ("", "")
