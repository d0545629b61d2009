"""Models in 8-bit integers: sums are exact, and a row has the same bits whatever it is scored with."""

import gc
import re
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import paceline
from families import LAYERS, POSITIONS, WINDOW, build
from paceline import InputError
from paceline.drafters.networks.assistant.model import DraftModel
from paceline.errors import UnsupportedModel
from paceline.targets.base import Request, Want
from paceline.targets.hf import load as loading
from paceline.targets.hf.attention import PackedKVCache, Segment
from paceline.targets.hf.integers import kernels, operations
from paceline.targets.hf.integers.kernels import LARGEST_INT8, FbgemmHalves, InFloats, Product, chosen, is_exact
from paceline.targets.hf.integers.linear import Int8Linear, quantized
from paceline.targets.hf.integers.operations import ExactOperations, coarse, step_below, to_steps
from paceline.targets.hf.integers.ordinary import OrdinaryIntegerTarget
from paceline.targets.hf.integers.target import IntegerTarget, check_place
from paceline.targets.hf.integers.target import quantized as in_integers
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree, Ints
from paceline.verify import Rule
from paceline_lab.check.run import Checker
from scoring import filled, load_quietly, random_tree, score, stepwise, tokens

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
"""With windows, biases and norms of heads."""
CONTEXT = 50
every_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def target_of(name: str) -> IntegerTarget:
    return in_integers(load_quietly(build(name)))


# --- products -----------------------------------------------------------------------------------------------


class Reference(Product):
    """In float64, which holds every sum there is."""

    def __call__(self, rows: Tensor) -> Tensor:
        sums = rows.double() @ self.integers.double().t()
        return sums.float().mul_(self.scales)

    def __init__(self, weight: Tensor, scales: Tensor) -> None:
        super().__init__(weight, scales)
        self.integers = weight

    def weight(self) -> Tensor:
        return self.integers


class CutOff(Reference):
    """Adds pairs of products in 16 bits, as processors without VNNI instructions do."""

    def __call__(self, rows: Tensor) -> Tensor:
        unsigned = rows + kernels.ZERO
        pairs = (unsigned[:, None] * self.integers.float()).unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(-1) - kernels.ZERO * self.integers.float().sum(1)).mul_(self.scales)


class OneScale(Reference):
    """Rounds all rows to the step of the largest."""

    def __call__(self, rows: Tensor) -> Tensor:
        step = rows.abs().max() / 100
        return super().__call__((rows / step).round()) * step


class OtherTiles(Reference):
    """Adds in floats, from four rows on in other pieces."""

    def __call__(self, rows: Tensor) -> Tensor:
        pieces = 64 if len(rows) < 4 else 48
        parts = zip(rows.split(pieces, 1), self.integers.float().split(pieces, 1), strict=True)
        return torch.stack([part @ piece.t() for part, piece in parts]).mul(self.scales).sum(0)


class Negates(Reference):
    """Moves signs from rows to weights, of which -128 has no opposite in 8 bits."""

    def __call__(self, rows: Tensor) -> Tensor:
        weights = self.integers.clamp(min=-LARGEST_INT8).double()
        return (rows.double() @ weights.t()).float().mul_(self.scales)


@pytest.mark.parametrize("kernel", [CutOff, OneScale, OtherTiles, Negates])
def test_a_kernel_that_rounds_sums_or_couples_rows_is_not_used(kernel: type[Product]) -> None:
    assert is_exact(Reference)
    assert not is_exact(kernel)


def test_a_kernel_that_this_processor_lacks_is_not_used() -> None:
    class Missing(Reference):
        def __call__(self, rows: Tensor) -> Tensor:
            raise NotImplementedError("no such instructions")

    assert not is_exact(Missing)


def test_a_kernel_that_rounds_sums_twice_is_not_used() -> None:
    class Twice(Reference):
        def __call__(self, rows: Tensor) -> Tensor:
            halves = [part.double() @ self.integers.double().t() for part in (rows // 2, rows - rows // 2)]
            return (halves[0].float() * self.scales).add_(halves[1].float() * self.scales)

    assert not is_exact(Twice)


def test_some_kernel_is_exact_on_every_processor() -> None:
    assert is_exact(InFloats)
    assert is_exact(kernels.fastest(torch.get_num_threads()))


def test_halves_are_exact_without_vnni_where_fbgemm_is() -> None:
    if "fbgemm" in torch.backends.quantized.supported_engines:
        assert is_exact(FbgemmHalves)


def test_the_quickest_kernel_is_chosen() -> None:
    class Slow(Reference):
        pass

    class Quick(Reference):
        pass

    time = [0.0]

    def clock() -> float:
        return time[0]

    def taking(kernel: type[Product], seconds: float) -> None:
        def call(self: Any, rows: Tensor) -> Tensor:
            time[0] += seconds
            return rows

        kernel.__call__ = call  # type: ignore[method-assign]

    taking(Slow, 3.0)
    taking(Quick, 2.0)
    assert chosen([Slow, Quick], clock) is chosen([Quick, Slow], clock) is Quick


# --- layers -------------------------------------------------------------------------------------------------


def test_a_weight_has_a_scale_for_every_channel() -> None:
    weight = torch.randn(5, 40) * torch.tensor([1e-3, 1.0, 50.0, 0.0, 7.0])[:, None]
    integers, scales = quantized(weight)
    assert integers.dtype is torch.int8
    assert bool((integers.abs().amax(1)[[0, 1, 2, 4]] == LARGEST_INT8).all())
    assert bool(((integers * scales[:, None] - weight).abs() <= scales[:, None] / 1.99).all())


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_is_near_the_one_it_was_made_of(bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(300, 70, bias=bias)
    rows = torch.randn(2, 9, 300) * torch.logspace(-3, 3, 9)[:, None]
    found, wanted = Int8Linear(layer)(rows), layer(rows).detach()
    assert found.shape == wanted.shape
    assert bool(((found - wanted).square().mean(-1).sqrt() < 0.02 * wanted.square().mean(-1).sqrt()).all())


def test_a_row_of_zeros_gives_the_bias() -> None:
    layer = torch.nn.Linear(64, 8)
    assert torch.equal(Int8Linear(layer)(torch.zeros(3, 64)), layer.bias.detach().expand(3, 8))


def test_rows_are_left_as_they_were() -> None:
    rows = torch.randn(3, 64)
    before = rows.clone()
    Int8Linear(torch.nn.Linear(64, 8))(rows)
    assert torch.equal(rows, before)


def test_rounded_heads_have_products_that_add_up_exactly() -> None:
    torch.manual_seed(1)
    for width in (16, 64, 96, 128, 256):
        heads = coarse(torch.randn(2, 40, width) * torch.logspace(-6, 6, 40)[:, None])
        scores, orders = heads @ heads.transpose(1, 2), torch.randperm(width)
        assert torch.equal(scores, heads[..., orders] @ heads[..., orders].transpose(1, 2))
        assert torch.equal(scores.double(), heads.double() @ heads.double().transpose(1, 2))


def test_rounded_heads_stay_near() -> None:
    heads = torch.randn(3, 500, 64)
    assert float((coarse(heads) - heads).abs().max() / heads.abs().max()) < 2**-8


def test_steps_are_powers_of_two_that_leave_bits_for_the_largest() -> None:
    assert step_below(5.0, 3) == 1.0
    assert step_below(8.0, 3) == 1.0
    assert step_below(0.3, 10) == 2.0**-11
    assert to_steps(torch.tensor([0.3, -1.26]), 0.25).tolist() == [0.25, -1.25]


# --- rows ---------------------------------------------------------------------------------------------------


def chain(line: Ints) -> DraftTree:
    return DraftTree.chain(line[1:])


def rows_of(target: HFTarget, line: Ints, text: Ints) -> Tensor:
    return score(target, filled(target, text), int(line[0]), chain(line))


@every_family
def test_rows_are_equal_at_every_width(name: str) -> None:
    target, text, line = target_of(name), tokens(CONTEXT), tokens(65, 1)
    wanted = rows_of(target, line, text)
    for width in (1, 2, 3, 5, 8, 16, 31, 64):
        assert torch.equal(rows_of(target, line[:width], text), wanted[:width])


@every_family
def test_rows_are_equal_one_by_one(name: str) -> None:
    target, text, line = target_of(name), tokens(CONTEXT), tokens(30, 1)
    wanted, rows = rows_of(target, line, text), filled(target, text)
    for place, token in enumerate(line.tolist()):
        assert torch.equal(score(target, rows, token)[0], wanted[place])
        rows.keep([0])


@every_family
def test_rows_are_equal_in_trees(name: str) -> None:
    target, text = target_of(name), tokens(CONTEXT)
    for seed in range(5):
        tree = random_tree(seed, 14)
        found = score(target, filled(target, text), 7, tree)
        for node in range(len(tree)):
            path = tree.path(node)
            alone = rows_of(target, np.concatenate([[7], tree.tokens[path]]), text)
            assert torch.equal(found[[0, *(step + 1 for step in path)]], alone)


@every_family
def test_rows_are_equal_behind_a_prompt_in_pieces(name: str) -> None:
    target, text, line = target_of(name), tokens(150), tokens(6, 1)
    wanted = rows_of(target, line, text)
    for piece in (1, 7, 64, 65, 149):
        rows = target.open()
        for first in range(0, len(text), piece):
            part = text[first : first + piece]
            target.submit([Request.of_prompt(rows, part)]).result()
            rows.keep(range(len(part)))
        assert torch.equal(score(target, rows, int(line[0]), chain(line)), wanted)


@every_family
def test_rows_are_equal_in_tiles_of_every_height(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, text, line = target_of(name), tokens(150), tokens(50, 1)
    wanted = rows_of(target, line, text)
    for rows in (1, 7, 16, 49, 200):
        monkeypatch.setattr(operations, "tile_rows", lambda heads, keys, rows=rows: rows)
        assert torch.equal(rows_of(target, line, text), wanted)


def test_the_scores_of_a_tile_do_not_grow_with_the_text() -> None:
    heads = 16
    sizes = [operations.tile_rows(heads, keys) * heads * keys for keys in (1, 100, 1000, 2000, 4000)]
    assert sizes == sorted(sizes)
    assert max(sizes) <= operations.SCORES
    assert operations.tile_rows(heads, 10**6) == operations.FEWEST


@every_family
def test_rows_are_equal_beside_other_sequences(name: str) -> None:
    target = target_of(name)
    texts = [tokens(count, count) for count in (3, CONTEXT, 131)]
    lines = [tokens(count, count) for count in (1, 20, 8)]
    requests = [
        Request.of_tree(filled(target, text), int(line[0]), chain(line))
        for text, line in zip(texts, lines, strict=True)
    ]
    for found, line, text in zip(target.submit(requests).result(), lines, texts, strict=True):
        assert torch.equal(found.logits, rows_of(target, line, text))


NO_NUMBERS = 0
"""A token that `tokens` never draws."""


@cache
def spoilt(name: str, value: float) -> IntegerTarget:
    """A target whose states overflow, or are no numbers, at one token."""
    target = in_integers(load_quietly(build(name)))
    target.model.model.embed_tokens.weight.data[NO_NUMBERS, 3] = value
    return target


def same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit, where both are numbers."""
    return torch.equal(one.nan_to_num(1e9), other.nan_to_num(1e9)) and torch.equal(one.isnan(), other.isnan())


every_spoilt = pytest.mark.parametrize("value", [float("nan"), float("inf")])


@every_family
@every_spoilt
def test_rows_that_are_no_numbers_reach_no_row_of_a_tree_that_does_not_see_them(name: str, value: float) -> None:
    target, text, tree = spoilt(name, value), tokens(CONTEXT), random_tree(1, 14)
    tree.tokens[3] = NO_NUMBERS
    found = score(target, filled(target, text), 7, tree)
    for node in range(len(tree)):
        path = tree.path(node)
        alone = stepwise(target, filled(target, text), np.concatenate([[7], tree.tokens[path]]))
        assert same(found[[0, *(step + 1 for step in path)]], alone)
        assert bool(found[node + 1].isnan().all()) is (3 in path)


@every_family
@every_spoilt
def test_rows_that_are_no_numbers_reach_no_earlier_row_of_a_prompt(name: str, value: float) -> None:
    target, text = spoilt(name, value), tokens(150)
    text[100] = NO_NUMBERS  # in the middle of a tile
    request = Request.of_prompt(target.open(), text, Want(logits=True))
    found = target.submit([request]).result()[0].logits
    assert same(found, stepwise(target, target.open(), text))
    assert not bool(found[:100].isnan().any())


def test_rows_that_are_no_numbers_end_with_the_window_in_a_draft_as_in_single_rows() -> None:
    target, text, line = spoilt("mistral", float("nan")), tokens(CONTEXT), tokens(12, 1)
    text[-LAYERS * (WINDOW - 1)] = NO_NUMBERS
    found, wanted = rows_of(target, line, text), stepwise(target, filled(target, text), line)
    assert same(found, wanted)
    assert 0 < int(found.isnan().all(1).sum()) < len(line)


@pytest.mark.parametrize("kernel", [InFloats, kernels.Compiled, *kernels.KERNELS])
def test_a_row_that_is_no_number_stays_alone_in_a_product(
    kernel: type[Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_exact(kernel):
        pytest.skip(f"this processor has no exact {kernel.__name__}")
    monkeypatch.setattr("paceline.targets.hf.integers.linear.kernel_for", lambda threads: kernel)
    layer, rows = Int8Linear(torch.nn.Linear(64, 8)), torch.randn(7, 64)
    wanted = layer(rows)
    rows[2, 5], rows[4, 5] = float("nan"), float("inf")
    found = layer(rows)
    assert not bool(found[[2, 4]].isfinite().any())
    assert torch.equal(found[[0, 1, 3, 5, 6]], wanted[[0, 1, 3, 5, 6]])


@every_family
def test_logits_stay_near_those_in_floats(name: str) -> None:
    text, line = tokens(CONTEXT), tokens(40, 1)
    ours, wanted = rows_of(target_of(name), line, text), rows_of(load_quietly(build(name)), line, text)
    assert float((ours - wanted).square().mean().sqrt() / wanted.std()) < 0.2


# --- the check ----------------------------------------------------------------------------------------------


def checked(target: HFTarget) -> Any:
    methods = ["lookup", "suffix"]
    return Checker(target, methods=methods, rules=[Rule.COUPLED], max_new_tokens=12, batches=[1, 4]).run()


def one_scale(self: Int8Linear, rows: Tensor) -> Tensor:
    """A step for all rows of a forward."""
    flat = rows.reshape(-1, self.in_features)
    step = flat.abs().max() / LARGEST_INT8
    return self.product(flat / step).mul_(step).view(*rows.shape[:-1], self.out_features)


def other_tiles(self: Int8Linear, rows: Tensor) -> Tensor:
    """Sums of floats whose order depends on the number of rows."""
    flat = rows.reshape(-1, self.in_features)
    width = 16 if len(flat) < 4 else 24
    weight = self.unpacked_weight()
    parts = [part @ piece.t() for part, piece in zip(flat.split(width, 1), weight.split(width, 1), strict=True)]
    return torch.stack(parts).sum(0).view(*rows.shape[:-1], self.out_features)


def float_attention(self: ExactOperations, segments: Sequence[Segment]) -> PackedKVCache:
    return PackedKVCache(segments)


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "one scale for all rows": (Int8Linear, "forward", one_scale),
    "tiles by the number of rows": (Int8Linear, "forward", other_tiles),
    "attention in floats": (ExactOperations, "cache", float_attention),
}


def test_the_check_compares_every_row_that_comes_again() -> None:
    report = checked(target_of("llama"))
    assert not report.bugs
    assert not report.faults
    assert report.same_bits > 500


@pytest.mark.parametrize("planted", PLANTED)
def test_the_check_finds_rows_that_depend_on_others(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, made = PLANTED[planted]
    monkeypatch.setattr(where, name, made)
    target = target_of("llama")
    path: Any = target.paths[0]
    with target.using(Lean(target._own, path._operations)):
        report = checked(target)
    assert any("bit" in fault for fault in report.faults)


def test_the_check_finds_compiled_rows_that_see_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama")
    if type(target.paths[0]) is Lean:
        pytest.skip("nothing is compiled here, or another kernel is faster")
    from paceline.targets.hf.fused import layout, path

    rows_of = path.rows_of

    def seeing(requests: Sequence[Request]) -> Any:
        table, further = rows_of(requests)
        table[:, layout.PREFIX] = np.maximum(table[:, layout.PREFIX], table[-1, layout.PREFIX])
        return table, further

    monkeypatch.setattr(path, "rows_of", seeing)
    assert any("bit" in fault for fault in checked(target).faults)


# --- loading ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    build("llama").save_pretrained(path)
    return path


def test_a_folder_is_opened_in_integers(folder: Path) -> None:
    lm = paceline.load(folder, tokenizer=None, quantize="int8")
    text = tokens(CONTEXT)
    assert lm.target.dtype == "int8"
    assert lm.target.context_length == POSITIONS
    assert torch.equal(rows_of(lm.target, text[:9], text), rows_of(target_of("llama"), text[:9], text))


def test_integers_have_another_fingerprint_than_floats(folder: Path) -> None:
    loaded = [paceline.load(folder, tokenizer=None, quantize=kind).target for kind in (None, "int8")]
    assert loaded[0].fingerprint() != loaded[1].fingerprint()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quantize": "int2"}, "int2"),
        ({"quantize": "int8", "dtype": "bfloat16"}, "computes in float32"),
        ({"quantize": "int8", "device_map": "auto"}, "for CPUs"),
        ({"quantize": "int8", "fixed_shapes": True}, "leave fixed_shapes out"),
        ({"dtype": "int8"}, "quantize='int8'"),
    ],
)
def test_what_integers_cannot_be_is_said_in_a_sentence(folder: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        paceline.load(folder, tokenizer=None, **options)


def test_integers_are_for_the_cpu() -> None:
    with pytest.raises(InputError, match="for CPUs"):
        check_place("a model", None, torch.device("cuda"))


def test_a_model_in_memory_is_not_quantised() -> None:
    with pytest.raises(InputError, match="quantize"):
        paceline.load(build("llama"), tokenizer=None, quantize="int8")


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_models_whose_weights_are_not_linear_layers_are_not_quantised(name: str) -> None:
    with pytest.raises(InputError, match="cannot be quantised"):
        in_integers(load_quietly(build(name)))


def test_another_activation_is_left_to_transformers() -> None:
    assert isinstance(in_integers(load_quietly(build("llama", hidden_act="gelu"))), OrdinaryIntegerTarget)


def test_layers_that_are_not_plain_ones_are_not_quantised() -> None:
    class Adapted(torch.nn.Linear):
        pass

    for name in ("down_proj", "up_proj"):
        model = build("llama")
        layer = getattr(model.model.layers[1].mlp, name)
        layer.__class__ = Adapted
        with pytest.raises(UnsupportedModel, match="quantised already, or adapted"):
            in_integers(load_quietly(model))


def test_rows_that_depend_on_others_are_found_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Int8Linear, "forward", one_scale)
    with pytest.raises(UnsupportedModel, match="rows depend on each other"):
        in_integers(load_quietly(build("llama")))


def test_a_model_that_was_changed_after_loading_is_told_in_a_sentence(folder: Path) -> None:
    lm = paceline.load(folder, tokenizer=None, quantize="int8")
    handle = lm.target._own.model.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="hooks or replaces"):
        lm.generate(tokens(5).tolist(), max_new_tokens=4)
    handle.remove()
    assert len(lm.generate(tokens(5).tolist(), max_new_tokens=4).tokens) == 4


def test_the_float_weights_of_a_checkpoint_do_not_stay(folder: Path) -> None:
    target = load_quietly(build("llama"))
    kept = [weakref.ref(layer.self_attn.q_proj.weight) for layer in target.model.model.layers]
    embedding = target.model.model.embed_tokens.weight.data
    ours = in_integers(target)
    del target
    gc.collect()
    assert not [weight for weight in kept if weight() is not None]
    assert ours._own.model.model.embed_tokens.weight.data_ptr() != embedding.data_ptr()


def times_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are opened from now on, once for each time."""
    read, names = loading._config, list[str]()

    def noting(name: str, *rest: Any) -> Any:
        names.append(name)
        return read(name, *rest)

    monkeypatch.setattr(loading, "_config", noting)
    return names


def test_a_draft_model_of_another_structure_is_opened_once_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("gpt2").to(torch.bfloat16).save_pretrained(tmp_path)
    opened = times_opened(monkeypatch)
    draft = DraftModel.load(tmp_path, target_of("llama")).target
    assert opened == [str(tmp_path)]
    assert (draft.dtype, draft.note) == ("float32", None)
    wanted = paceline.load(tmp_path, tokenizer=None, dtype="float32").target
    assert torch.equal(rows_of(draft, tokens(5), tokens(9)), rows_of(wanted, tokens(5), tokens(9)))


def test_kernels_that_are_not_uniform_refuse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets.hf.integers import target

    monkeypatch.setattr(target, "is_uniform", lambda: False)
    with pytest.raises(InputError, match="alike"):
        paceline.load(folder, tokenizer=None, quantize="int8")


# --- texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [InFloats, kernels.Compiled, *kernels.KERNELS])
def test_kernels_agree_on_a_models_rows(kernel: type[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, so that the one that is chosen does not show in a text."""
    if not is_exact(kernel):
        pytest.skip(f"this processor has no exact {kernel.__name__}")
    monkeypatch.setattr("paceline.targets.hf.integers.linear.kernel_for", lambda threads: kernel)
    text = tokens(CONTEXT)
    ours, wanted = (
        rows_of(in_integers(load_quietly(build("llama"))), text, text),
        rows_of(target_of("llama"), text, text),
    )
    assert torch.equal(ours, wanted)


def test_pocket_and_its_draft_model_write_one_text_under_every_method() -> None:
    lm = paceline.load("pocket", quantize="int8", generation_config=False)
    texts = {
        method: lm.generate("Wczoraj", method=method, max_new_tokens=40, temperature=0.8, seed=3, **more).text
        for method, more in {
            "plain": {},
            "lookup": {},
            "auto": {},
            "assistant": {"draft_model": "pocket-draft"},
        }.items()
    }
    assert len(set(texts.values())) == 1
