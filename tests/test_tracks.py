"""Draft models in tracks: one track is a llama bit for bit, and tracks meet twice however many layers there are."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import paceline
from paceline.cli import main
from paceline.errors import InputError
from paceline.targets.base import Request
from paceline.targets.hf.load import load_target
from paceline.targets.hf.tracks import TracksConfig, TracksForCausalLM, ends_of
from paceline_make.heads import judging
from paceline_make.models.schedule import ModelSchedule
from paceline_make.models.tracks import TracksRecipe, TracksShape, TracksWorkshop

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def tracks(count: int, *, layers: int = 4, segments: int = 2, **more: Any) -> TracksForCausalLM:
    torch.manual_seed(5)
    config = TracksConfig(tracks=count, segments=segments, num_hidden_layers=layers, **SIZES, **more)
    return TracksForCausalLM(config).eval()


def ids(seed: int = 0, *, texts: int = 3, length: int = 17) -> torch.Tensor:
    return torch.randint(0, 97, (texts, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(tokens).logits
    return found


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_one_track_is_a_llama(tied: bool) -> None:
    torch.manual_seed(1)
    llama = LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, tie_word_embeddings=tied, **SIZES)).eval()
    one = tracks(1, tie_word_embeddings=tied)
    one.load_state_dict(llama.state_dict())
    assert torch.equal(logits(one, ids()), logits(llama, ids()))


def reference(model: TracksForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Written from the description: every track a residual stream of its own through shards of a llama."""
    config, weights = model.config, dict(model.state_dict())
    count, size, n = config.tracks, config.head_dim, tokens.shape[1]
    heads, shared = config.num_attention_heads // count, config.num_key_value_heads // count

    def normed(states: torch.Tensor, name: str) -> torch.Tensor:
        return states * (states.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weights[name]

    angles = torch.arange(n)[:, None] / (10_000.0 ** (torch.arange(0, size, 2) / size))

    def turned(rows: torch.Tensor) -> torch.Tensor:
        left, right = rows.chunk(2, -1)
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)

    def layer(states: torch.Tensor, number: int, track: int) -> torch.Tensor:
        name = f"model.layers.{number}."
        out, into = (
            (lambda n: weights[name + n].chunk(count, 0)[track]),
            (lambda n: weights[name + n].chunk(count, 1)[track]),
        )
        given = normed(states, name + "input_layernorm.weight")
        query, key, value = (
            (given @ out(f"self_attn.{each}_proj.weight").T).view(n, -1, size).transpose(0, 1) for each in "qkv"
        )
        key, value = (part.repeat_interleave(heads // shared, 0) for part in (turned(key), value))
        scores = turned(query) @ key.transpose(1, 2) / size**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(n, -1)
        states = states + mixed @ into("self_attn.o_proj.weight").T
        given = normed(states, name + "post_attention_layernorm.weight")
        gate, up = (given @ out(f"mlp.{each}_proj.weight").T for each in ("gate", "up"))
        return states + (torch.nn.functional.silu(gate) * up) @ into("mlp.down_proj.weight").T

    found = []
    for row in tokens:
        streams = [weights["model.embed_tokens.weight"][row]] * count
        for number in range(config.num_hidden_layers):
            if number in ends_of(config.num_hidden_layers, config.segments):
                streams = [sum(streams) / count] * count
            streams = [layer(states, number, track) for track, states in enumerate(streams)]
        finals = [normed(states, "model.norm.weight") for states in streams]
        heads_of = weights["lm_head.weight"].chunk(count, 1)
        found.append(sum(f.chunk(count, 1)[track] @ heads_of[track].T for track, f in enumerate(finals)))
    return torch.stack(found)


@pytest.mark.parametrize(("count", "layers", "segments"), [(1, 3, 2), (2, 3, 2), (2, 5, 3), (2, 2, 1), (4, 4, 2)])
def test_tracks_are_streams_of_their_own(count: int, layers: int, segments: int) -> None:
    sizes = {} if count < 4 else {"num_key_value_heads": 4}
    torch.manual_seed(2)
    config = TracksConfig(tracks=count, segments=segments, num_hidden_layers=layers, **(SIZES | sizes))
    model = TracksForCausalLM(config).eval()
    assert torch.allclose(logits(model, ids()), reference(model, ids()), atol=2e-5)


@pytest.mark.parametrize("layers", [2, 3, 8])
def test_tracks_meet_twice_whatever_the_depth(layers: int) -> None:
    model = tracks(2, layers=layers)
    logits(model, ids())
    assert model.tracks.meetings == 2


class Together:
    """Sums over threads that stand for processes."""

    def __init__(self, count: int) -> None:
        self._wait = threading.Barrier(count, timeout=60)
        self._parts: list[Any] = [None] * count
        self.sizes: list[int] = []

    def of(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def everywhere(part: torch.Tensor) -> torch.Tensor:
            self._parts[rank] = part
            if rank == 0:
                self.sizes.append(part.numel())
            self._wait.wait()
            total: torch.Tensor = self._parts[0]
            for other in self._parts[1:]:
                total = total + other
            self._wait.wait()
            return total

        return everywhere


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_a_track_a_process_computes_the_model(tied: bool) -> None:
    whole, together = tracks(2, tie_word_embeddings=tied), Together(2)
    found: list[Any] = [None, None]
    parts = [tracks(2, tie_word_embeddings=tied) for _ in range(2)]

    def process(rank: int) -> None:
        part = parts[rank]
        part.hold(rank, together.of(rank))
        found[rank] = logits(part, ids()), part.tracks.meetings

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wanted = logits(whole, ids())
    for computed, meetings in found:
        assert torch.allclose(computed, wanted, atol=1e-6), "a share lies elsewhere, so sums may round otherwise"
        assert meetings == 2
    assert together.sizes == [3 * 17 * 64, 3 * 17 * 97], "states once, logits once"


def test_a_process_keeps_its_share_only() -> None:
    whole, part = tracks(2), tracks(2)
    part.hold(1, lambda states: states)
    for name, weight in part.state_dict().items():
        whole_one = whole.state_dict()[name]
        divided = "proj" in name or "lm_head" in name
        assert weight.numel() == whole_one.numel() // (2 if divided else 1), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tracks(2).save_pretrained(tmp_path / "tracks")
    return tmp_path / "tracks"


def test_a_folder_is_a_target_with_trees(folder: Path) -> None:
    target, model = load_target(folder, dtype="float32"), TracksForCausalLM.from_pretrained(folder).eval()
    (line,) = ids(texts=1, length=9).numpy()
    rows = target.open(32)
    target.score([Request.of_prompt(rows, line[:5])])
    rows.keep(range(5))
    parents = np.array([-1, 0, 0, 1])
    (scores,) = target.score([Request(rows, line[5:], parents)])
    for node, path in enumerate(([0], [0, 1], [0, 2], [0, 1, 3])):
        text = torch.from_numpy(np.concatenate([line[:5], line[5:][path]]))[None]
        assert torch.allclose(torch.as_tensor(scores.logits[node]), logits(model, text)[0, -1], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tracks": 3}, "num_attention_heads is 4, which 3 tracks cannot share equally"),
        ({"tracks": 0}, "has numbers of tracks and of segments, not 0 and 2"),
        ({"segments": 9}, "4 layers are not 9 segments"),
        ({"tracks": 4}, "num_key_value_heads is 2, which 4 tracks cannot share equally"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(folder: Path, change: dict[str, int], said: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(InputError, match=said):
        load_target(folder)


TRAIN = ("train", "segments", "--model", "pocket", "--seed", "3", "--tokens", "2048", "--batch-size", "512")


def test_a_training_from_texts_to_a_draft_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PROMPTS", "WRITTEN"):
        monkeypatch.setattr(judging, name, 2)
    text = "\n\n".join(f"{number}. The old house stood at the end of the lane." for number in range(300))
    (tmp_path / "text.txt").write_text(text)
    made = tmp_path / "draft"
    (tmp_path / "short.txt").write_text("The old house.")
    assert main([*TRAIN, "--data", str(tmp_path / "short.txt"), "--out", str(made), "--held-out", "0"]) == 2
    assert "give more text" in capsys.readouterr().err  # and then the same folder will do
    given = [*TRAIN, "--data", str(tmp_path / "text.txt"), "--out", str(made), "--layers", "2", "--width", "64"]
    assert main([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["tokens"] == 2048
    assert set(said["measured"]) <= {"shared", "none"}
    assert "2 tracks" in (made / "CARD.md").read_text()

    lm = paceline.load("pocket", dtype="float32")
    method = f"assistant:model='{made}'"
    drafted = lm.generate("The old house", method=method, max_new_tokens=12, seed=1, planner="fixed:3")
    assert drafted.tokens == lm.generate("The old house", method="plain", max_new_tokens=12, seed=1).tokens
    assert any(each.drafted for each in drafted.rounds)

    assert json.loads((made / "config.json").read_text())["model_type"] == "paceline_tracks"
    assert main(given) == 0, "a finished training is left as it is"
    assert main([*given, "--layers", "4"]) == 2
    assert "holds a training with other settings or texts" in capsys.readouterr().err
    assert main([*given, "--seed", "-1"]) == 2
    assert "--seed is 0 or more, not -1" in capsys.readouterr().err


def test_a_draft_model_of_one_track_is_an_ordinary_llama(tmp_path: Path) -> None:
    lm = paceline.load("pocket", dtype="float32")
    recipe = TracksRecipe(
        shape=TracksShape(tracks=1, layers=2, width=64),
        schedule=ModelSchedule(tokens=512, tokens_per_step=512).within(512),
        held_out=0,
    )
    workshop = TracksWorkshop(lm, ["The old house stood at the end of the lane."] * 120, recipe, tmp_path / "draft")
    workshop.train(lambda *_: None)
    assert json.loads((tmp_path / "draft/config.json").read_text())["model_type"] == "llama"
    target = load_target(tmp_path / "draft", dtype="float32")
    assert type(target.model) is LlamaForCausalLM
