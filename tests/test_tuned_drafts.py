"""A draft model that learns together with its streams: what it learns, its folder, and its drafts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import paceline
from families import build
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.drafters import make_drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.drafters.networks.heads import CONFIG, STREAMS, method_for
from paceline.drafters.networks.streaming import Streaming
from paceline.drafters.networks.streaming.adapter import low_rank
from paceline.drafters.networks.streaming.network import StreamingNetwork
from paceline.errors import InputError
from paceline.targets.base import Request, Want
from paceline.targets.hf.plain_copy import plain_copy
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.streams import sizes_of
from paceline.targets.hf.target import HFTarget
from paceline_make.commands import train
from paceline_make.heads import judging
from paceline_make.heads.kinds.base import Ground
from paceline_make.heads.kinds.streaming import StreamingKind
from paceline_make.heads.kinds.table import described
from paceline_make.heads.kinds.tuned import TunedDraft, TunedKind, TunedLesson
from paceline_make.heads.labels import Labels, LabelSettings, Teacher, joined
from paceline_make.heads.loss import Objective
from paceline_make.heads.run import Recipe, Workshop
from paceline_make.heads.store import check
from paceline_make.heads.watch import measured, watched
from scoring import load_quietly
from streaming import scored_streams
from test_streaming import Both, agree
from test_train_heads import AHEAD, TEXT, WINDOW, Stopped, losses
from test_train_redrafter import stream

KINDS: dict[str, Any] = {"full": TunedKind(layers=2), "lora": TunedKind(layers=1, rank=4)}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket-draft", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def author() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def tiny() -> HFTarget:
    return load_quietly(build("llama").requires_grad_(False))


def workshop(lm: LanguageModel, out: Path, kind: Any, author: LanguageModel | None = None, **more: Any) -> Workshop:
    passages = [f"{number}. {TEXT}" for number in range(40)]
    labels = LabelSettings(kind=more.pop("labels", "soft"), ahead=AHEAD, window=WINDOW)
    recipe = {"positions": 160, "epochs": 2.0, "batch": 48, "held_out": 0.0, **more}
    return Workshop(lm, passages, Recipe(head=kind, labels=labels, **recipe), out, author=author)


@pytest.fixture(scope="module")
def folder(lm: LanguageModel, author: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for a target."""
    made = workshop(lm, tmp_path_factory.mktemp("tuned"), KINDS["full"], author)
    losses(made)
    return made.out


# --- what it learns ---


def drawn(target: HFTarget, rank: int = 0) -> TunedDraft:
    """Streams of a model in its last two layers, with maps that do something."""
    ground = Ground(target, stream(64, 97).ids, 3)
    head = TunedKind(layers=2, rank=rank).fitted(target).blank(ground)
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in (*head.adapter.parameters(), *head.maps.parameters()):
            weight.normal_(0, 0.1)
    return head


def lesson_of(target: HFTarget, head: TunedDraft, rank: int = 0) -> TunedLesson:
    kind = TunedKind(layers=2, rank=rank).fitted(target)
    lesson = kind.lesson(head, Ground(target, stream(64, 97).ids, 3), Objective())
    lesson.unit = 16
    return lesson


def labelled(target: HFTarget) -> Labels:
    settings, reading = LabelSettings(kind="soft", ahead=3, window=16), TunedKind(layers=2).fitted(target).reading
    teacher = Teacher(target, stream(64, 97), settings, reading)
    return joined([teacher.label(0), teacher.label(1)])


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_it_is_trained_as_the_written_model_computes(name: str, rank: int, tmp_path: Path) -> None:
    """The lesson's predictions at a position are those of the model in the folder: of its own row, and of streams."""
    target = load_quietly(build(name).requires_grad_(False))
    head = drawn(target, rank)
    batch = labelled(target)
    with torch.no_grad():
        predicted = [logits.clone() for logits in lesson_of(target, head, rank).predict(batch, 0)[1]]
    written = load_quietly(head.merged(torch.float32))
    assert batch.text is not None
    for row in (0, 5, 15, 16, 25):
        window = batch.text[row // 16 * 16 : row + 1].tolist()
        own, streams = scored_streams(written, window, [], [], -1, head.adapter)
        wanted = torch.cat([torch.as_tensor(own)[None], streams])
        found = torch.stack([logits[row] for logits in predicted])
        assert found.shape == wanted.shape == (4, 97)
        assert (found - wanted).abs().max() < 1e-3 * wanted.std()
    plain, _ = scored_streams(target, window, [], [], -1, head.adapter)
    assert torch.allclose(torch.as_tensor(plain), wanted[0], atol=1e-5) == (rank == 0)


@pytest.mark.parametrize("rank", [0, 4])
def test_rows_of_both_kinds_teach_what_learns(tiny: HFTarget, rank: int) -> None:
    """Each prediction alone moves the weights before the layer that streams enter, or the maps beside them."""
    head, batch = drawn(tiny, rank), labelled(tiny)
    lesson = lesson_of(tiny, head, rank)
    early = [*head.model.model.layers[0].parameters()] if not rank else [*head.maps[0].parameters()]
    for step in (0, 2):
        head.zero_grad()
        _, predictions = lesson.predict(batch, 0)
        list(predictions)[step].square().mean().backward()
        assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in early)
    frozen = [weight for weight in head.model.parameters() if weight.grad is not None]
    assert bool(frozen) == (rank == 0)


def test_maps_begin_as_nothing(tiny: HFTarget) -> None:
    target = tiny
    head = TunedKind(layers=2, rank=4).fitted(target).blank(Ground(target, stream(64, 97).ids, 3))
    before, after = target.model.state_dict(), head.merged(torch.float32).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].float(), after[name]) for name in before)
    assert not low_rank([sizes_of(target.modules.layers[0])], 0)[0]  # type: ignore[union-attr]


def test_labels_are_the_targets_and_states_the_models_own(lm: LanguageModel, author: LanguageModel) -> None:
    text, settings = stream(64, lm.target.vocab_size), LabelSettings(kind="soft", ahead=3, window=16)
    kinds = StreamingKind(layers=2).fitted(lm.target), TunedKind(layers=2).fitted(lm.target)
    for kind in kinds:
        own, other = Teacher(lm.target, text, settings, kind.reading), Teacher(author.target, text, settings)
        both = Teacher(author.target, text, settings, kind.reading, lm.target)
        one, two, three = (each.label(1) for each in (own, other, both))
        assert torch.equal(three.tokens, two.tokens)
        assert not torch.equal(three.tokens, one.tokens)
        assert torch.equal(three.states, one.states)
        assert three.law_ids is not None
        assert two.law_ids is not None
        assert torch.equal(three.law_ids[:, kind.reading.next :], two.law_ids)
        check(three, both)
    assert three.law_ids.shape[1] == 4
    assert three.states.shape == (16, 0)
    rows = author.target.open()
    request = Request.of_prompt(rows, text.ids[16:32].astype(np.int64), Want(logits=True))
    (scores,) = author.target.score([request])
    logs = (torch.as_tensor(scores.logits) / settings.temperature).log_softmax(-1)
    assert three.law_logs is not None
    assert torch.allclose(three.law_logs[:, 0], logs.gather(1, three.law_ids[:, 0]), atol=1e-4)
    rows.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_was_stopped_gives_the_same_model(
    lm: LanguageModel, author: LanguageModel, tmp_path: Path, kind: str
) -> None:
    whole = workshop(lm, tmp_path / "whole", KINDS[kind], author, save_every=2)
    count = len(losses(whole))
    with pytest.raises(Stopped):
        losses(workshop(lm, tmp_path / "parts", KINDS[kind], author, save_every=2), steps=3)
    assert not (tmp_path / "parts" / CONFIG).exists()
    assert len(losses(workshop(lm, tmp_path / "parts", KINDS[kind], author, save_every=2))) == count - 2
    for file in ("model.safetensors", STREAMS, CONFIG):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    with pytest.raises(InputError, match="holds a training with other settings or texts"):
        losses(workshop(lm, tmp_path / "parts", KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_learnt(lm: LanguageModel, author: LanguageModel, tmp_path: Path, kind: str) -> None:
    """The next token and those behind it: the written model is nearer to its target's laws, at their temperature."""
    made = workshop(lm, tmp_path, KINDS[kind], author, epochs=6.0, decay=0.05, rate=5e-4 if kind == "full" else 2e-3)
    losses(made)
    before, after = (_apart(made, head) for head in (made.blank(), made.kind.read(tmp_path)))
    assert after[0] < 0.6 * before[0]
    assert all(one < other for one, other in zip(after, before, strict=True))


def _apart(made: Workshop, head: TunedDraft) -> list[float]:
    """The divergences of a model's and its streams' laws from its target's, on the text that was learnt."""
    batch = joined([made.teacher.label(number) for number in range(8)])
    assert batch.law_ids is not None
    assert batch.law_logs is not None
    temperature = made.recipe.labels.temperature
    with torch.no_grad():
        logs = [(each / temperature).log_softmax(-1) for each in made.lesson(head).predict(batch, 0)[1]]
    own = torch.stack([each.gather(1, batch.law_ids[:, step]) for step, each in enumerate(logs)], dim=1)
    return (batch.law_logs.exp() * (batch.law_logs - own)).sum(-1).mean(0).tolist()


# --- its drafts ---


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_drafts_are_those_of_the_tuned_model_alone(
    folder: Path, temperature: float, hidden: bool, compiled: bool
) -> None:
    """Of both forms, level by level and as one call, under both rules."""
    target = HFTarget(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), name=str(folder))
    target.compiles = compiled
    both = Both(prepare(target), folder, hidden=hidden, streams=2)
    assert both.drafters[1].network.adapter.rank == 0
    drafted, forwards = agree(both, 6, temperature=temperature, seed=3)
    assert drafted >= forwards > 6


@pytest.mark.parametrize("spec", ["streaming:head='{}'", "streaming:model='{}'", "auto:head='{}'"])
def test_the_text_is_the_targets(author: LanguageModel, folder: Path, spec: str) -> None:
    how: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 16}
    prompts = ["The old house stood at", "Stary dom"]
    plain = author.generate_batch(prompts, method="plain", **how)
    ours = author.generate_batch(prompts, method=spec.format(folder), planner="fixed:6", **how)
    assert [one.tokens for (one,) in ours] == [one.tokens for (one,) in plain]
    rounds = [each for (one,) in ours for each in one.rounds]
    assert 0 < sum(each.counts["draft_forwards"] for each in rounds) <= sum(each.drafted for each in rounds)


def test_the_command_lines_usual_draft_model_gives_way_to_the_folders(folder: Path) -> None:
    for spec in (f"streaming:head='{folder}'", f"mirror:draft=streaming,head='{folder}'"):
        drafter: Any = make_drafter(spec, "pocket-draft")
        assert drafter._named == str(folder)
    other: Any = make_drafter(f"streaming:head='{folder}'", "pocket-foreign")
    assert other._named == "pocket-foreign"


# --- its folder ---


def test_its_folder_is_an_ordinary_model_and_its_streams(lm: LanguageModel, folder: Path) -> None:
    assert method_for(folder) == "streaming"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = lm.target.model.state_dict()
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(before[name].shape == after[name].shape for name in before)
    assert not torch.allclose(before["model.layers.0.mlp.up_proj.weight"], after["model.layers.0.mlp.up_proj.weight"])
    opened = paceline.load(folder, dtype="float32")
    assert opened.vocabulary is not None
    assert lm.vocabulary is not None
    assert opened.vocabulary.fingerprint == lm.vocabulary.fingerprint
    assert opened.target.eos == lm.target.eos
    found = described(folder)
    assert (found["method"], found["shape"]["rank"], found["shape"]["streams"]) == ("streaming", 0, AHEAD)
    assert found["parameters"] == sum(weight.numel() for weight in model.parameters()) + AHEAD * 128
    assert found["trained"]["author"] == "pocket"


def broken(lm: LanguageModel, folder: Path, out: Path, change: Callable[[Path], object]) -> str:
    """What is said of a folder with something changed."""
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("labels", "training.pt"))
    change(out)
    with pytest.raises(InputError) as error:
        Streaming(head=out).fit(lm.target, lm.vocabulary)
    assert "\n" not in str(error.value)
    return str(error.value)


def changed(**own: Any) -> Callable[[Path], object]:
    """Another part of this project's in the configuration; none if nothing is given."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        part = config.pop("paceline")
        if own:
            config["paceline"] = part | own
        (folder / CONFIG).write_text(json.dumps(config))

    return change


def test_damage_is_a_sentence(lm: LanguageModel, folder: Path, tmp_path: Path) -> None:
    whole = (folder / STREAMS).read_bytes()
    cut = broken(lm, folder, tmp_path / "1", lambda out: (out / STREAMS).write_bytes(whole[:-9]))
    assert f"{STREAMS} is damaged" in cut
    other = (folder / "model.safetensors").read_bytes()
    strange = broken(lm, folder, tmp_path / "2", lambda out: (out / STREAMS).write_bytes(other))
    assert f"{STREAMS} in {tmp_path / '2'} holds no embeddings of streams" in strange
    assert f"says nothing of its {STREAMS}" in broken(lm, folder, tmp_path / "3", changed())
    assert "it has 3 layers, and streams in 9" in broken(lm, folder, tmp_path / "4", changed(layers=9))
    assert "is damaged" in broken(lm, folder, tmp_path / "5", changed(layers="two"))
    assert "layers of an adapter of streams is at least 1" in broken(lm, folder, tmp_path / "6", changed(layers=0))
    assert "names 90 tokens" in broken(lm, folder, tmp_path / "7", changed(vocab_size=90))
    gone = broken(lm, folder, tmp_path / "8", lambda out: (out / STREAMS).unlink())
    assert "is no adapter of streams" in gone
    weights = (folder / "model.safetensors").read_bytes()
    cut = broken(lm, folder, tmp_path / "9", lambda out: (out / "model.safetensors").write_bytes(weights[:-9]))
    assert str(tmp_path / "9") in cut


@pytest.mark.parametrize("wrong", ["cut", "gone", "another"])
def test_a_damaged_model_is_described_by_a_sentence(folder: Path, tmp_path: Path, wrong: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("labels", "training.pt"))
    weights = out / "model.safetensors"
    if wrong == "another":
        build("gpt2").save_pretrained(tmp_path / "gpt2")
        shutil.copy(tmp_path / "gpt2/model.safetensors", weights)
        said = json.loads((tmp_path / "gpt2" / CONFIG).read_text())
        own = json.loads((out / CONFIG).read_text())["paceline"]
        (out / CONFIG).write_text(json.dumps({**said, "num_hidden_layers": said["n_layer"], "paceline": own}))
    else:
        weights.write_bytes(weights.read_bytes()[:-9])
    if wrong == "gone":
        weights.unlink()
    with pytest.raises(InputError) as error:
        described(out)
    assert "\n" not in str(error.value)
    assert str(out) in str(error.value)


def test_another_model_or_tokenizer_is_a_sentence(lm: LanguageModel, folder: Path, tiny: HFTarget) -> None:
    with pytest.raises(InputError, match="was trained for the model in that folder, not for pocket-draft"):
        Streaming(model=DraftModel.of(lm), head=folder)
    foreign = paceline.load("pocket-foreign", dtype="float32")
    with pytest.raises(InputError, match="has another tokenizer than pocket-foreign; draft with it by assistant"):
        foreign.generate("a", method=f"streaming:head='{folder}'", max_new_tokens=1)


# --- the command ---


@pytest.fixture
def command(
    lm: LanguageModel,
    author: LanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Runs ``paceline train streaming``; gives the exit code and what was said."""
    data = tmp_path / "data.txt"
    data.write_text("\n\n".join(f"{number}. {TEXT}" for number in range(20)))
    loaded = {"pocket-draft": lm, "pocket": author, "pocket-foreign": None}

    def load_model(options: Any) -> LanguageModel:
        return loaded[options.model] or paceline.load(options.model, dtype="float32")

    monkeypatch.setattr(train, "load_model", load_model)
    monkeypatch.setattr(judging, "PROMPTS", 1)
    monkeypatch.setattr(judging, "WRITTEN", 8)
    small = ("--ahead", "2", "--window", "16", "--positions", "64", "--epochs", "1", "--batch-size", "32")

    def run(*more: str) -> tuple[int, str]:
        where = ("--model", "pocket-draft", "--data", str(data), "--out", str(tmp_path / "draft"))
        code = main(["train", "streaming", *where, *small, *more])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_the_command_says_what_drafts_are_worth(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, said = command("--form", "paper", "--tune", "lora", "--target", "pocket", "--held-out", "0.2")
    assert code == 0, said
    assert f"--model pocket --method streaming:head={tmp_path / 'draft'}" in said
    assert "tokens a round of pocket" in said
    card = (tmp_path / "draft" / "CARD.md").read_text()
    assert card.startswith("# A draft model with speculative streams, tuned from pocket-draft\n")
    assert "| labels | of pocket, soft" in card
    assert "tokens a round of pocket on the same texts" in card
    assert "drafted tokens a forward of the draft model" in card
    assert "maps of rank 32 beside its linear ones" in card


def test_wrong_options_are_a_sentence(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    for options, said in {
        ("--tune", "full"): "--tune full is of --form paper; give that, or leave it out",
        ("--form", "paper", "--rank", "8"): "--rank 8 is of maps of low rank; give --tune lora, or leave it out",
        ("--form", "paper", "--int8"): "--int8 stores heads, and --form paper writes a model; leave it out",
        ("--form", "paper", "--layers", "9"): "--layers 9 are more than the 3 of pocket-draft; give fewer",
        ("--form", "paper", "--tune", "lora", "--rank", "99"): "--rank 99 is above 64",
        ("--target", "pocket", "--labels", "truth"): "are the text's own tokens, whatever pocket would write",
        ("--target", "pocket-foreign"): "draft model pocket-draft has a different tokenizer from pocket-foreign",
    }.items():
        code, found = command(*options)
        assert code == 2
        assert said in found
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize(("name", "options"), [("pocket-draft", {"quantize": "int8"}), ("pocket-draft+ballast:8M", {})])
def test_weights_that_cannot_learn_are_a_sentence(name: str, options: dict[str, str], tmp_path: Path) -> None:
    lm = paceline.load(name, dtype=None if options else "float32", **options)
    with pytest.raises(InputError, match=r"leave integers|train the model without it"):
        losses(workshop(lm, tmp_path, KINDS["full"]))


def test_another_structure_is_a_sentence() -> None:
    with pytest.raises(InputError, match="llama's structure"):
        TunedKind(layers=1).fitted(load_quietly(build("gpt2").requires_grad_(False)))


def test_an_adapters_folder_is_not_gone_on_with(lm: LanguageModel, tmp_path: Path) -> None:
    """Also where all options are the same in both forms."""
    losses(workshop(lm, tmp_path, StreamingKind(layers=1, rank=4)))
    with pytest.raises(InputError, match="holds a training with other settings"):
        losses(workshop(lm, tmp_path, TunedKind(layers=1, rank=4)))


def test_a_target_may_pad_its_vocabulary_further(tiny: HFTarget) -> None:
    """As the large models of a family do: tokens that the draft model lacks are not learnt."""
    padded = build("llama")
    padded.resize_token_embeddings(tiny.vocab_size + 40, mean_resizing=False)
    with torch.no_grad():
        padded.lm_head.weight[tiny.vocab_size :].mul_(50)
    author, kind = load_quietly(padded.requires_grad_(False)), TunedKind(layers=2).fitted(tiny)
    text = stream(64, tiny.vocab_size)
    for labels in ("soft", "sampled"):
        teacher = Teacher(author, text, LabelSettings(kind=labels, ahead=3, window=16), kind.reading, tiny)
        batch = joined([teacher.label(0), teacher.label(1)])
        assert batch.tokens.max() >= tiny.vocab_size
        lesson = lesson_of(tiny, drawn(tiny))
        learnt = lesson.learn(batch)
        assert learnt.loss.isfinite()
        assert not learnt.right[batch.tokens >= tiny.vocab_size].any()


def test_the_folder_says_all_ends_of_a_text(lm: LanguageModel, tmp_path: Path) -> None:
    """Also those that only the generation_config.json of the model before says."""
    before = tmp_path / "before"
    plain_copy(lm.target).save_pretrained(before)  # type: ignore[arg-type]
    assert lm.vocabulary is not None
    lm.vocabulary.tokenizer.save_pretrained(before)
    (before / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    made = workshop(paceline.load(before, dtype="float32"), tmp_path / "after", KINDS["full"], positions=48, epochs=1.0)
    losses(made)
    assert paceline.load(made.out).target.eos == {1, 7}


def test_what_is_measured_depends_on_no_clock(lm: LanguageModel, tmp_path: Path) -> None:
    """All streams of a text that is written alone: in a batch it has fewer, and by default as many as are fastest."""
    made = workshop(lm, tmp_path, StreamingKind(layers=1, rank=4))
    losses(made)
    made.held = [f"{number}. {TEXT}" for number in range(9)]
    counts = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        grown = StreamingNetwork._grown
        patch.setattr(judging, "WRITTEN", 6)
        patch.setattr(StreamingNetwork, "_grown", lambda *given: (counts.append(given[-1]), grown(*given))[1])
        measured(made)
    assert set(counts) == {AHEAD}


def test_what_is_said_after_a_training(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another target tokens a round are not said."""
    monkeypatch.setattr(judging, "PROMPTS", 1)
    monkeypatch.setattr(judging, "WRITTEN", 8)
    found = watched(workshop(lm, tmp_path, KINDS["full"], held_out=0.2), ["- a text"])
    assert found.measured.keys() == {"shared"}
    assert found.accepted is None
    assert found.bytes > 2_000_000
