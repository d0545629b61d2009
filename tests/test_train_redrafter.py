"""Training of heads: labels, losses, going on after a kill, several processes that are one, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from engine import SIZE, habitual
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.drafters.networks.redrafter.checkpoint import read_head
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.errors import InputError
from paceline.targets.base import Request, Target, Want
from paceline.targets.table import TableTarget
from paceline_make.heads import judging
from paceline_make.heads.batches import FreshBatches, StoredBatches
from paceline_make.heads.data import TokenStream, stream_of
from paceline_make.heads.kinds.recurrent import RecurrentKind, RecurrentLesson
from paceline_make.heads.labels import NOTHING, Labels, LabelSettings, Teacher
from paceline_make.heads.loop import HeadTraining, Schedule
from paceline_make.heads.loss import expected_tokens
from paceline_make.heads.run import Recipe, Workshop
from paceline_make.heads.store import LabelStore
from paceline_make.heads.watch import watched
from paceline_make.texts.fields import ChatText

TEXT = "The old house stood at the end of the lane, and nobody had lived in it for years. "


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


def tokens_of(count: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size, count).astype(np.int32)


def stream(count: int = 40, size: int = SIZE) -> TokenStream:
    return TokenStream(tokens_of(count, size), np.ones(count, np.bool_))


# --- labels ------------------------------------------------------------------------------------------------


def alone(target: Target, text: np.ndarray) -> torch.Tensor:
    """The logits behind a text, scored by itself."""
    (scores,) = target.score([Request.of_prompt(target.open(), text.astype(np.int64), Want(logits=True))])
    return scores.logits[-1]


@pytest.mark.parametrize("name", ["table", "pocket"])
def test_continuations_of_a_window_are_those_of_each_position_alone(lm: LanguageModel, name: str) -> None:
    target = lm.target if name == "pocket" else TableTarget(habitual(), SIZE)
    text = stream(30, target.vocab_size)
    settings = LabelSettings(kind="greedy", ahead=3, window=12)
    labels = Teacher(target, text, settings).label(1)
    for position in range(12):
        known = text.ids[12 : 13 + position]
        for token in labels.tokens[position].tolist():
            if token == NOTHING:
                break
            assert token == int(alone(target, known).argmax())
            known = np.append(known, token)


def test_states_are_those_of_the_rows(lm: LanguageModel) -> None:
    text = stream(30, lm.target.vocab_size)
    want = Want(hidden=frozenset({lm.target.layers}))
    (scores,) = lm.target.score([Request.of_prompt(lm.target.open(), text.ids[:12].astype(np.int64), want)])
    for kind in ("truth", "soft"):
        found = Teacher(lm.target, text, LabelSettings(kind=kind, ahead=2, window=12)).label(0)
        torch.testing.assert_close(found.states, scores.hidden(lm.target.layers), atol=1e-4, rtol=1e-4)


def test_the_texts_own_labels_are_its_next_tokens() -> None:
    text = stream()
    labels = Teacher(TableTarget(habitual(), SIZE), text, LabelSettings(kind="truth", ahead=3, window=10)).label(2)
    assert labels.tokens.tolist() == [text.ids[at + 1 : at + 5].tolist() for at in range(20, 30)]


def test_sampled_labels_follow_the_law() -> None:
    target, settings = TableTarget(habitual(), SIZE), LabelSettings(kind="soft", ahead=1, window=2, temperature=0.7)
    text = TokenStream(np.array([1, 2, 3, 4, 1, 2], np.int32), np.ones(6, np.bool_))
    law = torch.as_tensor(alone(target, np.array([1, 2])) / 0.7).softmax(-1)
    counts = np.zeros(SIZE)
    for seed in range(400):
        labels = Teacher(target, text, replace(settings, seed=seed)).label(0)
        counts[int(labels.tokens[1, 0])] += 1
        assert labels.law_ids is not None
        assert labels.law_logs is not None
        assert labels.law_logs[1, 0].exp().sum() == pytest.approx(1, abs=1e-3)
    assert np.abs(counts / 400 - law.numpy()).max() < 0.12


def test_nothing_is_learnt_behind_an_end_of_text_or_of_other_speakers() -> None:
    ids = np.array([0, 1, 5, 2, 3, 4, 0, 1, 2, 3, 4, 0], np.int32)
    labelled = np.ones(12, np.bool_)
    labelled[4] = False
    target = TableTarget(habitual(), SIZE, eos=frozenset({5}))
    settings = LabelSettings(kind="truth", ahead=2, window=8)
    labels = Teacher(target, TokenStream(ids, labelled), settings).label(0)
    assert labels.tokens[0].tolist() == [1, 5, NOTHING]
    firsts = labels.tokens[:, 0].tolist()
    assert 3 not in firsts, "the token of another speaker"
    assert 5 not in firsts, "nothing follows an end"


class Spoken:
    """A vocabulary with a chat template; a token is a letter."""

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]

    def conversation(self, messages: list[dict[str, Any]]) -> str:
        said = "".join(f"<{one['role'][0]}>{one['content']}" for one in messages)
        return said if messages[-1]["role"] == "assistant" else said + "<a>"


def test_of_chats_what_the_assistant_says_is_learnt() -> None:
    messages = [{"role": role, "content": said} for role, said in (("user", "hi"), ("assistant", "yo"))] * 2
    vocabulary: Any = Spoken()
    found = stream_of([ChatText(messages)], vocabulary, None)
    assert "".join(map(chr, found.ids)) == "<u>hi<a>yo<u>hi<a>yo"
    assert "".join(map(chr, found.ids[found.labelled])) == "yoyo"


# --- losses ------------------------------------------------------------------------------------------------


def small_head(kept: list[int] | None = None) -> RecurrentHead:
    torch.manual_seed(0)
    head = RecurrentHead(HeadShape(width=4, vocab_size=7, exit=4, kept=len(kept or ())))
    if kept:
        head.token_ids = torch.tensor(kept)
    return head


def by_hand(head: RecurrentHead, embedding: torch.Tensor, states: torch.Tensor, tokens: list[int]) -> list[Any]:
    """Log-probabilities of one position's steps."""
    state, found = head.first(embedding[tokens[0]]), []
    for step in range(len(tokens) - 1):
        state = head.next(state, embedding[tokens[step]]) if step else state
        found.append(head.logits(states, state).log_softmax(-1))
    return found


def test_the_loss_of_tokens_is_their_mean_surprise() -> None:
    head, embedding = small_head([0, 2, 3, 6]), torch.randn(7, 4)
    tokens = torch.tensor([[1, 2, 5], [4, 6, NOTHING]])
    states = torch.randn(2, 4)
    learnt = RecurrentLesson(head, embedding).learn(Labels(states, tokens))
    first, second = (by_hand(head, embedding, states[row], [1, 2, 5] if row == 0 else [4, 6, 0]) for row in (0, 1))
    wanted = (-(first[0][1] + second[0][3]) / 2 + 0) / 2  # the token 5 is not known, and the last one is no label
    assert float(learnt.loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-6)
    assert learnt.counted.tolist() == [[True, True], [True, False]]


def test_the_soft_loss_counts_the_rest_as_one_token() -> None:
    head, embedding, states = small_head([0, 2, 3, 6]), torch.randn(7, 4), torch.randn(1, 4)
    ids, shares = torch.tensor([[[2, 5, 0]]]), torch.tensor([[[0.5, 0.2, 0.1]]])
    learnt = RecurrentLesson(head, embedding).learn(Labels(states, torch.tensor([[1, 2]]), ids, shares.log()))
    (own,) = by_hand(head, embedding, states[0], [1, 2])
    p2, p0 = own[1].exp(), own[0].exp()  # of the head's own vocabulary; 5 is unknown, so it belongs to the rest
    wanted = 0.5 * (0.5 / p2).log() + 0.1 * (0.1 / p0).log() + 0.4 * (0.4 / (1 - p2 - p0)).log()
    assert float(learnt.loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-5)


def test_tokens_of_a_round_end_with_the_first_mistake() -> None:
    right = torch.tensor([[True, True, False], [False, True, True], [True, False, True]])
    assert expected_tokens(right, torch.ones_like(right)) == pytest.approx(1 + 3 / 3)


# --- a training --------------------------------------------------------------------------------------------


def labels_of(count: int = 64) -> Labels:
    random = torch.Generator().manual_seed(1)
    first = torch.randint(0, 7, (count, 1), generator=random)
    return Labels(torch.randn(count, 4, generator=random), (first + torch.arange(4)) % 7)


def losses(folder: Path, steps: int | None = None, **options: Any) -> list[float]:
    """The losses of a training; of its first steps, if it is stopped there."""
    torch.manual_seed(3)
    found: list[float] = []
    folder.mkdir(exist_ok=True)
    training = HeadTraining(
        RecurrentLesson(small_head(), torch.randn(7, 4, generator=torch.Generator().manual_seed(2))),
        StoredBatches(labels_of(), 16, 0),
        Schedule(positions=64, epochs=3, batch=16, save_every=1, **options),
        folder / "training.pt",
        autocast=None,
    )

    class Stopped(Exception):
        pass

    def report(one: Any) -> None:
        found.append(one.loss)
        if len(found) == steps:
            raise Stopped

    try:
        training.train(report)
    except Stopped:
        training._save()
    return found


def test_a_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = losses(tmp_path / "whole")
    first = losses(tmp_path / "parts", steps=5)
    assert len(whole) == 12
    assert first + losses(tmp_path / "parts") == pytest.approx(whole, abs=1e-6)
    assert whole[-1] < whole[0]


def test_a_training_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    losses(tmp_path, steps=2)
    with pytest.raises(InputError, match=r"with other settings \(schedule\)"):
        losses(tmp_path, rate=0.1)


def test_labels_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    target = TableTarget(habitual(), SIZE)
    teacher = Teacher(target, stream(4000), LabelSettings(kind="greedy", ahead=1, window=20))
    store, calls = LabelStore(tmp_path, 150), list[tuple[int, int]]()
    store.write(1, store.labelled(teacher, 1))
    kept = store.file(1).stat().st_mtime_ns
    store.fill(teacher, lambda done, parts: calls.append((done, parts)))
    assert store.file(1).stat().st_mtime_ns == kept
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert len(store.read(teacher).tokens) == 150 * 20
    again = LabelStore(tmp_path / "again", 150)
    again.fill(teacher, lambda *_: None)
    assert torch.equal(again.read(teacher).tokens, store.read(teacher).tokens)


def test_fresh_labels_are_those_of_whole_windows_each_once_in_a_pass() -> None:
    teacher = Teacher(TableTarget(habitual(), SIZE), stream(400), LabelSettings(kind="soft", ahead=2, window=20))
    lessons = FreshBatches(teacher, 12, batch=80, seed=1)
    assert lessons.positions == 240
    for first in (0, 3):
        numbers = [number for step in range(first, first + 3) for number in lessons.numbers[lessons._shuffled.at(step)]]
        assert sorted(numbers) == sorted(teacher.shuffled()[:12])
    labels, count = lessons.at(1)
    alone = [teacher.label(int(number)) for number in lessons.numbers[lessons._shuffled.at(1)]]
    assert count == len(labels.tokens) == 80
    assert torch.equal(labels.tokens, torch.cat([one.tokens for one in alone]))
    assert torch.equal(labels.states, torch.cat([one.states for one in alone]))


def learnt(batches: StoredBatches | FreshBatches, file: Path, unit: int = 1) -> list[float]:
    """The losses of three passes over these."""
    width, found = batches.at(0)[0].states.shape[1], list[float]()
    torch.manual_seed(4)
    head = RecurrentHead(HeadShape(width=width, vocab_size=7, exit=4))
    lesson = RecurrentLesson(head, torch.randn(7, width, generator=torch.Generator().manual_seed(2)))
    lesson.unit = unit
    schedule = Schedule(positions=batches.positions, epochs=3, batch=batches.size)
    HeadTraining(lesson, batches, schedule, file, autocast=None).train(lambda one: found.append(one.loss))
    return found


def half_labelled() -> Teacher:
    """Of two windows, of which the second has nothing to learn."""
    stream = TokenStream(tokens_of(100), np.arange(100) < 40)
    return Teacher(TableTarget(habitual(), SIZE), stream, LabelSettings(kind="greedy", ahead=2, window=40))


def test_a_step_with_nothing_to_learn_is_passed(tmp_path: Path) -> None:
    found = learnt(FreshBatches(half_labelled(), 2, 40, 0), tmp_path / "training.pt")
    assert sorted(loss > 0 for loss in found) == [False] * 3 + [True] * 3


def losses_of_few_windows(folder: Path) -> list[float]:
    """Of steps that have nothing for some process: one stored window, one fresh one, one of two without labels."""
    folder.mkdir()
    return [
        *learnt(StoredBatches(labels_of(8), 16, 0, unit=8), folder / "stored.pt", unit=8),
        *learnt(FreshBatches(half_labelled(), 1, 16, 0), folder / "fresh.pt"),
        *learnt(FreshBatches(half_labelled(), 2, 80, 0), folder / "half.pt"),
    ]


def workshop(lm: LanguageModel, out: Path, **recipe: Any) -> Workshop:
    passages = [f"{number}. {TEXT * 3}" for number in range(40)]
    recipe = {"held_out": 0.2, **recipe}
    head = RecurrentKind(**{name: recipe.pop(name) for name in ("exit", "kept") if name in recipe})
    labels = LabelSettings(kind=recipe.pop("kind", "soft"), ahead=2, window=32)
    return Workshop(lm, passages, Recipe(head=head, labels=labels, positions=512, epochs=2, batch=128, **recipe), out)


def trained(lm: LanguageModel, out: Path, **recipe: Any) -> list[float]:
    found: list[float] = []
    workshop(lm, out, **recipe).train(lambda *_: None, lambda one: found.append(one.loss))
    return found


def test_a_head_with_a_part_of_the_vocabulary_drafts(lm: LanguageModel, tmp_path: Path) -> None:
    found = trained(lm, tmp_path, kept=64, exit=16, int8=True)
    head, config = read_head(tmp_path)
    assert found[-1] < found[0]
    assert head.token_ids is not None
    assert min(lm.target.eos) in head.token_ids.tolist()
    assert config.target == lm.target.fingerprint()
    assert config.trained["held_out"]["tokens"] >= 1
    how: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0.8}
    text = lm.generate(TEXT, method=f"redrafter:head={tmp_path}", **how)
    assert text.tokens == lm.generate(TEXT, method="plain", **how).tokens
    assert set(text.totals.__dict__)
    assert text.totals.drafted


def test_a_head_is_measured_with_the_noise_and_without_and_keeps_the_better(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "PROMPTS", 2)
    found = watched(workshop(lm, tmp_path, exit=16), ["- a text"]).measured
    assert found.keys() == {"shared", "none"}
    assert min(found.values()) >= 1
    _, config = read_head(tmp_path)
    assert config.noise == max(found, key=lambda noise: found[noise])
    assert config.trained["tokens_per_round"] == found
    shared, none = found.values()
    said = f"{shared:.2f} tokens a round of `redrafter` with `noise=shared`, {none:.2f} with `noise=none`"
    assert said in (tmp_path / "CARD.md").read_text()
    drafts = []
    for option in ("", f",noise={config.noise}"):
        how: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.8, "seed": 1, "planner": "fixed"}
        text = lm.generate(TEXT, method=f"redrafter:head={tmp_path}{option}", **how)
        drafts.append([each.drafted for each in text.rounds])
    assert drafts[0] == drafts[1]


def test_without_held_out_text_a_head_is_not_measured(lm: LanguageModel, tmp_path: Path) -> None:
    assert watched(workshop(lm, tmp_path, exit=16, held_out=0.0), ["- a text"]).measured == {}
    assert read_head(tmp_path)[1].noise is None


def test_an_output_of_the_models_width_begins_as_its_own_head(lm: LanguageModel, tmp_path: Path) -> None:
    head = workshop(lm, tmp_path).blank()
    states = torch.randn(3, 256)
    output: Any = head.lm_head[2]
    torch.testing.assert_close(output(states), lm.target.unembed(states), atol=1e-3, rtol=1e-3)


COMMAND = ["train", "redrafter", "--model", "pocket", "--ahead", "2", "--window", "32", "--positions", "4096"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["labels", "training"])
def test_a_killed_command_goes_on(tmp_path: Path, when: str) -> None:
    data, out = tmp_path / "data.txt", tmp_path / "head"
    data.write_text("\n\n".join(f"{number}. {TEXT * 4}" for number in range(200)))
    command = [*COMMAND, "--data", str(data), "--batch-size", "64", "--epochs", "20", "--out", str(out)]
    running = subprocess.Popen([sys.executable, "-m", "paceline", *command], stderr=subprocess.DEVNULL)
    there: Callable[[], bool] = (
        (out / "log.jsonl").exists if when == "labels" else lambda: (out / "training.pt").exists()
    )
    while not there():
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = (out / "log.jsonl").read_text().count("\n")
    assert main(command) == 0
    head, _ = read_head(out)
    assert head.shape.vocab_size == 8192
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()[1:]]
    assert steps[-1] == max(steps)
    assert before < len(steps) + 1


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["--no-cache"]])
def test_processes_of_torchrun_train_one_head(tmp_path: Path, way: list[str]) -> None:
    data = tmp_path / "data.txt"
    data.write_text("\n\n".join(f"{number}. {TEXT * 4}" for number in range(200)))
    command = [*COMMAND, *way, "--data", str(data), "--batch-size", "512", "--epochs", "1", "--out"]
    assert main([*command, str(tmp_path / "one")]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline", *command]
    done = subprocess.run([*torchrun, str(tmp_path / "two")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    logs = ((tmp_path / name / "log.jsonl").read_text().splitlines()[1:] for name in ("one", "two"))
    one, two = ([json.loads(row) for row in log] for log in logs)
    assert len(one) > 4
    assert [step["loss"] for step in two] == pytest.approx([step["loss"] for step in one], rel=0.01)
    assert read_head(tmp_path / "two")[0].shape == read_head(tmp_path / "one")[0].shape


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'paceline[cluster]'")
@pytest.mark.filterwarnings("ignore")  # of ray's own
def test_a_cluster_makes_the_same_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import ray

    data = tmp_path / "data.txt"
    data.write_text("\n\n".join(f"{number}. {TEXT * 4}" for number in range(200)))
    command = [*COMMAND, "--dtype", "float32", "--data", str(data), "--epochs", "1", "--out"]
    assert main([*command, str(tmp_path / "here")]) == 0
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert main([*command, str(tmp_path / "there"), "--cluster", "local"]) == 0
    finally:
        ray.shutdown()
    parts = sorted((tmp_path / "here" / "labels").iterdir())
    assert parts
    for part in parts:
        here = torch.load(part, weights_only=True)
        there = torch.load(tmp_path / "there" / "labels" / part.name, weights_only=True)
        assert torch.equal(here["tokens"], there["tokens"])
        assert torch.allclose(here["states"].float(), there["states"].float(), atol=0.1)


# --- what is refused ---------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data.txt", str(tmp_path / "head")
    data.write_text("A text.\n\nAnother one.")
    whole = ["train", "redrafter", "--out", out, "--data"]
    (tmp_path / "bad.jsonl").write_text('{"other": 1}')
    assert "line 1 has no field text or messages; it has other" in refused(capsys, *whole, str(tmp_path / "bad.jsonl"))
    assert "fewer than one window" in refused(capsys, *whole, str(data))
    assert "--ahead" in refused(capsys, *whole, str(data), "--ahead", "0")
    assert "need a temperature above 0" in refused(capsys, *whole, str(data), "--temperature", "0")
    assert "--held-out" in refused(capsys, *whole, str(data), "--held-out", "2")
    assert "cannot know 9000 of 8192 tokens" in refused(
        capsys, *whole, str(data), "--kept", "9000", "--window", "4", "--ahead", "1"
    )
    Path(out).mkdir(exist_ok=True)
    (Path(out) / "mine.txt").write_text("x")
    assert "is there and is no training" in refused(capsys, *whole, str(data))


def test_a_folder_of_another_training_is_refused(lm: LanguageModel, tmp_path: Path) -> None:
    trained(lm, tmp_path)
    with pytest.raises(InputError, match="holds a training with other settings or texts"):
        trained(lm, tmp_path, rate=1e-3)


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    labels = labels_of()
    labels.states[:] = torch.inf
    training = HeadTraining(
        RecurrentLesson(small_head(), torch.randn(7, 4)),
        StoredBatches(labels, 16, 0),
        Schedule(positions=64, batch=16),
        tmp_path / "t.pt",
        autocast=None,
    )
    with pytest.raises(
        InputError, match="the loss is nan at step 0; nothing is learnt yet: take fewer blocks, or make the"
    ):
        training.train(lambda one: None)


def test_the_command_tells_what_heads_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.txt"
    data.write_text(TEXT * 20)
    assert main(["train", "info", "--model", "pocket", "--data", str(data), "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    shapes = json.loads(last)["shapes"]
    assert len(shapes) == 6
    assert all(one["milliseconds"] > 0 and 0 < one["coverage"] <= 1 for one in shapes)
    assert shapes[2]["bytes"] < shapes[1]["bytes"] < shapes[0]["bytes"]
    assert any("output in int8" in line for line in lines)
