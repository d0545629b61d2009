"""Making the bundled models: resumable to the bit, on text that may be used, judged on text that was not read."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from paceline.errors import InputError
from paceline.targets.hf.load import load_target
from paceline.targets.pocket import bundle
from paceline.targets.pocket.bundle import WEIGHTS
from paceline.targets.pocket.names import POCKET_NAMES
from paceline.vocabulary import Vocabulary
from paceline_make.models.loop import TrainingRun, held_out_loss, windows
from paceline_make.models.schedule import ModelSchedule
from tools import corpus, pocket, tokenizers
from tools.corpus import SOURCES
from tools.plans import PLANS, ModelPlan
from tools.pocket import Workshop

SCHEDULE = ModelSchedule(
    tokens=6 * 64, window=16, long_window=32, long_share=0.34, tokens_per_step=64, warmup=2, save_every=2
)
SHAPE = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS = {
    "en": ("the", "clocks", "in", "village", "had", "long", "since", "stopped", "and", "nobody", "went", "to", "wind"),
    "pl": ("rzeka", "szumiała", "pod", "mostem", "jak", "co", "wieczór", "a", "żółw", "patrzył", "na", "gęś", "długo"),
    "uk": ("увечері", "над", "річкою", "стояв", "туман", "і", "ніхто", "не", "знав", "куди", "ця", "стежка", "їжакам"),
}


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        )
    )


@pytest.fixture
def tokens() -> NDArray[np.uint16]:
    return np.random.default_rng(0).integers(0, 50, 700).astype(np.uint16)


def silent(*_: object) -> None: ...


class Stopped(Exception):
    pass


def stop_at(step: int, wanted: int) -> None:
    if step == wanted:
        raise Stopped


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])


@pytest.mark.parametrize("taught", [False, True], ids=["on text", "by a teacher"])
@pytest.mark.parametrize("stop", [3, 4, 5], ids=["between saves", "at a save", "in the long windows"])
def test_a_resumed_run_is_the_uninterrupted_one(
    taught: bool, stop: int, tokens: NDArray[np.uint16], tmp_path: Path
) -> None:
    teacher = tiny().eval() if taught else None
    whole = TrainingRun(tiny(), tokens, SCHEDULE, tmp_path / "whole.pt", teacher)
    whole.train(silent)

    broken = TrainingRun(tiny(), tokens, SCHEDULE, tmp_path / "parts.pt", teacher)
    with pytest.raises(Stopped):
        broken.train(lambda step, *_: stop_at(step, stop))
    again = TrainingRun(tiny(), tokens, SCHEDULE, tmp_path / "parts.pt", teacher)
    assert 0 < again.step <= stop
    again.train(silent)

    assert again.step == whole.step == SCHEDULE.steps
    assert torch.equal(weights_of(again.model), weights_of(whole.model))
    assert not torch.equal(weights_of(again.model), weights_of(tiny()))
    assert [file.name for file in tmp_path.glob("*.part")] == []


def test_the_shortest_text_fills_a_step(tokens: NDArray[np.uint16], tmp_path: Path) -> None:
    """Of windows as long as a step, from any beginning."""
    schedule = ModelSchedule(tokens=64, tokens_per_step=32).within(32)
    with pytest.raises(InputError, match="the text has 64 tokens, and this training needs 65"):
        TrainingRun(tiny(), tokens[:64], schedule, tmp_path / "run.pt")
    run = TrainingRun(tiny(), tokens[:65], schedule, tmp_path / "run.pt")
    run.train(silent)
    assert run.step == 2


def test_a_finished_run_is_left_alone(tokens: NDArray[np.uint16], tmp_path: Path) -> None:
    TrainingRun(tiny(), tokens, SCHEDULE, tmp_path / "run.pt").train(silent)
    before = (tmp_path / "run.pt").read_bytes()
    TrainingRun(tiny(), tokens, SCHEDULE, tmp_path / "run.pt").train(lambda *_: pytest.fail("trained on"))
    assert (tmp_path / "run.pt").read_bytes() == before


def test_a_run_that_diverges_is_told(tokens: NDArray[np.uint16], tmp_path: Path) -> None:
    model = tiny()
    model.model.norm.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="the loss is nan at step 0; lower the learning rates"):
        TrainingRun(model, tokens, SCHEDULE, tmp_path / "run.pt").train(silent)
    assert not (tmp_path / "run.pt").exists()


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    text = np.tile(np.arange(50, dtype=np.uint16), 30)
    run = TrainingRun(
        tiny(), text, replace(SCHEDULE, tokens=60 * 64, matrix_rate=0.02, other_rate=0.02), tmp_path / "run.pt"
    )
    before = held_out_loss(run.model, text, 64)
    run.train(silent)
    assert held_out_loss(run.model, text, 64) < before / 2


def test_windows_read_every_token_once_per_pass() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    rows = windows(tokens, 50, np.random.default_rng(1))
    targets = np.sort(rows[:, 1:].reshape(-1))
    assert np.array_equal(targets, np.arange(targets[0], targets[0] + len(targets)))
    assert len(targets) > 1000 - 2 * 50


def test_no_licence_asks_for_share_alike() -> None:
    for source in SOURCES:
        assert "SA" not in source.licence
        assert any(kind in source.licence for kind in ("public domain", "CC0", "CC BY 4.0", "MIT"))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Files of invented sentences where the corpus looks for its sources."""
    folder = tmp_path / "text"
    random = np.random.default_rng(5)
    for source in SOURCES:
        file = folder / source.file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(random.choice(WORDS[source.language], 12)) + f" {number}." for number in range(700)]
        file.write_text("\n".join(lines), encoding="utf8")
    return folder


def test_held_out_text_is_never_trained_on(library: Path) -> None:
    for text in corpus.read(library):
        assert text.training
        assert text.held_out
        assert not set(text.training) & set(text.held_out)
        together = "\n".join([*text.training, *text.held_out])
        assert together == (library / text.source.file).read_text(encoding="utf8")


def test_a_missing_text_is_told(library: Path) -> None:
    (library / SOURCES[2].file).unlink()
    with pytest.raises(ValueError, match=rf"no text at .*{SOURCES[2].file}; give --text the folder"):
        corpus.read(library)


def test_tokenizers_are_trained_on_every_language(library: Path) -> None:
    sample = corpus.sample_for_tokenizer(corpus.read(library), 20_000)
    for language in WORDS:
        assert any(WORDS[language][0] in passage for passage in sample)


@pytest.fixture(params=["byte-level", "unigram"])
def tokenizer(request: pytest.FixtureRequest, library: Path) -> PreTrainedTokenizerBase:
    make, size = {"byte-level": (tokenizers.byte_level, 420), "unigram": (tokenizers.unigram, 360)}[request.param]
    return make(corpus.sample_for_tokenizer(corpus.read(library), 20_000), size)


def test_a_tokenizer_spells_what_it_never_read(tokenizer: PreTrainedTokenizerBase) -> None:
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.table is not None
    for text in ("the clocks", "  two  spaces\n\n\tand a tab ", "Zażółć «їжак» 👩‍👩‍👧 中文\x00\ufeff", "12345", ""):
        ids = vocabulary.encode(text)
        assert vocabulary.text(ids) == text
        assert b"".join(vocabulary.token_bytes(int(token)) for token in ids) == text.encode()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> tuple[ModelPlan, ...]:
    """The bundled models in miniature."""
    kinds = {"byte-level": (tokenizers.byte_level, 420), "unigram": (tokenizers.unigram, 360)}
    small = tuple(replace(plan, shape=SHAPE, schedule=replace(SCHEDULE, seed=plan.schedule.seed)) for plan in PLANS)
    monkeypatch.setattr(pocket, "PLANS", small)
    monkeypatch.setattr(pocket, "TOKENIZERS", kinds)
    monkeypatch.setattr(pocket, "CHARACTERS", 20_000)
    return small


def test_from_text_to_installed_models(
    plans: tuple[ModelPlan, ...], library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, twice: what is finished is not made again, and the card tells what lies beside it."""
    models, work = tmp_path / "models", tmp_path / "work"
    monkeypatch.setattr(bundle, "MODELS", models)
    command = ["pocket", "--text", str(library), "--work", str(work), "--install", "--eager"]
    monkeypatch.setattr("sys.argv", command)
    pocket.main()
    made_at = (work / "pocket.pt").stat().st_mtime_ns
    pocket.main()
    assert (work / "pocket.pt").stat().st_mtime_ns == made_at
    workshop = Workshop(corpus.read(library), work, compiled=False)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["models", "text", "work"]
    card = (models / "CARD.md").read_text(encoding="utf8")
    for plan in plans:
        target = load_target(models / plan.name)
        made = workshop.finished(plan.name).bfloat16().state_dict()
        assert all(torch.equal(weight, made[name]) for name, weight in target.model.state_dict().items())
        assert target.fingerprint() in card
    for source in SOURCES:
        assert source.file in card
        assert source.licence in card


def test_unfinished_models_are_not_installed(plans: tuple[ModelPlan, ...], library: Path, tmp_path: Path) -> None:
    workshop = Workshop(corpus.read(library), tmp_path / "work", compiled=False)
    with pytest.raises(Stopped):
        workshop.make(plans[0], lambda step, *_: stop_at(step, 3))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "old").write_text("kept")
    with pytest.raises(ValueError, match=r"pocket stands at step 2 of 6; train it to the end first"):
        workshop.install(tmp_path / "models")
    assert (tmp_path / "models" / "old").read_text() == "kept"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["models", "text", "work"]


def test_models_too_large_for_the_package_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocket, "MOST_BYTES", 5)
    with (
        pytest.raises(ValueError, match="the weights are 6 bytes, over the 5"),
        pocket.replaced(tmp_path / "m") as fresh,
    ):
        (fresh / WEIGHTS).write_bytes(b"123456")
    assert list(tmp_path.iterdir()) == []


def test_installed_names_are_those_that_are_opened() -> None:
    assert tuple(plan.name for plan in PLANS) == POCKET_NAMES
