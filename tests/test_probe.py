"""What the probe finds out at load, and what is refused before it: every refusal is one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from engine import write
from families import FAMILIES, VOCAB, build
from paceline.drafters.lookup import Lookup
from paceline.targets import hub
from paceline.targets.base import Reach, Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf import probe, versions
from paceline.targets.hf.attention import AttentionOptions, MaskScratch, PackedKVCache, Segment
from paceline.targets.hf.interface import ForwardCache
from paceline.targets.hf.load import load_target, load_tokenizer
from paceline.targets.hf.own import Mode, Unsupported
from paceline.targets.hf.target import HFTarget
from paceline_lab.check.tiny import build as tiny
from paceline_lab.check.tiny import configuration
from scoring import CLOSE, CONTEXT, draft_for, filled, generated, load_quietly, path_gaps, score, target_of, tokens
from thinning import crossed

TEXT = tokens(CONTEXT)


def refusal(*given: Any, **options: Any) -> str:
    with pytest.raises(ValueError, match=r".") as told:
        load_target(*given, **options)
    sentence = str(told.value)
    assert "\n" not in sentence
    assert len(sentence) < 700
    return sentence


# --- rows that depend on other rows -------------------------------------------------------------------------


def quantised(states: Tensor) -> Tensor:
    """To 8 bits by one scale for all rows of the forward."""
    scale = states.abs().max() / 127
    return (states / scale).round() * scale


def with_loudest(states: Tensor) -> Tensor:
    return states * (1 + states.abs().max())


def with_capacity(states: Tensor) -> Tensor:
    """Four rows are served; the others go without, as where an expert's places are taken."""
    served = states.clone()
    served[:, 4:] = 0
    return served


def with_an_odd_kernel(states: Tensor) -> Tensor:
    """One row is right and many are, but not the few of a draft."""
    return 2 * states if 2 <= states.shape[-2] <= 8 else states


@pytest.mark.parametrize("dependence", [quantised, with_loudest, with_capacity, with_an_odd_kernel])
@pytest.mark.parametrize("name", ["llama", "falcon", "bloom"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_whose_rows_depend_on_each_other_is_refused(name: str, dependence: Any, dtype: torch.dtype) -> None:
    model = build(name, dtype)
    layer = next(m for m in model.get_decoder().modules() if isinstance(m, nn.ModuleList))[1]
    layer.mlp.register_forward_hook(lambda module, given, output: dependence(output))
    sentence = refusal(model)
    assert "cannot be drafted for without changing its text" in sentence
    assert sentence.endswith("choose another model")
    assert all(mode in sentence for mode in Mode)


@pytest.mark.parametrize(("name", "dtype"), crossed(FAMILIES, [torch.bfloat16, torch.float16]))
def test_rounding_is_not_taken_for_dependence(name: str, dtype: torch.dtype) -> None:
    """Seed 1 of `gpt_oss` sends a row of the probe to another expert in bfloat16."""
    exact = target_of(name)
    for seed in range(2):
        rounded = load_quietly(build(name, dtype, seed=seed))
        assert (rounded.mode, rounded.limits) == (exact.mode, exact.limits)


def test_a_model_that_scores_only_chains_is_clipped_to_them() -> None:
    with pytest.warns(UserWarning, match="BloomForCausalLM cannot score sibling drafts, so drafts are clipped"):
        target = load_target(build("bloom"))
    assert target.limits == target.reach(5) == Reach(trees=False)


def test_memory_that_runs_out_is_no_reason_to_refuse_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(target: HFTarget) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(probe, "_probe", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        load_target(build("llama"))


# --- architectures beside the families ----------------------------------------------------------------------

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
LOCAL = {
    "hidden_size": 64,
    "num_layers": 3,
    "num_heads": 4,
    "attention_types": [[["global", "local", "global"], 1]],
    "window_size": 16,
}

OTHERS: dict[str, tuple[str, dict[str, Any], Mode, bool]] = {
    "keys repeated behind the cache": (
        "jetmoe",
        SIZES | {"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        Mode.MASKED,
        True,
    ),
    "a cache of latents": ("deepseek_v3", SIZES | LATENT, Mode.MASKED, True),
    "values split in two": ("diffllama", SIZES, Mode.MASKED, True),
    "attention read without a copy": (
        "afmoe",
        SIZES | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        Mode.PACKED,
        True,
    ),
    "a window that attention does not get": (
        "phimoe",
        SIZES | {"sliding_window": 8, "num_local_experts": 4},
        Mode.MASKED,
        True,
    ),
    "a window wider than the context": (
        "phimoe",
        SIZES | {"sliding_window": 512, "num_local_experts": 4},
        Mode.PACKED,
        True,
    ),
    "a local window by row": ("gpt_neo", LOCAL, Mode.MASKED, False),
    "a local window that is not probed": ("gpt_neo", LOCAL | {"window_size": 600}, Mode.CHAINED, False),
    "alibi of its own": ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 3}, Mode.MASKED, False),
    "rotary code of its own": (
        "codegen",
        {"n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8},
        Mode.PACKED,
        True,
    ),
    "positions counted by the cache": (
        "bart",
        {"d_model": 64, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 96},
        Mode.PACKED,
        False,
    ),
}


@torch.no_grad()
def other(kind: str) -> PreTrainedModel:
    model_type, config, *_ = OTHERS[kind]
    special = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    generator = torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **special, **config)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.copy_(1.5 * parameter.shape[-1] ** -0.5 * torch.randn(parameter.shape, generator=generator))
    model.generation_config.forced_eos_token_id = None
    model.generation_config.decoder_start_token_id = None
    return model


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures_are_scored_in_a_way_that_is_right(kind: str) -> None:
    *_, mode, trees = OTHERS[kind]
    target = load_quietly(other(kind))
    assert (target.mode, target.limits.trees) == (mode, trees)
    for seed in range(3):
        tree = draft_for(target, seed)
        assert path_gaps(target.model, score(target, filled(target, TEXT), 1, tree), TEXT, 1, tree) < CLOSE
    expected = generated(target.model, TEXT, 24)
    assert write(target, TEXT, Lookup(), max_new_tokens=24).context.emitted.tolist() == expected


@pytest.mark.parametrize(
    ("others", "keys", "sentence"),
    [
        ({"position_bias": torch.zeros(1)}, (0, 1), "attention is given position_bias"),
        ({}, (1, 0), "attention is given other keys and values than the cache"),
        ({"dropout": 0.0, "position_ids": torch.zeros(1)}, (0, 1), ""),
    ],
)
def test_attention_that_asks_for_more_than_we_know_is_not_packed(
    others: dict[str, Any], keys: tuple[int, int], sentence: str
) -> None:
    rows, states = CacheRows(4), torch.randn(2, 1, 2, 1, 8).unbind()
    forward = ForwardCache(PackedKVCache(Segment.of_all([Request.of_prompt(rows, tokens(1))], MaskScratch())))
    forward.update(*states, layer_idx=3)
    given = states[0], *(states[i] for i in keys), AttentionOptions(1.0, 8, others=others)
    if sentence:
        with pytest.raises(Unsupported, match=f"^{sentence}$"):
            forward.attend(*given)
        return
    assert torch.equal(forward.attend(*given), states[1])
    assert forward.windows == [8]
    with pytest.raises(Unsupported, match="a layer attends to keys that another layer wrote"):
        forward.attend(*given)


# --- refused by the version of transformers -----------------------------------------------------------------


def renamed(model: Any, input_ids: Tensor, kept: Any = None) -> None:
    """A forward that gives its cache another name."""


def failing(model: Any, input_ids: Tensor, past_key_values: Any = None, cache: Any = None, **_: Any) -> None:
    raise TypeError


@pytest.mark.parametrize(("forward", "why"), [(renamed, "takes no cache"), (failing, "its own forward fails")])
@pytest.mark.parametrize("is_theirs", [True, False])
def test_a_family_that_fails_in_a_newer_transformers_names_its_version(
    forward: Any, why: str, is_theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What helps is another version, and not another model, unless the model's code is its own."""

    class Own(LlamaForCausalLM):
        pass

    model = (LlamaForCausalLM if is_theirs else Own)(build("llama").config)
    monkeypatch.setattr(type(model), "forward", forward)
    assert why in (sentence := refusal(model))
    assert sentence.endswith("; choose another model")
    major, minor = versions.NEWEST
    monkeypatch.setattr(versions, "TRANSFORMERS_VERSION", f"{major}.{minor + 1}rc1")
    assert why in refusal(model)
    monkeypatch.setattr(versions, "TRANSFORMERS_VERSION", f"{major}.{minor + 1}.0")
    assert why in (sentence := refusal(model))
    version = f"transformers {major}.{minor + 1}.0 is newer than {major}.{minor}, the newest that this release of "
    advice = f"{version}paceline was tested with: pip install 'transformers<{major}.{minor + 1}'"
    assert sentence.endswith(f"; {advice}" if is_theirs else "; choose another model")


# --- refused without a probe --------------------------------------------------------------------------------


def test_states_that_branches_cannot_share_are_refused_loaded_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration("deepseek_v4", "small")
    assert config is not None
    assert "layers of type compressed_sparse_attention" in refusal(tiny(config))
    config.save_pretrained(tmp_path)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    assert "layers of type compressed_sparse_attention" in refusal(tmp_path)


def test_a_model_of_several_stacks_is_refused_from_the_configuration(tmp_path: Path) -> None:
    AutoConfig.for_model("blt").save_pretrained(tmp_path)
    assert "blt is not a stack of layers, for its configuration has no num_hidden_layers" in refusal(tmp_path)


def saved(tmp_path: Path, name: str = "llama", **overrides: Any) -> Path:
    build(name, **overrides).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["./no/such/model", "/no/such/model", "~/no-such-model", "a/b/c"])
def test_a_folder_that_does_not_exist_is_told_without_asking_a_hub(path: str) -> None:
    assert refusal(path) == f"no model at {path!r}: there is no such folder"
    assert "there is no such folder" in refusal(Path("model"))
    assert "there is no such user here" in refusal("~nouser/model")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (True, "neither a local folder nor a model name that can be reached"),
        (False, "there is no such folder, nothing of that name was downloaded before, and no hub answers"),
    ],
)
def test_a_name_that_leads_nowhere(answers: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str, local_files_only: bool, trust_remote_code: bool) -> None:
        assert local_files_only is not answers
        raise OSError(f"{name}\nis not to be had")

    monkeypatch.setattr(hub, "answers", lambda: answers)
    monkeypatch.setattr(AutoConfig, "from_pretrained", unknown)
    assert refusal("some/model") == f"no model at 'some/model': {why}"


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    assert "not a folder with a readable transformers config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    assert f"{tmp_path / 'config.json'} is damaged: it is not JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    known = f"transformers {versions.TRANSFORMERS_VERSION} knows no"
    assert f"vit model, which {known} causal LM for" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "of-tomorrow"}))
    assert f"{known} model_type 'of-tomorrow'; a newer version may" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert f"the weights of {tmp_path} cannot be loaded" in refusal(tmp_path)
    assert "give the folder that holds config.json and weights, not a file" in refusal(tmp_path / "config.json")


def test_types_of_numbers_by_name(tmp_path: Path) -> None:
    saved(tmp_path)
    assert load_target(tmp_path).dtype == "float32"
    assert load_target(str(tmp_path), dtype="bfloat16").dtype == "bfloat16"
    expected = "unknown dtype 'int3'; choose one of float64, float32, bfloat16, float16"
    assert refusal(tmp_path, dtype="int3") == refusal(build("llama"), dtype="int3") == expected
    assert "convert it yourself instead of dtype=float16" in refusal(build("llama"), dtype="float16")
    assert load_target(build("llama"), dtype="float32").dtype == "float32"


def test_places_by_name(tmp_path: Path) -> None:
    saved(tmp_path)
    assert load_target(tmp_path, device="cpu").model.device == torch.device("cpu")
    assert refusal(tmp_path, device="nowhere").startswith("device 'nowhere' is not available here")
    assert "move it yourself" in refusal(build("llama"), device="cpu")
    assert "give one of them" in refusal(tmp_path, device="cpu", device_map="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(saved(tmp_path), device="cuda").startswith("device 'cuda' is not available here")


def test_a_device_map_is_passed_on(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device maps need accelerate, which is not installed")
    target = load_target(saved(tmp_path), device_map="cpu")
    assert write(target, TEXT, Lookup(), max_new_tokens=8).context.emitted.tolist() == generated(
        build("llama"), TEXT, 8
    )


def test_a_device_map_without_accelerate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: Any, **options: Any) -> None:
        raise ImportError("Using `device_map` requires Accelerate:\n`pip install accelerate`")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", missing)
    assert refusal(saved(tmp_path), device_map="auto").endswith("requires Accelerate: `pip install accelerate`")


def test_a_saved_model_writes_what_the_one_in_memory_writes(tmp_path: Path) -> None:
    target = load_target(saved(tmp_path, "gemma3"))
    assert target.name == str(tmp_path)
    assert target.fingerprint() == load_target(build("gemma3")).fingerprint()
    assert write(target, TEXT, Lookup(), max_new_tokens=8).context.emitted.tolist() == generated(
        build("gemma3"), TEXT, 8
    )
    assert load_tokenizer(tmp_path) is None
