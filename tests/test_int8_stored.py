"""Checkpoints in 8-bit integers: theirs are used as they are, and what is computed otherwise is refused."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import paceline
from families import build
from paceline import InputError
from paceline.cli import main
from paceline.drafters.networks.assistant.model import DraftModel
from paceline.errors import DamagedFile, UnsupportedModel
from paceline.targets.hf.integers.linear import Int8Linear, quantized
from paceline.targets.hf.integers.stored import layout_of
from paceline.targets.hf.integers.target import IntegerTarget
from paceline.targets.hf.integers.target import quantized as in_integers
from paceline.targets.hf.joined import LinearSlice
from scoring import load_quietly, tokens
from test_int8 import rows_of, times_opened

LAYER = "model.layers.1.mlp.down_proj"
LINEAR = re.compile(r"(.*layers.*_proj)\.weight$")
NUMBERS = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "block_structure": None}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**NUMBERS, "strategy": "channel", "dynamic": False, "actorder": "weight", "observer": "mse"},
            "input_activations": {**NUMBERS, "strategy": "token", "dynamic": True, "observer_kwargs": {}},
            "output_activations": None,
        }
    },
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {"format": "dense", "global_sparsity": 0.1, "targets": []},
    "transform_config": {"config_groups": {}},
    "version": "0.20.0",
}
INPUTS = {"granularity": {"_type": "PerRow", "_data": {"dim": -1}}, "mapping_type": {"_data": "SYMMETRIC"}}
TORCHAO = {
    "quant_method": "torchao",
    "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig", "_version": 2}},
}

Tensors = dict[str, Tensor]


def wide(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to all 256 integers, as compressed-tensors does it."""
    scales = (weight.abs().amax(1) / 127.5).bfloat16()
    integers = (weight / scales.float()[:, None]).round().clamp(-128, 127)
    return integers.to(torch.int8), scales


def stored(
    place: Path,
    name: str = "llama",
    rounded: Callable[[Tensor], tuple[Tensor, Tensor]] = wide,
    kept: str = "nothing",
) -> Path:
    """Write a checkpoint in compressed-tensors' format, with the layers whose names match ``kept`` in floats."""
    model = build(name)
    model.save_pretrained(place)
    found: Tensors = {}
    for key, weight in load_file(place / "model.safetensors").items():
        if (match := LINEAR.match(key)) and not re.search(kept, key):
            found[key], scales = rounded(weight)
            found[f"{match[1]}.weight_scale"] = scales[:, None] if scales.dim() else scales.view(1)
        else:
            found[key] = weight
    save_file(found, place / "model.safetensors", {"format": "pt"})
    described(place, SCHEME)
    return place


def described(place: Path, scheme: Any, field: str = "quantization_config") -> None:
    fields = json.loads((place / "config.json").read_text())
    fields.pop("quantization_config", None)
    (place / "config.json").write_text(json.dumps({**fields, field: scheme}))


def as_torchao(place: Path, inputs: Any = INPUTS) -> None:
    """The same checkpoint in torchao's format."""
    found: Tensors = {}
    said = {"format": "pt"}
    for key, tensor in load_file(place / "model.safetensors").items():
        layer, _, part = key.rpartition(".")
        if part == "weight" and tensor.dtype is torch.int8:
            found[f"{layer}._weight_qdata"] = tensor
            found[f"{layer}._weight_zero_point"] = torch.zeros(len(tensor), 1, dtype=torch.int8)
            said[key] = json.dumps({"_type": "Int8Tensor", "_data": {"act_quant_kwargs": inputs and {"_data": inputs}}})
        else:
            found[f"{layer}._weight_scale" if part == "weight_scale" else key] = tensor
    save_file(found, place / "model.safetensors", said)
    described(place, TORCHAO)


def opened(place: Path, **options: Any) -> IntegerTarget:
    target = paceline.load(place, tokenizer=None, **options).target
    assert isinstance(target, IntegerTarget)
    return target


def layers_of(target: IntegerTarget) -> dict[str, tuple[Tensor, Tensor]]:
    """Integers and scales of every layer, also of those that are computed as one."""
    found = {}
    for key, part in target._own.model.named_modules():
        if isinstance(part, LinearSlice):
            joint: Any = part.joint.layer
            found[key] = joint.product.weight()[part.rows], joint.product.scales[part.rows]
        elif isinstance(part, Int8Linear):
            found[key] = part.product.weight(), part.product.scales
    return found


def check_held(target: IntegerTarget, tensors: Tensors) -> None:
    """Every integer and every scale is the file's."""
    held = layers_of(target)
    count = 0
    for key, tensor in tensors.items():
        if tensor.dtype is torch.int8:
            layer = key.removesuffix(".weight")
            integers, scales = held[layer]
            assert torch.equal(integers, tensor), key
            assert torch.equal(scales, tensors[f"{layer}.weight_scale"].float().reshape(-1).expand(len(tensor)))
            count += 1
    assert count


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("stored") / "llama")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A checkpoint that a test may spoil."""
    return stored(tmp_path / "own")


# --- what is used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_integers_and_scales_are_the_files(name: str, tmp_path: Path) -> None:
    place = stored(tmp_path, name)
    tensors = load_file(place / "model.safetensors")
    assert any(int(tensor.min()) == -128 for tensor in tensors.values() if tensor.dtype is torch.int8)
    check_held(opened(place), tensors)


def test_one_scale_stands_for_all_channels(tmp_path: Path) -> None:
    def by_tensor(weight: Tensor) -> tuple[Tensor, Tensor]:
        scale = weight.abs().max() / 127.5
        return (weight / scale).round().clamp(-128, 127).to(torch.int8), scale

    place = stored(tmp_path, rounded=by_tensor)
    scheme: Any = copy.deepcopy(SCHEME)
    scheme["config_groups"]["group_0"]["weights"]["strategy"] = "tensor"
    described(place, scheme)
    check_held(opened(place), load_file(place / "model.safetensors"))


def test_a_checkpoint_of_torchao_is_the_same_model(folder: Path, own: Path) -> None:
    as_torchao(own)
    line, text = tokens(9), tokens(30)
    assert torch.equal(rows_of(opened(own), line, text), rows_of(opened(folder), line, text))


def test_a_checkpoint_in_pieces_is_the_same_model(folder: Path, own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    (own / "model.safetensors").unlink()
    files = {key: f"part-{number % 2}.safetensors" for number, key in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({key: tensors[key] for key in tensors if files[key] == file}, own / file, {"format": "pt"})
    (own / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    check_held(opened(own), tensors)
    assert opened(own).fingerprint() == opened(folder).fingerprint()


def test_the_older_name_of_the_configuration_is_read(folder: Path, own: Path) -> None:
    described(own, SCHEME, "compression_config")
    assert opened(own).fingerprint() == opened(folder).fingerprint()


def test_layers_in_floats_are_rounded_beside_the_others(tmp_path: Path) -> None:
    place = stored(tmp_path, kept=r"layers\.0\.self_attn\.v_proj|layers\.2\.mlp\.down_proj")
    target = opened(place)
    tensors = load_file(place / "model.safetensors")
    check_held(target, tensors)
    for key in ("model.layers.0.self_attn.v_proj", "model.layers.2.mlp.down_proj", "lm_head"):
        for ours, wanted in zip(layers_of(target)[key], quantized(tensors[f"{key}.weight"]), strict=True):
            assert torch.equal(ours, wanted)
    assert target.note is not None
    assert "v_proj" in target.note
    assert "lm_head" in target.note


def test_integers_that_we_round_ourselves_are_the_same_model(tmp_path: Path) -> None:
    """Bit by bit, so that nothing but the integers and scales is read from elsewhere."""
    ours, wanted = opened(stored(tmp_path, rounded=quantized)), in_integers(load_quietly(build("llama")))
    line, text = tokens(20), tokens(30)
    assert torch.equal(rows_of(ours, line, text), rows_of(wanted, line, text))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_logits_stay_near_those_of_the_floats_that_are_meant(name: str, tmp_path: Path) -> None:
    place = stored(tmp_path, name)
    model = build(name)
    with torch.no_grad():
        for key, part in load_file(place / "model.safetensors").items():
            if key.endswith("weight_scale"):
                model.get_parameter(key.removesuffix("_scale")).mul_(0).add_(part.float())
        for key, part in load_file(place / "model.safetensors").items():
            if part.dtype is torch.int8:
                model.get_parameter(key).mul_(part.float())
    line, text = tokens(40, 1), tokens(50)
    ours, wanted = rows_of(opened(place), line, text), rows_of(load_quietly(model), line, text)
    assert float((ours - wanted).square().mean().sqrt() / wanted.std()) < 0.2


def test_asking_for_integers_changes_nothing(folder: Path) -> None:
    unsaid, said = opened(folder), opened(folder, quantize="int8")
    assert unsaid.fingerprint() == said.fingerprint()
    assert unsaid.note == said.note
    assert unsaid.note is not None
    assert "checkpoint's own 8-bit integers" in unsaid.note
    assert unsaid.dtype == "int8"


def test_other_scales_are_another_model(folder: Path, own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    tensors[f"{LAYER}.weight_scale"] = tensors[f"{LAYER}.weight_scale"] * 1.5
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    assert opened(own).fingerprint() != opened(folder).fingerprint()


def test_a_tied_head_is_rounded_and_the_embedding_is_not(tmp_path: Path) -> None:
    place = stored(tmp_path)
    tensors = load_file(place / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    fields = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**fields, "tie_word_embeddings": True}))
    target = opened(place)
    assert torch.equal(target._own.model.model.embed_tokens.weight, tensors["model.embed_tokens.weight"])
    assert torch.equal(layers_of(target)["lm_head"][0], quantized(tensors["model.embed_tokens.weight"])[0])


# --- what is refused ----------------------------------------------------------------------------------------

GROUP = "config_groups.group_0"
OTHER = {
    "format": ("pack-quantized", "format pack-quantized"),
    "sparsity_config.format": ("sparse-24-bitmask", "sparsity_config sparse-24-bitmask"),
    "sparsity_config": ("2:4", "sparsity_config 2:4"),
    "kv_cache_scheme": (NUMBERS, "kv_cache_scheme"),
    "transform_config.config_groups": ({"R1": {}, "R2": {"type": "hadamard"}}, "transform_config"),
    "rotations": ({"size": 64}, "rotations"),
    "config_groups": ({}, "no config_groups"),
    f"{GROUP}.weights.num_bits": (4, "num_bits 4"),
    f"{GROUP}.weights.type": ("float", "type float"),
    f"{GROUP}.weights.symmetric": (False, "symmetric False"),
    f"{GROUP}.weights.strategy": ("group", "strategy group"),
    f"{GROUP}.weights.group_size": (128, "group_size 128"),
    f"{GROUP}.weights.actorder": ("group", "actorder group"),
    f"{GROUP}.weights.zero_shift": (3, "zero_shift"),
    f"{GROUP}.weights": (None, "weights with no integers"),
    f"{GROUP}.input_activations.dynamic": (False, "dynamic False"),
    f"{GROUP}.input_activations.symmetric": (False, "symmetric False"),
    f"{GROUP}.input_activations.strategy": ("tensor", "strategy tensor"),
    f"{GROUP}.input_activations": (None, "input_activations with no integers"),
    f"{GROUP}.output_activations": (NUMBERS, "output_activations"),
    f"{GROUP}.format": ("naive-quantized", "format naive-quantized"),
}


@pytest.mark.parametrize("field", OTHER)
def test_another_scheme_is_refused_in_a_sentence(field: str, own: Path) -> None:
    scheme: Any = copy.deepcopy(SCHEME)
    *path, last = field.split(".")
    part = scheme
    for step in path:
        part = part[step]
    part[last], sentence = OTHER[field]
    described(own, scheme)
    for options in ({}, {"quantize": "int8"}):
        with pytest.raises(UnsupportedModel, match=re.escape(sentence)) as caught:
            opened(own, **options)
        assert "original model" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_group_by_the_name_of_a_preset_is_refused(own: Path) -> None:
    described(own, {**SCHEME, "config_groups": {"W8A8": ["Linear"]}})
    with pytest.raises(UnsupportedModel, match="config_groups"):
        opened(own)


def zeros(tensors: Tensors) -> None:
    tensors[f"{LAYER}.weight_zero_point"] = torch.ones(64, 1, dtype=torch.int8)


def static(tensors: Tensors) -> None:
    tensors[f"{LAYER}.input_scale"] = torch.ones(1)


def no_scale(tensors: Tensors) -> None:
    del tensors[f"{LAYER}.weight_scale"]


def by_group(tensors: Tensors) -> None:
    tensors[f"{LAYER}.weight_scale"] = torch.ones(64, 2)


def embedding(tensors: Tensors) -> None:
    tensors["model.embed_tokens.weight"], scales = quantized(tensors["model.embed_tokens.weight"])
    tensors["model.embed_tokens.weight_scale"] = scales


def in_floats(tensors: Tensors) -> None:
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"].float()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (zeros, "other zeros than 0"),
        (static, "input_scale"),
        (no_scale, "no scales for"),
        (by_group, "scales of other shapes"),
        (embedding, "no linear layer model.embed_tokens"),
        (in_floats, "not in 8-bit integers"),
    ],
)
def test_tensors_that_say_more_are_refused(change: Callable[[Tensors], None], sentence: str, own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    change(tensors)
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=re.escape(sentence)):
        opened(own)


def whole_norm(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    tensors["model.norm.weight_zero"] = torch.zeros(1)


def narrow_layer(tensors: Tensors) -> None:
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"].float().to(torch.float8_e4m3fn)
    tensors[f"{LAYER}.weight_scale_inv"] = tensors.pop(f"{LAYER}.weight_scale")


@pytest.mark.parametrize(("change", "kind"), [(whole_norm, "i8"), (narrow_layer, "f8_e4m3")])
def test_tensors_that_a_description_leaves_out_are_refused(
    change: Callable[[Tensors], None], kind: str, own: Path
) -> None:
    """Transformers would read them as they are."""
    tensors = load_file(own / "model.safetensors")
    change(tensors)
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=rf"numbers of type {kind} .* the quantization_config .* does not say"):
        opened(own)


def test_zeros_that_are_0_change_nothing(folder: Path, own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    tensors[f"{LAYER}.weight_zero_point"] = torch.zeros(64, 1, dtype=torch.int8)
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    assert opened(own).fingerprint() == opened(folder).fingerprint()


@pytest.mark.parametrize(("scale", "sentence"), [(float("nan"), "no positive numbers"), (0, "0 beside integers")])
def test_scales_that_mean_nothing_are_damage(scale: float, sentence: str, own: Path) -> None:
    tensors = load_file(own / "model.safetensors")
    tensors[f"{LAYER}.weight_scale"][3] = scale
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(DamagedFile, match=rf"{re.escape(LAYER)} are {sentence}"):
        opened(own)
    tensors[f"{LAYER}.weight"][3] = 0
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    if scale == 0:
        check_held(opened(own), tensors)


def undescribed(place: Path) -> None:
    described(place, None)


def rewritten(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    """The tensors changed, and nothing said of them."""

    def apply(place: Path) -> None:
        undescribed(place)
        save_file(change(load_file(place / "model.safetensors")), place / "model.safetensors", {"format": "pt"})

    return apply


def as_pickle(place: Path) -> None:
    undescribed(place)
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()


def in_pieces(place: Path) -> None:
    undescribed(place)
    (place / "model.safetensors").rename(place / "all.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(place / "all.safetensors"), "all.safetensors")}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))


def with_code(place: Path) -> None:
    """Weights of a class that is built only when they are read."""
    code = "from transformers import LlamaConfig, LlamaForCausalLM\n\nclass Own(LlamaForCausalLM):\n    pass\n"
    (place / "own.py").write_text(code)
    fields = json.loads((place / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "own.Own"}}
    (place / "config.json").write_text(json.dumps(fields))
    undescribed(place)


def said(method: Any) -> Callable[[Path], None]:
    return lambda place: described(place, method)


def narrow(tensors: Tensors) -> Tensors:
    floats = torch.float8_e4m3fn
    return {key: part.float().to(floats) if part.dtype is torch.int8 else part for key, part in tensors.items()}


def narrow_by_another_name(tensors: Tensors) -> Tensors:
    return {key.replace(".weight_scale", ".scale_weight"): part for key, part in narrow(tensors).items()}


def unnamed(tensors: Tensors) -> Tensors:
    """Without the first part of every name, which transformers adds."""
    return {key.removeprefix("model."): part for key, part in tensors.items()}


def one_bias(tensors: Tensors) -> Tensors:
    return {key: part.to(torch.int32) if key == "model.norm.weight" else part.float() for key, part in tensors.items()}


I8, F8 = "numbers of type i8 for weights", "numbers of type f8_e4m3 for weights"
GARBAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no configuration": (undescribed, I8),
    "an empty one": (said({}), I8),
    "without the scales": (rewritten(lambda all_: {k: all_[k] for k in all_ if not k.endswith("_scale")}), I8),
    "a short name": (rewritten(unnamed), I8),
    "another integer": (rewritten(one_bias), "numbers of type i32 for weights"),
    "narrow floats": (rewritten(narrow), F8),
    "scales by another name": (rewritten(narrow_by_another_name), F8),
    "a pickle": (as_pickle, "numbers of type int8 for weights"),
    "in pieces": (in_pieces, I8),
    "code of its own": (with_code, I8),
    "no method": (said({"bits": 8}), "transformers does not know (quant_method None)"),
    "an unknown method": (said({"quant_method": "w8a8"}), "transformers does not know (quant_method w8a8)"),
    "bitsandbytes without bits": (said({"quant_method": "bitsandbytes"}), "(quant_method bitsandbytes)"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_integers_that_would_be_read_as_the_weights_are_refused(
    what: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(own.parent / "modules"))
    change, sentence = GARBAGE[what]
    change(own)
    for options in ({}, {"quantize": "int8"}):
        with pytest.raises(InputError, match=re.escape(sentence)) as caught:
            opened(own, trust_remote_code=what == "code of its own", **options)
        assert "use the original model, with --quantize int8" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_masks_in_integers_and_narrow_floats_without_scales_change_nothing(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    before = paceline.load(tmp_path, tokenizer=None)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match=r"has no place for 1 of the tensors in its weights \(model.layers.0.self"):
        after = paceline.load(tmp_path, tokenizer=None)
    assert after.generate([5, 6, 7], max_new_tokens=8).tokens == before.generate([5, 6, 7], max_new_tokens=8).tokens


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        {**INPUTS, "mapping_type": {"_data": "ASYMMETRIC"}},
        {**INPUTS, "granularity": {"_type": "PerTensor"}},
        {**INPUTS, "reduce_range": True},
    ],
)
def test_torchaos_other_inputs_are_refused(inputs: Any, own: Path) -> None:
    as_torchao(own, inputs)
    with pytest.raises(UnsupportedModel, match="inputs that are not rounded by row"):
        opened(own)


def test_torchaos_other_schemes_are_refused(own: Path) -> None:
    described(own, {**TORCHAO, "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}})
    with pytest.raises(UnsupportedModel, match="Int4WeightOnlyConfig"):
        opened(own)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"device_map": "auto"}, {"fixed_shapes": True}])
def test_what_integers_do_not_have_is_refused(options: dict[str, Any], folder: Path) -> None:
    with pytest.raises(InputError, match=r"is in 8-bit integers.*leave"):
        opened(folder, **options)


@pytest.mark.parametrize("fields", [TORCHAO, SCHEME])
@pytest.mark.parametrize("what", ["scheme", "place"])
def test_with_the_formats_own_package_the_rest_is_left_to_transformers(
    what: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise UnsupportedModel("not in this place")

    others = {"quant_type": "int4_weight_only", "format": "pack-quantized"} if what == "scheme" else {}
    config = SimpleNamespace(quantization_config={**fields, **others})
    check = refuse if what == "place" else lambda: None
    with pytest.raises(UnsupportedModel):
        layout_of("a model", config, check)
    monkeypatch.setattr(
        "paceline.targets.hf.integers.stored.find_spec",
        lambda package: package == fields["quant_method"].replace("-", "_"),
    )
    assert layout_of("a model", config, check) is None
    assert config.quantization_config == {**fields, **others}


def test_a_draft_model_in_integers_stays_in_them_beside_floats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, names = load_quietly(build("llama").to(torch.bfloat16)), times_opened(monkeypatch)
    draft = DraftModel.load(folder, beside).target
    assert names == [str(folder)]
    assert draft.dtype == "int8"
    assert draft.fingerprint() == opened(folder).fingerprint()


@pytest.mark.parametrize(("name", "dtype"), [("gemma2", "int8"), ("mixtral", "float32")])
def test_a_draft_model_in_integers_of_another_structure_stays_in_them_if_it_can(
    tmp_path: Path, name: str, dtype: str
) -> None:
    floats = load_quietly(build(name))
    draft = DraftModel.load(stored(tmp_path, name, rounded=quantized), load_quietly(build("llama"))).target
    assert draft.dtype == dtype
    found, wanted = rows_of(draft, tokens(9), tokens(20)), rows_of(floats, tokens(9), tokens(20))
    assert float((found - wanted).square().mean().sqrt() / wanted.std()) < 0.1


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_draft_model_in_other_integers_is_refused_in_a_sentence_that_fits(
    quantize: str | None, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(own, {**SCHEME, "format": "pack-quantized"})
    beside, names = paceline.load("pocket", quantize=quantize).target, times_opened(monkeypatch)
    sentence = (
        r"\(format pack-quantized\); use the original model, with --quantize int8 for 8-bit integers, or load this"
    )
    with pytest.raises(UnsupportedModel, match=sentence):
        DraftModel.load(own, beside)
    assert names == [str(own)]


def test_there_is_no_quality_to_compare_without_floats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text := folder.parent / "text.txt").write_text("Once upon a time")
    assert main(["bench", "quality", str(text), "--model", str(folder)]) == 2
    assert "no floats to compare" in capsys.readouterr().err


def test_a_gguf_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "model.Q8_0.gguf"
    file.touch()
    for given in (file, tmp_path):
        with pytest.raises(InputError, match=r"GGUF file.*--quantize int8"):
            paceline.load(given, tokenizer=None)
