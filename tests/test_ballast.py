"""Ballast: the same function at the cost of a big model. Every condition of `targets/pocket/ballast.py` is broken on
purpose and must be seen."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline.targets import memory
from paceline.targets.base import Request, Want
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.targets.pocket import bundle, kept, open
from paceline.targets.pocket.ballast import (
    IMPOSSIBLE,
    NOISE_SCALE,
    NewWeights,
    forbid,
    widened,
    widened_config,
)
from paceline.targets.pocket.bundle import Bundle, assembled, read_bundle, read_tokenizer
from paceline.targets.pocket.names import POCKET_NAMES
from paceline.targets.pocket.shape import CLOSE_ENOUGH, ModelShape, choose_shape, read_ballast, real_layers
from paceline_lab.check.adversaries import OracleDrafter
from thinning import thinned

CPU = torch.device("cpu")
GAP = 1e-4
TEXT = (
    "It was a bright cold day, and the clocks in the village had long since stopped. ",
    "W mieście było cicho; tylko rzeka szumiała pod mostem jak co wieczór. ",
    "Увечері над річкою стояв туман, і ніхто не знав, куди веде стежка. ",
)
SHAPE = ModelShape(ratio=4, layers=8, units=480, vocab=8192)
SMALL = "pocket-draft+ballast:20M"
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def small() -> Bundle:
    return read_bundle("pocket-draft")


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    ids = read_tokenizer("pocket-draft").encode("".join(TEXT) * 3)
    return torch.tensor(ids)


@pytest.fixture(scope="module")
def wanted(small: Bundle, tokens: torch.Tensor) -> torch.Tensor:
    weights = {name: weight.float() for name, weight in small.weights.items()}
    return HFTarget(assembled(small.config, weights)).own.unassisted(tokens)


@pytest.fixture
def wide(small: Bundle) -> State:
    return widened(small, SHAPE, torch.float32, CPU)


def gap(small: Bundle, wide: State, tokens: torch.Tensor, wanted: torch.Tensor, **config: Any) -> float:
    """The largest difference of a logit between the small model and weights in `SHAPE`."""
    large = widened_config(small.config, SHAPE)
    vars(large).update(config)
    return float((HFTarget(assembled(large, wide)).own.unassisted(tokens) - wanted).abs().max())


def test_the_function_is_the_same(small: Bundle, wide: State, tokens: torch.Tensor, wanted: torch.Tensor) -> None:
    assert gap(small, wide, tokens, wanted) < GAP
    assert wanted.std() > 1000 * GAP


def norms(state: State, factor: float) -> None:
    for name in state:
        if "norm" in name:
            state[name] *= factor


def noisy(part: str, rows: slice, columns: slice) -> Callable[[State], None]:
    """Noise in a block that must be zero."""

    def spoil(state: State) -> None:
        state[part][rows, columns] += torch.randn_like(state[part][rows, columns]) * NOISE_SCALE

    return spoil


REAL = f"model.layers.{next(iter(real_layers(SHAPE.layers, 3)))}."
NEW = "model.layers.0."
CHANNELS, UNITS, HEADS = 128, 344, 128
ALL = slice(None)

FAULTS: dict[str, Callable[[State], None]] = {
    "norms not rescaled": lambda state: norms(state, 2),
    "norms rescaled the wrong way": lambda state: norms(state, 4),
    "a new head writes": noisy(REAL + "self_attn.o_proj.weight", slice(CHANNELS), slice(HEADS, None)),
    "a new unit writes": noisy(REAL + "mlp.down_proj.weight", slice(CHANNELS), slice(UNITS, None)),
    "attention writes into a new channel": noisy(REAL + "self_attn.o_proj.weight", slice(CHANNELS, None), ALL),
    "an MLP writes into a new channel": noisy(REAL + "mlp.down_proj.weight", slice(CHANNELS, None), ALL),
    "attention of a new layer writes": noisy(NEW + "self_attn.o_proj.weight", ALL, ALL),
    "the MLP of a new layer writes": noisy(NEW + "mlp.down_proj.weight", ALL, ALL),
    "embeddings have new channels": noisy("model.embed_tokens.weight", ALL, slice(CHANNELS, None)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_condition_is_seen(
    fault: str, small: Bundle, wide: State, tokens: torch.Tensor, wanted: torch.Tensor
) -> None:
    assert NEW != REAL
    FAULTS[fault](wide)
    assert gap(small, wide, tokens, wanted) > GAP


@pytest.mark.parametrize(
    "config",
    [{"rms_norm_eps": 1e-5}, {"rms_norm_eps": 1e-5 / 16}, {"num_key_value_heads": 8}],
    ids=["eps not rescaled", "eps rescaled twice", "other groups of heads"],
)
def test_a_wrong_configuration_is_seen(
    config: dict[str, Any], small: Bundle, wide: State, tokens: torch.Tensor, wanted: torch.Tensor
) -> None:
    if "num_key_value_heads" in config:
        for name, weight in wide.items():
            if "k_proj" in name or "v_proj" in name:
                wide[name] = torch.cat([weight, weight])
    assert gap(small, wide, tokens, wanted, **config) > GAP


def test_rescaling_is_exact_in_the_shipped_type(small: Bundle) -> None:
    wide = widened(small, SHAPE, torch.bfloat16, CPU)
    norm = small.weights["model.norm.weight"]
    assert torch.equal(wide["model.norm.weight"][:CHANNELS] * 2, norm)


GROWTH = """
import os, torch
from pathlib import Path
from paceline.targets.pocket.ballast import NewWeights

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

fresh, kept = NewWeights(torch.bfloat16, torch.device("cpu")), []
for cut in (fresh.zeros, fresh.noise):
    before = resident()
    kept.append(cut(64 * 1024, 512))
    print(resident() - before)
"""


@pytest.mark.slow
def test_new_weights_are_written_memory() -> None:
    """Pages that were never written are one page of zeros, and reading them is cheaper than reading weights.

    In a process of its own: in this one the allocator has pages to hand out that were written for something else.
    """
    told = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout
    assert len(told.split()) == 2
    for grown in map(int, told.split()):
        assert grown > 0.9 * 64 * 2**20


def test_noise_has_the_spread_of_weights() -> None:
    weight = NewWeights(torch.bfloat16, CPU).noise(64 * 1024, 512)
    assert weight.float().std().item() == pytest.approx(NOISE_SCALE, rel=0.01)


def test_nothing_that_computes_is_zero(wide: State) -> None:
    """Matrices that read from the stream, norms of new layers: real values, so that real work is done."""
    for name, weight in wide.items():
        if any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "norm")):
            assert (weight == 0).float().mean() < 0.01, name


@pytest.mark.parametrize("layers", [3, 4, 7, 24, 53])
def test_real_layers_are_spread_to_the_very_end(layers: int) -> None:
    places = list(real_layers(layers, 3))
    assert list(real_layers(layers, 3).values()) == [0, 1, 2]
    assert places[-1] == layers - 1
    steps = np.diff([-1, *places])
    assert steps.max() - steps.min() <= 1


def test_an_early_exit_sees_an_unfinished_model(small: Bundle, wide: State, tokens: torch.Tensor) -> None:
    """The stream behind any layer is the small model's behind its share of layers, in its channels and no others."""
    large = HFTarget(assembled(widened_config(small.config, SHAPE), wide))
    weights = {name: weight.float() for name, weight in small.weights.items()}
    little = HFTarget(assembled(small.config, weights))
    states = [hidden_states(target, tokens) for target in (large, little)]
    for layer in range(1, SHAPE.layers):
        share = sum(place < layer for place in real_layers(SHAPE.layers, 3))
        assert share <= np.ceil(layer * 3 / SHAPE.layers)
        assert share < 3
        assert torch.allclose(states[0][layer][:, :CHANNELS], states[1][share], atol=GAP)
        assert not states[0][layer][:, CHANNELS:].any()


def hidden_states(target: HFTarget, tokens: torch.Tensor) -> dict[int, torch.Tensor]:
    layers = range(target.model.config.num_hidden_layers)
    want = Want(hidden=frozenset(layers))
    rows = target.open()
    scores = target.forward([Request.of_prompt(rows, tokens.numpy(), want)])[0]
    return {layer: scores.hidden(layer) for layer in layers}


def test_new_ids_are_impossible_and_change_nothing(small: Bundle, tokens: torch.Tensor, wanted: torch.Tensor) -> None:
    known, vocab = SHAPE.vocab, 9000
    shape = replace(SHAPE, vocab=vocab)
    model = assembled(widened_config(small.config, shape), widened(small, shape, torch.float32, CPU))
    forbid(model.lm_head.bias, known)
    found = HFTarget(model).own.unassisted(tokens)
    assert found.shape[-1] == vocab
    assert float((found[:, :known] - wanted).abs().max()) < GAP
    for temperature in (1.0, 50.0):
        assert not (found.double() / temperature).softmax(-1)[:, known:].sum() > 1e-300
    assert torch.finfo(torch.float16).min < IMPOSSIBLE


@pytest.mark.slow
def test_a_padded_vocabulary_writes_the_same_text() -> None:
    """By default the test above says so of the rows."""
    plain, padded = (paceline.load(name, dtype="float32") for name in (SMALL, f"{SMALL}/9k"))
    assert (padded.target.vocab_size, padded.target.eos) == (9000, plain.target.eos)
    assert padded.vocabulary is not None
    assert padded.vocabulary.size == plain.target.vocab_size
    for temperature in (0.0, 1.5):
        how: dict[str, Any] = {"max_new_tokens": 60, "temperature": temperature, "seed": 5, "ignore_eos": True}
        assert padded.generate(TEXT[0], **how).tokens == plain.generate(TEXT[0], **how).tokens


@pytest.mark.parametrize("temperature", thinned([0.0, 0.9]))
def test_ballast_writes_the_same_text(temperature: float) -> None:
    small, large = both_texts("pocket-draft", SMALL, temperature, 100)
    assert len(small) == 100
    assert large == small


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", ["pocket+ballast:100M", "pocket+ballast:500M"])
def test_ballast_writes_the_same_long_text(name: str, temperature: float) -> None:
    """Every token is the large model's own choice; the small one's text only saves it forwards."""
    small, large = both_texts("pocket", name, temperature, 2000, drafted=True)
    assert len(small) == 2000
    assert large == small


def both_texts(
    source: str, name: str, temperature: float, length: int, drafted: bool = False
) -> tuple[list[int], list[int]]:
    """Those of the small model and of the large one."""
    how: dict[str, Any] = {"temperature": temperature, "seed": 11, "ignore_eos": True, "max_new_tokens": length}
    small, large = (paceline.load(each, dtype="float32") for each in (source, name))
    wanted = small.generate(TEXT[1], method="plain", **how).tokens
    script = np.concatenate([small.encode(TEXT[1]), wanted])
    method = OracleDrafter(script, small.target.vocab_size, tree=False, whole=True) if drafted else "plain"
    return wanted, large.generate(TEXT[1], method=method, **how).tokens


@pytest.mark.parametrize("name", [SMALL, "pocket+ballast:9M", "pocket-foreign+ballast:12M/10k"])
def test_a_name_with_ballast_stays_with_the_target(name: str) -> None:
    target = open_model(name)[0]
    assert target.name == name
    assert target.dtype == "float32"
    assert open.describe(name).startswith(f"{name} (")
    assert open_model(name)[0].fingerprint() == target.fingerprint()
    assert open_model(name.partition("+")[0])[0].fingerprint() != target.fingerprint()


@pytest.mark.parametrize("source", POCKET_NAMES)
@pytest.mark.parametrize("size", ["30M", "60M", "250M", "500M", "500M/150k", "1.5B", "7b/128000"])
def test_sizes_are_met(source: str, size: str) -> None:
    config = read_bundle(source).config
    ballast = read_ballast(f"{source}+ballast:{size}")
    shape = choose_shape(ballast, config)
    large = widened_config(config, shape)
    assert abs(shape.parameters(config) - ballast.size) <= CLOSE_ENOUGH * ballast.size
    assert large.hidden_size % 64 == 0
    assert large.head_dim == config.head_dim
    assert large.num_attention_heads * config.num_key_value_heads == (
        large.num_key_value_heads * config.num_attention_heads
    )


def test_half_a_billion_has_the_proportions_of_such_models(small: Bundle) -> None:
    shape = choose_shape(read_ballast("pocket+ballast:500M"), read_bundle("pocket").config)
    assert (shape.ratio, shape.vocab) == (4, small.config.vocab_size)
    assert 20 <= shape.layers <= 28
    assert 4 <= shape.units / 1024 <= 7


def test_parameters_are_counted_as_they_are(small: Bundle, wide: State) -> None:
    assert SHAPE.parameters(small.config) == sum(weight.numel() for weight in wide.values())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("pocket+ballast:big", r"cannot read a size in 'pocket\+ballast:big'; write pocket\+ballast:SIZE"),
        ("pocket+ballast", "cannot read a size"),
        ("pocket+ballast:", "cannot read a size"),
        ("pocket+ballast:0M", "cannot read a size"),
        ("pocket+ballast:1.2.3M", "cannot read a size"),
        ("pocket+ballast:500M/", "cannot read a size"),
        ("pocket+ballast:500M/x", "cannot read a size"),
        ("pocket+ballast:500M/150k/3", "cannot read a size"),
        ("pocket+ballast:5M", r"5,000,000 parameters in .* do not hold pocket, which has 7,999,744; ask for more"),
        ("pocket+ballast:20M/150k", "do not hold pocket with 150,000 ids"),
        ("pocket+ballast:500M/8k", "a vocabulary of 8000 .* is smaller than the 8192 ids"),
        ("pocket+ballast:900000B", r"needs 3780000.0 GB of memory and [\d.]+ GB are free; ask for less ballast"),
        ("pockett+ballast:500M", "no bundled model 'pockett' .*; did you mean 'pocket'"),
        ("gpt2+ballast:500M", "only pocket, pocket-draft, pocket-foreign can carry it"),
    ],
)
def test_a_wrong_size_is_told(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as told:
        open_model(name)
    assert "\n" not in str(told.value)


def test_memory_that_nobody_tells_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open, "free_memory", lambda device: None)
    assert open_model(SMALL)[0].name == SMALL
    monkeypatch.undo()
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable: 30000 kB\n")
    monkeypatch.setattr(memory, "MEMORY", meminfo)
    with pytest.raises(ValueError, match=r"needs 0\.1 GB of memory and 0\.0 GB are free"):
        open_model(SMALL)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "not" / "yet there"
    monkeypatch.setenv(kept.VARIABLE, str(folder))
    return folder


def no_build(*_: Any) -> State:
    raise AssertionError("built although it was kept")


def test_kept_ballast_is_read_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{SMALL}/9k"
    built = open_model(name)[0]
    assert len(list(cache.glob("*.safetensors"))) == 1
    monkeypatch.setattr(open, "widened", no_build)
    read = open_model(name)[0]
    for part, weight in built.model.state_dict().items():
        assert torch.equal(weight, read.model.state_dict()[part]), part


def test_nothing_is_kept_unless_asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kept.VARIABLE)
    open_model(SMALL)
    assert not cache.exists()


def test_what_decides_the_weights_decides_the_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_model(SMALL)
    open_model(SMALL, dtype="bfloat16")
    monkeypatch.setattr(kept, "FORMAT", kept.FORMAT + 1)
    open_model(SMALL)
    monkeypatch.setattr(open, "read_bundle", lambda name: replace(bundle.read_bundle(name), digest="retrained"))
    open_model(SMALL)
    assert len(list(cache.glob("*.safetensors"))) == 4


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-999])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-999] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", thinned([flip, cut, lambda file: file.write_bytes(b"")]))
def test_damaged_ballast_is_built_again(cache: Path, harm: Callable[[Path], None]) -> None:
    whole = open_model(SMALL)[0].fingerprint()
    (file,) = cache.glob("*.safetensors")
    harm(file)
    with pytest.warns(UserWarning, match=r"safetensors is damaged and is built again"):
        assert open_model(SMALL)[0].fingerprint() == whole
    assert open_model(SMALL)[0].fingerprint() == whole


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(
        ValueError, match=r"cannot keep ballast in .*cache \(.*\); point PACELINE_CACHE to a folder"
    ) as told:
        open_model(SMALL)
    assert "\n" not in str(told.value)


def test_a_stopped_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: State, file: str, **__: Any) -> None:
        Path(file).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(kept, "save_file", stop)
    with pytest.raises(KeyboardInterrupt):
        open_model(SMALL)
    assert list(cache.iterdir()) == []
