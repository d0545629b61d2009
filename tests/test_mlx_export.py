"""Folders for mlx-lm: they hold the model that was open, mlx-lm opens them, and a model that it would compute otherwise
is refused before anything is there."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'paceline[mlx]'")
mlx_lm = pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install 'paceline[mlx]'")

import families
from mlx_models import opened_folder, own_text
from paceline.drafters.networks.heads import shipped_head
from paceline.errors import InputError
from paceline.targets.hf.load import load_target
from paceline.targets.hf.plain_copy import plain_copy
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.targets.mlx import export
from paceline.targets.mlx.configuration import mlx_words
from paceline.targets.mlx.export import export_mlx

PROMPT = "The ship had left the harbour before the"
GREEDY: dict[str, Any] = {"method": "plain", "max_new_tokens": 24, "temperature": 0.0}


@pytest.fixture(scope="module")
def pocket() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32")


def tiny(name: str = "llama", **overrides: Any) -> HFTarget:
    return HFTarget(families.build(name, vocab_size=len(families.byte_tokenizer()), **overrides), name=name)


def export_tiny(target: HFTarget, folder: Path, bits: int | None = None) -> None:
    export_mlx(target, folder, bits=bits, tokenizer=families.byte_tokenizer())


def test_a_bundled_model_is_the_same_there(pocket: paceline.LanguageModel, tmp_path: Path) -> None:
    export_mlx(pocket.target, tmp_path / "out", bits=None)
    found = paceline.load(f"mlx:{tmp_path / 'out'}", dtype="float32")
    assert found.target.fingerprint() == pocket.target.fingerprint()
    assert found.generate(PROMPT, **GREEDY).tokens == pocket.generate(PROMPT, **GREEDY).tokens
    assert found.defaults == pocket.defaults
    assert found.target.eos == pocket.target.eos


def test_a_twin_takes_the_head_of_its_bundled_model(tmp_path: Path) -> None:
    twin = paceline.load("pocket+ballast:80M", dtype="float32")
    export_mlx(twin.target, tmp_path / "out", bits=None)
    found = paceline.load(f"mlx:{tmp_path / 'out'}", dtype="float32")
    assert found.target.bundled == "pocket+ballast:80M"
    plain = found.generate(PROMPT, **GREEDY)
    drafted = found.generate(PROMPT, **GREEDY | {"method": "redrafter", "planner": "fixed:6"})
    assert drafted.tokens == plain.tokens
    assert len(drafted.rounds) < 0.8 * len(plain.rounds)


@pytest.mark.parametrize("bits", [4, 8])
def test_few_bits_are_mlx_lms_own(bits: int, pocket: paceline.LanguageModel, tmp_path: Path) -> None:
    """The values are those that mlx-lm makes from the same weights, and mlx-lm writes our text."""
    import mlx.core as mx
    import mlx.nn as nn

    export_mlx(pocket.target, tmp_path / "out", bits=bits)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (
        config["quantization"]
        == config["quantization_config"]
        == {
            "bits": bits,
            "group_size": 64,
            "mode": "affine",
        }
    )
    model, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    weight = np.asarray(pocket.target.model.model.layers[0].mlp.down_proj.weight.detach().float())
    layer = nn.Linear(*weight.shape[::-1], bias=False)
    layer.weight = mx.array(weight).astype(mx.bfloat16)
    expected, found = nn.QuantizedLinear.from_linear(layer, 64, bits), model.model.layers[0].mlp.down_proj
    assert np.array_equal(np.asarray(found.weight), np.asarray(expected.weight))
    assert mx.array_equal(found.scales, expected.scales)
    ours = paceline.load(f"mlx:{tmp_path / 'out'}", dtype="float32")  # which is faster on CPUs
    text = ours.generate(PROMPT, **GREEDY).tokens
    assert text == own_text(ours.target, np.array(tokenizer.encode(PROMPT)), len(text))
    head = shipped_head("pocket")  # which was trained for the model in floats
    drafted = ours.generate(PROMPT, **GREEDY | {"method": f"redrafter:head={head}", "planner": "fixed:6"})
    assert drafted.tokens == text
    assert drafted.totals.rounds < len(text)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    families.save("qwen3", tmp_path / "in")
    target = load_target(tmp_path / "in")
    export_mlx(target, tmp_path / "out", bits=None)
    (tmp_path / "in" / "config.json").rename(tmp_path / "gone")  # the new folder needs nothing of the old one
    found = paceline.load(f"mlx:{tmp_path / 'out'}")
    assert found.target.fingerprint() == target.fingerprint()
    assert found.encode("żółw").tolist() == families.byte_tokenizer().encode("żółw")


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("widened", [False, True])
def test_weights_are_as_narrow_as_their_checkpoint(kind: torch.dtype, widened: bool, tmp_path: Path) -> None:
    """On CPUs without instructions for half precision a checkpoint is widened when it is opened."""
    families.build("llama", kind, vocab_size=320).save_pretrained(tmp_path / "in")
    target = load_target(tmp_path / "in", dtype="float32" if widened else None)
    export_tiny(target, tmp_path / "out")
    found = opened_folder(tmp_path / "out")
    assert f"torch.{found.dtype}" == str(kind)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == found.dtype


def test_double_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mlx does not compute in float64; open llama in float32 or less"):
        export_tiny(HFTarget(families.build("llama", torch.float64, vocab_size=320), name="llama"), tmp_path / "out")


def test_integers_are_written_as_the_floats_that_they_stand_for(tmp_path: Path) -> None:
    target, _ = open_model("pocket-draft", quantize="int8", with_tokenizer=False)
    export_mlx(target, tmp_path / "out", bits=None)
    floats = HFTarget(plain_copy(target))
    assert opened_folder(tmp_path / "out").fingerprint() == floats.fingerprint() != target.fingerprint()


# --- configurations of transformers 5 in mlx-lm's words ---

ROPE = {"rope_type": "default", "rope_theta": 500.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("rope", [ROPE, LLAMA3])
def test_positions_are_turned_as_the_model_says(
    rope: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both where we export, and where a folder of transformers is opened directly. Without the old names mlx-lm turns
    positions by its default, and the comparison sees it."""
    target = tiny(rope_parameters=rope)
    export_tiny(target, tmp_path / "out")
    target.model.save_pretrained(tmp_path / "direct")
    assert "rope_theta" not in json.loads((tmp_path / "direct" / "config.json").read_text())
    text = np.arange(40)
    with torch.inference_mode():
        expected = target.model(torch.from_numpy(text)[None]).logits[0].numpy()
    for name in ("out", "direct"):
        found = opened_folder(tmp_path / name).model(_ids(text))
        assert np.abs(np.asarray(found[0]) - expected).max() < 1e-3, name
    for module in (export, "paceline.targets.mlx.load"):
        where = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{where}.mlx_words", lambda config: {})
    with pytest.raises(InputError, match="mlx-lm's code for llama computes something else than transformers'"):
        export_tiny(target, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def _ids(text: Any) -> Any:
    import mlx.core as mx

    return mx.array(text.astype(np.int32))[None]


@pytest.mark.parametrize(
    ("kinds", "period"), [("SSFSSF", 3), ("SFS", 2), ("SSSSS", None), ("FFF", None), ("SFFS", None), ("SSFSSS", None)]
)
def test_layers_with_a_window_are_counted(kinds: str, period: int | None) -> None:
    named = [{"S": "sliding_attention", "F": "full_attention"}[kind] for kind in kinds]
    assert mlx_words({"layer_types": named}).get("sliding_window_pattern") == period


def test_what_a_configuration_says_is_kept() -> None:
    config = {"rope_theta": 7.0, "num_experts": 2, "num_local_experts": 4, "rope_parameters": {"rope_theta": 9.0}}
    assert not {"rope_theta", "num_experts"} & set(mlx_words(config))


# --- refused, and nothing is left ---


@pytest.mark.parametrize(
    ("make", "bits", "message"),
    [
        (lambda: tiny("opt"), None, "mlx-lm cannot load opt: Model type opt not supported."),
        (lambda: tiny("phi3", sliding_window=8), None, "mlx-lm's code for phi3 computes something else"),
        (
            lambda: tiny(hidden_size=40, intermediate_size=48, head_dim=10),
            4,
            "llama cannot be stored in few bits: mlx-lm quantises rows whose width is a multiple of 32, and here "
            "widths are 40, 48",
        ),
        (tiny, 3, "in 4 or 8 bits, or as they are, not in 3"),
    ],
)
def test_models_that_are_refused(make: Callable[[], HFTarget], bits: int | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        export_tiny(make(), tmp_path / "out", bits)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_narrow_rows_share_a_scale_in_smaller_groups(tmp_path: Path) -> None:
    export_tiny(tiny(), tmp_path / "out", 4)  # 96 is no multiple of 64
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]["group_size"] == 32


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(InputError, match="out is there and is no folder of mlx-lm; name a new one"):
        export_tiny(tiny(), tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]
    families.save("llama", tmp_path / "in")
    for target in (tiny(), load_target(tmp_path / "in")):
        with pytest.raises(InputError, match=r"in is there and is no|in is read by this command"):
            export_mlx(target, tmp_path / "in", bits=None, tokenizer=families.byte_tokenizer())
    assert load_target(tmp_path / "in").parameters
    with pytest.raises(InputError, match="there is no folder"):
        export_tiny(tiny(), tmp_path / "no" / "out")


def test_an_earlier_export_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_tiny(tiny(), tmp_path / "out")
    (tmp_path / "out" / "stale").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="mlx-lm cannot load opt"):
        export_tiny(tiny("opt"), Path("out"))
    assert (tmp_path / "out" / "stale").exists()
    export_tiny(tiny(seed=1), tmp_path / "out")
    assert opened_folder(tmp_path / "out").fingerprint() == tiny(seed=1).fingerprint()
    assert not (tmp_path / "out" / "stale").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_an_interrupted_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.targets.mlx.files.save_config", interrupted)  # weights are written before it
    with pytest.raises(KeyboardInterrupt):
        export_tiny(tiny(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_an_earlier_export_comes_back_if_the_new_one_cannot_take_its_name(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename = tmp_path / "out", Path.rename
    export_tiny(tiny(), out)

    def failing(folder: Path, other: Path) -> Path:
        if folder.name == "mlx":
            raise error
        return rename(folder, other)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises((KeyboardInterrupt, InputError, OSError)):
        export_tiny(tiny(seed=1), out)
    assert opened_folder(out).fingerprint() == tiny().fingerprint()
    assert list(tmp_path.iterdir()) == [out]


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    tiny().model.save_pretrained(tmp_path / "in")
    with pytest.raises(InputError, match="in has no tokenizer, without which mlx-lm opens no folder"):
        export_mlx(load_target(tmp_path / "in"), tmp_path / "out", bits=None)
