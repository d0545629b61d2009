"""Tiny random models of transformers' own classes: what they write is transformers' text, or they are refused with the
true reason; and the sweep, which opens them from folders, sees what is wrong."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

import paceline
from paceline.cli import main
from paceline.errors import InputError
from paceline.targets.hf import probe
from paceline.targets.hf.interface import ForwardCache
from paceline.targets.hf.load import load_target
from paceline.targets.hf.target import HFTarget
from paceline_lab.check import families
from paceline_lab.check.families import Support, examine
from paceline_lab.check.tiny import build, configuration

FOUND = [
    ("llama4_text", "attention", Support.ALONE, "packed, chains"),  # positions are counted by packed rows
    ("bigbird_pegasus", "small", Support.ALONE, "packed, chains"),
    ("phimoe", "longrope", Support.EXACT, ""),  # a scale is chosen by the largest position; the prompt is read again
    ("doge", "switches", Support.SHORT, "up to position 16"),  # keys are chosen by rank
    ("bamba", "attention", Support.EXACT, "packed"),  # a class for recurrent layers, with none of them
    ("bamba", "small", Support.EXACT, "packed"),
    ("granitemoehybrid", "attention", Support.EXACT, "packed"),
    ("deepseek_v3", "small", Support.EXACT, "masked"),
    ("gemma3", "switches", Support.EXACT, "packed"),  # a vision model on text
    ("gemma4", "small", Support.EXACT, "masked"),  # heads of other widths in its full layers
    ("jamba", "small", Support.EXACT, "packed"),
    ("deepseek_v4", "small", Support.REFUSED, "compressed_sparse_attention"),
    ("glm_moe_dsa", "small", Support.REFUSED, "indexed_attention, which are not supported yet"),
    ("minimax", "small", Support.EXACT, "packed"),  # states in a cache of its own
    ("zaya", "switches", Support.EXACT, "packed"),  # convolutions in front of attention
    ("recurrent_gemma", "switches", Support.EXACT, "packed"),  # states as attributes of modules
    ("xlstm", "switches", Support.EXACT, "packed"),  # three tensors for each layer
    ("rwkv", "small", Support.EXACT, "packed"),  # no cache, but an argument for all states
    ("qwen4_exp_text", "small", Support.EXACT, "masked"),  # embeddings of n-grams; keys are chosen by an indexer
    ("inkling2_text", "switches", Support.EXACT, "masked"),  # counts rows to get their distances
    ("deepseek_v4", "small", Support.REFUSED, "compressed_sparse_attention, .* not supported yet"),
    ("xlnet", "small", Support.REFUSED, "takes no cache"),  # its text may be of any length, which it calls -1
    ("openai-gpt", "small", Support.REFUSED, "takes no cache of keys and values"),
    ("cpmant", "small", Support.REFUSED, r"fails behind cached rows \(RuntimeError\)"),
]


@pytest.mark.parametrize(("model_type", "variant", "verdict", "reason"), FOUND)
def test_what_becomes_of_a_type(model_type: str, variant: str, verdict: Support, reason: str) -> None:
    found = examine(model_type, variant)
    assert found is not None
    assert found.verdict is verdict, found
    assert re.search(reason, found.reason)


@pytest.mark.parametrize(("floor", "dtype"), [(40, torch.float32), (300, torch.float32), (300, torch.bfloat16)])
@pytest.mark.parametrize("claims", [True, False])
def test_a_switch_behind_the_probed_text_is_probed_too(
    floor: int, dtype: torch.dtype, claims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it shows in a short text. In float32 it is found even if the cache never says an untrue length."""
    config = configuration("llama4_text", "attention")
    assert config is not None
    config.floor_scale = floor
    if not claims:
        monkeypatch.setattr(probe, "_counts_rows", lambda *_: False)
        dtype = torch.float32
    with pytest.warns(UserWarning, match="sibling|several sequences") as said:
        limits = load_target(build(config).to(dtype)).limits
    assert (limits.trees, limits.alone, len(said)) == (False, True, 2)


def test_a_wide_window_that_a_model_draws_by_the_index_of_a_key_allows_no_siblings() -> None:
    config = configuration("gpt_neo", "small")
    assert config is not None
    config.window_size = 256
    with pytest.warns(UserWarning, match="sibling"):
        assert not load_target(build(config)).limits.trees


def test_masks_that_count_keys_do_not_shorten_texts() -> None:
    config = configuration("gemma4_unified", "switches")
    assert config is not None
    config.text_config.sliding_window, config.text_config.max_position_embeddings = 600, 900
    with pytest.warns(UserWarning, match="sibling"):
        target = load_target(build(config))
    assert (target.context_length, target.trusted) == (900, None)


def test_the_sweep_sees_an_indexer_with_the_keys_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, right = families._opened, ForwardCache.update_indexer

    def planted(saved: families.Saved) -> HFTarget:
        target = opened(saved)
        monkeypatch.setattr(ForwardCache, "update_indexer", lambda *call: right(*call).roll(4, 1))
        return target

    monkeypatch.setattr(families, "_opened", planted)
    found = examine("qwen4_exp_text", "small")
    assert found is not None
    assert found.verdict is Support.WRONG


def test_the_sweep_sees_rows_that_depend_on_other_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_probe_further", lambda target, **_: None)
    monkeypatch.setattr(probe, "_counts_rows", lambda *_: False)
    found = examine("llama4_text", "attention")
    assert found is not None
    assert found.verdict is Support.WRONG
    assert "plain in a batch" in found.reason


def test_wrong_and_crash_are_failures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--families", "opt"]) == 0
    assert "1 configurations: 1 exact" in capsys.readouterr().out
    monkeypatch.setattr(families, "load_target", lambda model, **_: 1 / 0)
    assert main(["check", "--families", "opt"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert main(["check", "--families", "nothing"]) == 2


def refuse_whole_folders(patch: pytest.MonkeyPatch) -> None:
    def refusing(folder: Path, **_: Any) -> None:
        raise InputError(f"{folder} is not as it should be")

    patch.setattr(families, "load_target", refusing)


def save_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreTrainedModel, "save_pretrained", lambda *given, **named: 1 / 0)


def save_a_part(patch: pytest.MonkeyPatch) -> None:
    honest = PreTrainedModel.save_pretrained

    def saved(model: PreTrainedModel, folder: Path, **options: Any) -> None:
        del options["max_shard_size"]
        honest(model, folder, **options)
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.norm.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    patch.setattr(PreTrainedModel, "save_pretrained", saved)


@pytest.mark.parametrize(
    ("happen", "verdict", "reason"),
    [
        (refuse_whole_folders, Support.CRASH, "^llama is not as it should be$"),
        (save_nothing, Support.UNAVAILABLE, "^transformers does not save it: ZeroDivisionError"),
        (save_a_part, Support.UNAVAILABLE, "^transformers does not open what it saves: without model.norm.weight$"),
    ],
)
def test_the_folder_decides(
    happen: Callable[[pytest.MonkeyPatch], None], verdict: Support, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is refused here and opens there is a failure, and one that transformers spoils is not."""
    happen(monkeypatch)
    found = examine("llama", "small")
    assert found is not None
    assert found.verdict is verdict, found
    assert re.search(reason, found.reason), found


def test_generate_goes_no_further_than_a_model_can_be_trusted() -> None:
    config = configuration("doge", "switches")
    assert config is not None
    model = build(config)
    ids = torch.from_numpy(np.arange(5, 9))[None]
    asked = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ours = model.generate(ids, max_new_tokens=12, custom_generate=paceline.custom_generate("lookup"), **asked)
        assert torch.equal(ours, model.generate(ids, max_new_tokens=12, **asked))
        with pytest.raises(ValueError, match="up to position 16 and may have to write up to 17"):
            model.generate(ids, max_new_tokens=13, custom_generate=paceline.custom_generate("lookup"), **asked)


def test_text_prompts_of_vision_models_are_no_wish_for_pictures() -> None:
    config = configuration("gemma3", "small")
    assert config is not None
    config.mm_tokens_per_image, config.vision_config.image_size, config.vision_config.patch_size = 4, 64, 16
    model = build(config)
    ids = torch.from_numpy(np.arange(5, 12))[None]
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
    plain = model.generate(ids, **asked)
    drafted = paceline.custom_generate("lookup")
    types = torch.zeros_like(ids)
    assert torch.equal(plain, model.generate(ids, custom_generate=drafted, token_type_ids=types, **asked))
    picture = torch.zeros(1, 3, 64, 64)
    with pytest.raises(ValueError, match="pictures, videos and sounds are not served"):
        model.generate(ids, custom_generate=drafted, pixel_values=picture, **asked)
