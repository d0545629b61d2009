"""The tools that make a small hybrid model and its twin: the training learns, and the twin has the same function."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM

from paceline.errors import InputError
from tools import hybrid_twin, pocket_hybrid
from tools.hybrid_twin import chosen, parameters, twin, widened_config
from tools.pocket_hybrid import Recipe, Trainer, blank, train

TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])


@pytest.fixture
def tiny() -> Qwen3_5ForCausalLM:
    """Every weight is random, norms as well: a norm of ones would not show a wrong scale."""
    model = blank({**TINY, "num_hidden_layers": 8}, vocab=64)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def test_the_training_learns_a_text() -> None:
    tokens = np.tile(np.arange(16, dtype=np.uint16), 64)
    recipe = Recipe(window=64, long_window=128, tokens_per_step=256, peak_rate=1e-2)
    trainer = Trainer(blank(TINY, vocab=64), tokens, recipe)
    before = trainer.held_out_loss(tokens, 64)
    train(trainer, lambda: trainer.steps / 40, lambda _, __: True)
    assert trainer.steps == 40
    assert trainer.held_out_loss(tokens, 64) < before / 4


def test_a_saved_model_is_a_folder_of_transformers(tmp_path: Path) -> None:
    model = blank({**TINY, "num_hidden_layers": 4}, vocab=8192)
    pocket_hybrid.save(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert loaded.generation_config.do_sample
    rounded = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    assert all(torch.equal(weight, rounded[name]) for name, weight in loaded.state_dict().items())
    assert len(list(pocket_hybrid.samples(tmp_path, torch.device("cpu")))) == len(pocket_hybrid.BEGINNINGS)


@torch.no_grad()
def test_a_twin_has_the_same_function(tiny: Qwen3_5ForCausalLM) -> None:
    wide = twin(tiny, widened_config(tiny.config, layers=12, units=80)).eval()
    ours, theirs = wide(input_ids=IDS).logits, tiny(input_ids=IDS).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    texts = [model.generate(IDS, max_new_tokens=20, do_sample=False) for model in (tiny, wide)]
    assert torch.equal(*texts)


def test_a_twin_rounds_no_weight(tiny: Qwen3_5ForCausalLM) -> None:
    half = tiny.to(torch.bfloat16)
    wide = twin(half, widened_config(half.config, layers=12, units=80))
    last = {name: weight for name, weight in half.named_parameters() if "layers.7." in name}
    assert last
    for name, weight in last.items():
        large = wide.get_parameter(name.replace("layers.7.", "layers.11."))
        front = large[tuple(slice(length) for length in weight.shape)]
        assert torch.equal(front / hybrid_twin.factor(name.split(".")[-2]), weight), name


def test_a_twin_has_the_size_that_was_asked_for() -> None:
    small = blank(pocket_hybrid.SHAPE, vocab=8192).config
    shape = chosen(small, 150e6)
    assert parameters(shape) == pytest.approx(150e6, rel=0.01)
    assert (shape.num_hidden_layers, shape.hidden_size) == (16, 1024)
    with pytest.raises(InputError, match="the nearest twin has"):
        chosen(small, 10e6)


def test_a_twin_is_a_folder(tiny: Qwen3_5ForCausalLM, tmp_path: Path) -> None:
    tiny.save_pretrained(tmp_path / "small")
    (tmp_path / "small" / "tokenizer.json").write_text("{}")
    shape = widened_config(tiny.config, layers=8, units=80)
    said = hybrid_twin.write(tmp_path / "small", tmp_path / "wide", parameters(shape))
    assert said.endswith("8 layers, 128 wide, MLP 80")
    assert (tmp_path / "wide" / "tokenizer.json").exists()
    assert parameters(Qwen3_5ForCausalLM.from_pretrained(tmp_path / "wide").config) == parameters(shape)
