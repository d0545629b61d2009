"""One trainer for every kind of head: each trains, goes on, loads as a public folder and drafts; what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from engine import write
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Drafter, Seen, make_drafter
from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.shape import BlockShape
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import KINDS, method_for
from paceline.drafters.networks.layers import LayerShape
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.planning.base import Planner, Room
from paceline.tree import DraftTree
from paceline.verify import Rule
from paceline_make.commands import train
from paceline_make.heads import judging
from paceline_make.heads.batches import StoredBatches, rank
from paceline_make.heads.kinds.base import ROPE, Ground, HeadKind
from paceline_make.heads.kinds.block import BlockKind, BlockLesson
from paceline_make.heads.kinds.eagle import EagleKind
from paceline_make.heads.kinds.hydra import HydraKind
from paceline_make.heads.kinds.medusa import MedusaKind
from paceline_make.heads.kinds.recurrent import RecurrentKind
from paceline_make.heads.kinds.streaming import StreamingKind
from paceline_make.heads.kinds.table import BY_METHOD, described
from paceline_make.heads.kinds.tuned import TunedKind
from paceline_make.heads.labels import Labels, LabelSettings, joined
from paceline_make.heads.lesson import Lesson, known_tokens
from paceline_make.heads.loop import HeadTraining, Schedule
from paceline_make.heads.loss import LOSSES, Laws, Objective
from paceline_make.heads.run import Recipe, Workshop
from paceline_make.heads.watch import watched

TEXT = "The old house stood at the end of the lane, and nobody had lived in it for years. "
AHEAD, WINDOW = 2, 16
SMALL: dict[str, HeadKind[Any]] = {
    "redrafter": RecurrentKind(exit=32, kept=256),
    "medusa": MedusaKind(own_output=False),
    "hydra": HydraKind(rank=16, kept=256),
    "hydra++": HydraKind(rank=16, kept=256, prefix=True, units=64),
    "eagle": EagleKind(units=64, own_output=True, kept=256),
    "block": BlockKind(units=64, layers=1, anchors=8),
    "streaming": StreamingKind(layers=2, rank=16),
    "streaming with its model": TunedKind(layers=2),
    "block with a Markov head": BlockKind(units=64, layers=1, anchors=8, markov=8, own_output=True, rank=16, kept=256),
}
WHOLE = [name for name, kind in SMALL.items() if kind.reading.whole]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


def workshop(lm: LanguageModel, out: Path, head: HeadKind[Any], **more: Any) -> Workshop:
    passages = [f"{number}. {TEXT}" for number in range(40)]
    labels = LabelSettings(kind="soft", ahead=AHEAD, window=WINDOW)
    recipe = {"positions": 320, "epochs": 3.0, "batch": 48, "held_out": 0.0, "int8": True, **more}
    return Workshop(lm, passages, Recipe(head=head, labels=labels, **recipe), out)


class Stopped(Exception):
    pass


def losses(made: Workshop, steps: int | None = None) -> list[float]:
    """The losses of a training; of its first steps, if it is stopped there."""
    found = list[float]()

    def report(one: Any) -> None:
        found.append(one.loss)
        if len(found) == steps:
            raise Stopped

    made.train(lambda *_: None, report)
    return found


def weights(made: Workshop) -> dict[str, torch.Tensor]:
    return dict(made.kind.read(made.out).state_dict())


# --- trainings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_head_learns_and_its_folder_drafts(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    made = workshop(lm, tmp_path, SMALL[name])
    found = losses(made)
    assert sum(found[-4:]) / 4 < 0.8 * found[0]
    method = method_for(tmp_path)
    assert method == made.kind.method == name.partition(" ")[0].rstrip("+")
    how: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.8, "seed": 3}
    text = lm.generate(TEXT, method=f"{method}:head='{tmp_path}'", planner="fixed", **how)
    assert text.tokens == lm.generate(TEXT, method="plain", **how).tokens
    assert text.totals.drafted > 0
    assert sum(each.emitted for each in text.rounds) > len(text.rounds), "something was accepted"


@pytest.mark.parametrize("name", ["eagle", "block", "block with a Markov head"])
def test_the_first_step_learns_how_to_read_the_text(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    made = workshop(lm, tmp_path, SMALL[name])
    head: Any = made.blank()
    made.lesson(head).learn(batch_of(made)).loss.backward()
    assert head.fc.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_folder_holds_is_what_was_trained(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    made = workshop(lm, tmp_path, SMALL[name])
    ground = Ground(lm.target, made.stream.ids, AHEAD)
    head = made.kind.blank(ground)
    made.kind.write(tmp_path, head, Provenance(target_name="pocket", dtype=torch.bfloat16))
    again = made.kind.read(tmp_path).state_dict()
    for part, weight in head.state_dict().items():
        torch.testing.assert_close(again[part].float(), weight.float(), atol=0.02, rtol=0.01)


@pytest.mark.parametrize("name", ["medusa", "block"])
def test_a_training_that_was_stopped_gives_the_same_head(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    how: dict[str, Any] = {"epochs": 1.0, "batch": 32, "save_every": 3}
    whole = workshop(lm, tmp_path / "whole", SMALL[name], **how)
    count = len(losses(whole))
    with pytest.raises(Stopped):
        losses(workshop(lm, tmp_path / "parts", SMALL[name], **how), steps=5)
    parts = workshop(lm, tmp_path / "parts", SMALL[name], **how)
    assert len(losses(parts)) == count - 3, "it goes on from the last state that was saved"
    for part, weight in weights(whole).items():
        assert torch.equal(weights(parts)[part], weight)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_small_steps_learn_every_window_as_often_as_was_said(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, fresh: bool
) -> None:
    """Also where the batch is less than a window, or than a window for each process."""
    made = workshop(lm, tmp_path, SMALL["block"], batch=WINDOW // 4, fresh=fresh)
    for name, found in {"is_initialized": True, "get_world_size": processes, "get_rank": 0, "barrier": None}.items():
        monkeypatch.setattr(torch.distributed, name, lambda found=found: found)
    batches: Any = made._batches(lambda *_: None)
    steps = made.schedule(batches).steps
    learnt = Counter(int(number) for step in range(steps) for number in batches._shuffled.at(step))
    assert batches.size == processes * WINDOW
    assert [*learnt.values()] == [3] * 20


def windows_of(count: int = 8) -> Labels:
    """Labels of windows of eight positions, over seven tokens, for a head of width 8."""
    random = torch.Generator().manual_seed(1)
    text = torch.randint(0, 7, (count * 8,), generator=random)
    tokens = (text[:, None] + torch.arange(1, 4)) % 7
    return Labels(torch.randn(count * 8, 16, generator=random), tokens, text=text)


def on_windows(folder: Path) -> list[float]:
    """The losses of a block head on these."""
    torch.manual_seed(3 + rank())  # the first process's weights are all processes'
    layer = LayerShape(width=8, units=8, heads=2, kv_heads=1, head_size=4, head_norms=True)
    shape = BlockShape(
        layer=layer, vocab_size=7, block=3, mask_token=6, states=(0, 1), windows=(None,), causal=(False,), rope=ROPE
    )
    lesson = BlockLesson(BlockHead(shape), torch.randn(7, 8, generator=torch.Generator().manual_seed(2)))
    lesson.unit, lesson.anchors = 8, 4
    found = list[float]()
    schedule = Schedule(positions=64, epochs=4, batch=32)
    training = HeadTraining(lesson, StoredBatches(windows_of(), 32, 0, 8), schedule, folder, autocast=None)
    training.train(lambda one: found.append(one.loss))
    return found


def test_the_size_of_labels_is_told_before_they_are_made(lm: LanguageModel, tmp_path: Path) -> None:
    made = workshop(lm, tmp_path, SMALL["block"])
    assert made.bytes == sum(part.nbytes for part in made.store.labelled(made.teacher, 0).values())


# --- lessons -----------------------------------------------------------------------------------------------


def batch_of(made: Workshop, windows: int = 2) -> Labels:
    return joined([made.teacher.label(number) for number in range(windows)])


def moved(head: nn.Module) -> nn.Module:
    """A head whose layers do something."""
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    return head


def lesson_of(made: Workshop) -> Lesson[Any]:
    return made.lesson(moved(made.blank()))


class Pausing(Planner):
    """Drafts in the first rounds and in the last, and rests for forty between them, of which the last is shown."""

    begin, rest = 6, 40

    def __init__(self, shown: bool) -> None:
        self.rounds, self._shown = 0, shown

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.rounds += 1
        left = self.begin + self.rest - self.rounds
        rests = 0 <= left < self.rest
        return [Budget(0, 0, "it rests", shown=self._shown or not left) if rests else Budget(6, 6)] * len(rooms)


@pytest.mark.parametrize("name", [name for name in SMALL if "streaming" not in name])  # no head of the target's states
def test_a_text_that_rested_drafts_as_one_that_was_shown_every_round(
    lm: LanguageModel, tmp_path: Path, name: str
) -> None:
    made = workshop(lm, tmp_path, SMALL[name])
    made.kind.write(tmp_path, moved(made.kind.blank(made.ground)), Provenance(target_name="pocket"))
    found, shown = list[list[DraftTree]](), list[int]()
    for every in (True, False):
        drafter = make_drafter(f"{made.kind.method}:head='{tmp_path}'")
        drafter.fit(lm.target, lm.vocabulary)
        trees, propose, observe = list[DraftTree](), drafter.propose, drafter.observe

        def proposed(asks: Sequence[Ask], trees: Any = trees, propose: Any = propose) -> list[DraftTree]:
            trees += propose(asks)
            return trees[-len(asks) :]

        def observed(seen: Sequence[Seen], observe: Any = observe) -> None:
            shown[-1] += sum(not each.state.context.finish and len(each.verdict.tokens) > 0 for each in seen)
            observe(seen)

        shown.append(0)
        drafter.propose, drafter.observe = proposed, observed  # type: ignore[method-assign]
        context = Context([5, 6, 7], Sampling(temperature=0.8, seed=3), Ending(max_new_tokens=100))
        list(run(Session(context, lm.target, lm.target.open(), drafter, Pausing(every), Rule.COUPLED)))
        found.append(trees)
        drafter.dispose()
    assert len(found[0]) > Pausing.begin + 5
    assert all(map(len, found[0][Pausing.begin :])), "it drafts after the rest"
    for one, other in zip(*found, strict=True):
        assert (one.tokens.tolist(), one.parents.tolist()) == (other.tokens.tolist(), other.parents.tolist())
    assert shown[0] - shown[1] == (0 if made.kind.reading.whole else Pausing.rest - 1), "no more than it needs"
    union = make_drafter(f"lookup+{made.kind.method}:head='{tmp_path}'")
    union.fit(lm.target, lm.vocabulary)
    assert union.skips != made.kind.reading.whole


@pytest.mark.parametrize("name", WHOLE)
def test_predictions_read_no_more_than_a_draft_may(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    """Those of a position change with nothing behind it but the labels' own tokens before each step."""
    made = workshop(lm, tmp_path, SMALL[name])
    lesson, batch = lesson_of(made), batch_of(made)
    place = 5
    changed = batch._replace(states=batch.states.clone(), tokens=batch.tokens.clone())
    assert batch.text is not None
    changed = changed._replace(text=batch.text.clone())
    assert changed.text is not None
    changed.states[place + 1 : WINDOW] += 1.0
    changed.tokens[place + 1 : WINDOW] = 7
    changed.text[place + 1 : WINDOW] = 7
    with torch.no_grad():
        before, after = ([each.clone() for each in lesson.predict(one, 0)[1]] for one in (batch, changed))
    chosen = _chosen(lesson, made)
    own = [number for number, position in enumerate(chosen) if position <= place]
    later = [number for number, position in enumerate(chosen) if place < position < WINDOW]
    assert own
    assert later
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[own], other[own], atol=1e-4, rtol=1e-4)
        assert not torch.allclose(one[later], other[later], atol=1e-2)


@pytest.mark.parametrize("name", SMALL)
def test_no_step_reads_the_token_that_it_predicts(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    """Nor one behind it, of any position. Where tokens are read, the one before it is."""
    made = workshop(lm, tmp_path, SMALL[name])
    lesson, batch = lesson_of(made), batch_of(made)

    def logits(changed: int) -> torch.Tensor:
        """With other tokens from this place on."""
        tokens = batch.tokens.clone()
        tokens[:, changed:] = (tokens[:, changed:].clamp_min(0) + 1) % lm.target.vocab_size
        with torch.no_grad():
            return torch.stack(list(lesson.predict(batch._replace(tokens=tokens), 0)[1]))

    right = logits(AHEAD + 1)
    for step in range(AHEAD):
        torch.testing.assert_close(logits(step + 1)[: step + 1], right[: step + 1], atol=1e-5, rtol=1e-5)
        if name not in ("medusa", "block", "streaming", "streaming with its model"):
            assert not torch.allclose(logits(step)[step], right[step], atol=1e-2)


def _chosen(lesson: Any, made: Workshop) -> list[int]:
    """The positions of the first window that a lesson learns, in order of its rows."""
    chosen: list[int] = lesson._chosen(0).tolist() if hasattr(lesson, "_chosen") else list(range(WINDOW))
    return chosen


@pytest.mark.parametrize("name", ["hydra++", "eagle", "block", "block with a Markov head"])
def test_a_draft_is_what_was_trained_to_be_drafted(lm: LanguageModel, tmp_path: Path, name: str) -> None:
    """A chain of likeliest tokens behind a window is what the lesson finds behind its last positions."""
    made = workshop(lm, tmp_path, SMALL[name], int8=False)
    losses(made)
    tokens, method = made.stream.ids[: WINDOW - 1].astype(np.int64), made.kind.method
    drafter = make_drafter(f"{method}:head='{tmp_path}',noise=none,{ONE[method]}")
    drafter.fit(lm.target, lm.vocabulary)
    chain = _drafted(lm, drafter, tokens)
    assert len(chain) == 1 + AHEAD
    lesson, labels = made.lesson(made.kind.read(tmp_path).float()), made.teacher.label(0)
    follows = labels.tokens.clone()
    follows[WINDOW - 2] = torch.tensor(chain)
    row = WINDOW - 2
    if isinstance(lesson, BlockLesson):
        lesson.anchors = WINDOW
        row = lesson._chosen(0).tolist().index(row)
    with torch.no_grad():
        found = [logits[row] for logits in lesson.predict(labels._replace(tokens=follows), 0)[1]]
    best = [int(known_tokens(lesson.head)[int(logits.argmax())]) for logits in found]
    assert best == chain[1:]


ONE = {"hydra": "width=1", "eagle": "beams=1", "block": "width=1"}
"""Options that make a draft one line."""


def _drafted(lm: LanguageModel, drafter: Drafter, tokens: np.ndarray) -> list[int]:
    """The model's own choice behind these tokens, and what is drafted behind it."""
    drafts, propose = list[list[int]](), drafter.propose

    def recorded(asks: Sequence[Ask]) -> list[DraftTree]:
        found = propose(asks)
        drafts.extend(tree.tokens.tolist() for tree in found if len(tree))
        return found

    drafter.propose = recorded  # type: ignore[method-assign]
    session = write(lm.target, tokens.tolist(), drafter, nodes=AHEAD, max_new_tokens=2 + AHEAD)
    return [int(session.context.emitted[0]), *drafts[0]]


# --- losses ------------------------------------------------------------------------------------------------


def laws(p: list[float], q: list[float]) -> Laws:
    """Of a model and of a head over the same few tokens, which are all there are."""
    logits = torch.tensor([q]).log()
    return Laws.of(logits, torch.arange(len(p))[None], torch.tensor([p]).log())


def test_overlap_and_race_are_the_chances_of_acceptance() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.6, 0.2]
    found = laws(p, q)
    assert float(found.overlap()) == pytest.approx(0.7)
    noise = torch.empty(200_000, 3, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(0))
    same = (noise / torch.tensor(p)).argmin(1) == (noise / torch.tensor(q)).argmin(1)
    assert float(found.race()) == pytest.approx(float(same.double().mean()), abs=0.005)
    assert float(laws(p, p).race()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_least_at_the_models_law(loss: str) -> None:
    p = [0.6, 0.3, 0.1]
    at = {
        name: float(laws(p, q).losses(loss))
        for name, q in {"same": p, "near": [0.5, 0.4, 0.1], "far": [0.1, 0.1, 0.8]}.items()
    }
    assert at["same"] < at["near"] < at["far"]
    assert at["same"] == pytest.approx(0.0, abs=1e-4)


def test_later_steps_weigh_less() -> None:
    found = Objective(decay=0.5).weights(3, torch.device("cpu"))
    assert found.tolist() == pytest.approx([12 / 7, 6 / 7, 3 / 7])
    assert Objective().weights(4, torch.device("cpu")).tolist() == [1.0] * 4


@pytest.mark.parametrize("loss", ["overlap", "race"])
def test_losses_of_acceptance_are_learnt(lm: LanguageModel, tmp_path: Path, loss: str) -> None:
    found = losses(workshop(lm, tmp_path, SMALL["redrafter"], loss=loss))
    assert sum(found[-4:]) / 4 < 0.8 * found[0]


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def command(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs ``paceline train``; gives the exit code and what was said."""
    data = tmp_path / "data.txt"
    data.write_text("\n\n".join(f"{number}. {TEXT}" for number in range(20)))
    monkeypatch.setattr(train, "load_model", lambda options: lm)
    monkeypatch.setattr(judging, "PROMPTS", 1)
    monkeypatch.setattr(judging, "WRITTEN", 8)
    small = ("--ahead", "2", "--window", "16", "--positions", "128", "--epochs", "1", "--batch-size", "64")

    def run(kind: str, *more: str) -> tuple[int, str]:
        out = ("--data", str(data), "--out", str(tmp_path / "head")) if kind != "info" else ()
        code = main(["train", kind, *(small if out else ()), *out, *more])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


SIZES = {
    "redrafter": ("--exit", "16"),
    "medusa": ("--output", "model"),
    "hydra": ("--rank", "8", "--kept", "100"),
    "eagle": ("--units", "32"),
    "block": ("--units", "32", "--layers", "1", "--markov", "4"),
    "streaming": ("--layers", "1", "--rank", "4"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_trains_measures_and_describes(
    command: Callable[..., tuple[int, str]], tmp_path: Path, kind: str
) -> None:
    code, said = command(kind, *SIZES[kind], "--held-out", "0.2", "--int8")
    assert code == 0, said
    assert f"--method {kind}:head={tmp_path / 'head'}" in said
    card = (tmp_path / "head" / "CARD.md").read_text()
    assert f"for the method `{kind}`" in card
    assert f"{BY_METHOD[kind].measure} of `{kind}` with `noise=shared`" in card
    code, said = command("info", str(tmp_path / "head"), "--json")
    assert code == 0
    lines, found = said.splitlines(), json.loads(said.splitlines()[-1])
    size = sum(file.stat().st_size for file in (tmp_path / "head").glob("*.safetensors"))
    assert (found["method"], found["bytes"], found["target_name"]) == (kind, size, "pocket")
    assert ["bytes", f"{size:,}"] in [line.split() for line in lines]


def test_wrong_options_are_a_sentence(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert "give --output own" in command("eagle", "--kept", "100")[1]
    assert "needs soft labels, not 'greedy'" in command("block", "--labels", "greedy", "--loss", "race")[1]
    assert "--states are numbers of layers, as 2,4,7, not '2;5'" in command("eagle", "--states", "2;5")[1]
    assert "--layers" in command("block", "--layers", "0")[1]
    assert "--layers 9 are more than the 8 of pocket" in command("streaming", "--layers", "9")[1]
    assert "weigh above 0" in command("medusa", "--decay", "0")[1]
    assert "cannot know 9000 of 8192 tokens" in command("medusa", "--kept", "9000")[1]
    assert "pocket has states 0 to 8" in command("eagle", "--states", "2,5,80")[1]
    assert "--states names a layer twice: 2,2" in command("eagle", "--states", "2,2")[1]
    assert "give --prefix" in command("hydra", "--units", "32")[1]
    assert "--anchors 16 are more than a window of 16 tokens has" in command("block", "--anchors", "16")[1]
    assert "--anchors must be at least 1" in command("block", "--anchors", "0")[1]
    assert command("block", "--states", "-1")[0] == 2


@pytest.mark.parametrize(
    ("kind", "more", "most"),
    [
        ("redrafter", ("--exit", "16", "--rank", "17"), 16),
        ("medusa", ("--rank", "300"), 256),
        ("medusa", ("--rank", "101", "--kept", "100"), 100),
        ("hydra", ("--rank", "300"), 256),
        ("eagle", ("--output", "own", "--rank", "257"), 256),
        ("block", ("--output", "own", "--rank", "1000"), 256),
    ],
)
def test_a_rank_that_makes_nothing_thinner_is_refused_before_labels_are_made(
    command: Callable[..., tuple[int, str]], tmp_path: Path, kind: str, more: tuple[str, ...], most: int
) -> None:
    code, said = command(kind, *more)
    assert code == 2
    assert f"is above {most}, the rank of the whole output matrix" in said
    assert not (tmp_path / "head" / "labels").exists()


def test_a_folder_of_another_kind_of_head_is_not_gone_on_with(lm: LanguageModel, tmp_path: Path) -> None:
    losses(workshop(lm, tmp_path, SMALL["medusa"], epochs=1.0))
    with pytest.raises(InputError, match="holds a training with other settings or texts"):
        losses(workshop(lm, tmp_path, SMALL["eagle"], epochs=1.0))


def test_a_training_says_what_it_was_measured_with(lm: LanguageModel, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(judging, "PROMPTS", 1)
    monkeypatch.setattr(judging, "WRITTEN", 8)
    found = watched(workshop(lm, tmp_path, SMALL["block"], held_out=0.2), ["- a text"])
    assert found.measured.keys() == {"shared", "none"}
    assert found.bytes < 1_000_000
    assert described(tmp_path)["bytes"] == found.bytes
