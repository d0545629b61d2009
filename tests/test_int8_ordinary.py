"""Models that only transformers computes, in integers with doubles between them: a row has the same bits whatever it is
computed with, and however its text was read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import get_overridable_functions

import families
import paceline
from paceline import InputError
from paceline.errors import UnsupportedModel
from paceline.targets.base import Request, Want
from paceline.targets.hf.integers.doubles import MENDED, InDoubles
from paceline.targets.hf.integers.linear import Int4Linear, Int8Linear, IntegerLinear
from paceline.targets.hf.integers.ordinary import OrdinaryIntegerTarget
from paceline.targets.hf.integers.target import quantized as in_integers
from paceline.targets.hf.load import load_target
from paceline.tree import EMPTY, DraftTree, Ints
from paceline_lab.check.tiny import TINY_VOCABULARY, build, configuration
from scoring import load_quietly
from thinning import thinned

STATES = [
    "qwen3_5",
    "mamba2",
    "falcon_h1",
    "mamba",
    "lfm2",
    "olmo_hybrid",
    "bamba",
    "zamba2",
    "recurrent_gemma",
    "xlstm",
]
ROWS = ["gemma2", "phi", "gpt_neox", "bloom", "opt", "cohere2", "glm4"]
"""Families with rows for all tokens that are not built like a llama."""
LENGTH = 32


@cache
def target_of(family: str) -> OrdinaryIntegerTarget:
    config = configuration(family, "small")
    assert config is not None
    target = in_integers(load_quietly(build(config)))
    assert isinstance(target, OrdinaryIntegerTarget)
    return target


def drawn(seed: int, count: int) -> Ints:
    return np.random.default_rng(seed).integers(1, TINY_VOCABULARY, count)


@torch.no_grad()
def plainly(target: OrdinaryIntegerTarget, text: Ints, start: int) -> Tensor:
    """Logits of plain decoding: a prompt of ``start`` tokens, then the others one by one."""
    rows = target.open()
    target.forward([Request.of_prompt(rows, text[:start])])
    rows.keep(range(start))
    found = []
    for token in text[start:]:
        found.append(target.forward([Request.of_tree(rows, int(token), EMPTY)])[0].logits[0])
        rows.keep([0])
    return torch.stack(found)


@pytest.mark.parametrize("family", thinned([*STATES, *ROWS], every=2))
def test_rows_of_trees_have_the_bits_of_plain_decoding(family: str) -> None:
    target, dice = target_of(family), np.random.default_rng(7)
    for case in range(6):
        text, count = drawn(case, 9 + 5 * case), int(dice.integers(3, 17))
        trees = target.reach(len(text)).trees
        parents = [int(dice.integers(-1, node)) if trees else node - 1 for node in range(count)]
        tree = DraftTree.build(drawn(100 + case, count), parents).head(count, depth=target.reach(len(text)).depth)
        rows = target.open()
        target.forward([Request.of_prompt(rows, text[:-1])])
        rows.keep(range(len(text) - 1))
        found = target.forward([Request.of_tree(rows, int(text[-1]), tree)])[0].logits
        path = tree.path(len(tree) - 1)
        wanted = plainly(target, np.array([*text, *tree.tokens[path]]), len(text) - 1)
        assert torch.equal(found[[0, *(node + 1 for node in path)]], wanted)


@pytest.mark.parametrize("family", thinned([*STATES, *ROWS], every=3))
def test_a_seed_writes_one_text_alone_and_in_batches(family: str) -> None:
    lm = paceline.LanguageModel(target_of(family))
    prompts = [[*drawn(number, 4 + 3 * number).tolist()] * 2 for number in range(4)]
    for temperature in (0.0, 0.8):
        alone = [
            lm.generate(prompt, max_new_tokens=LENGTH, temperature=temperature, seed=5, method="plain").tokens
            for prompt in prompts
        ]
        for method in ("suffix", "auto"):
            texts = lm.generate_batch(prompts, max_new_tokens=LENGTH, temperature=temperature, seed=5, method=method)
            assert [text.tokens for (text,) in texts] == alone, method


@pytest.mark.parametrize("family", ["qwen3_5", "mamba2", "mamba", "falcon_h1", "lfm2", "olmo_hybrid"])
def test_a_text_has_the_same_rows_however_it_was_read(family: str) -> None:
    """As a prompt, in pieces, or token by token: a text that was paused reads itself again."""
    target, text = target_of(family), drawn(3, 40)
    apart = plainly(target, text, 1)[-1]
    assert torch.equal(plainly(target, text, 39)[-1], apart)
    rows = target.open()
    for piece in np.split(text[:-1], [7, 8, 30]):
        target.forward([Request.of_prompt(rows, piece)])
        rows.keep(range(len(piece)))
    assert torch.equal(target.forward([Request.of_tree(rows, int(text[-1]), EMPTY)])[0].logits[0], apart)


def test_a_row_that_is_computed_in_another_way_beside_others_is_seen() -> None:
    """The planted fault: an input is a hundredth larger in forwards of several rows."""
    target, text = target_of("gemma2"), drawn(3, 30)
    norm = target.model.model.layers[0].input_layernorm
    first = 0.01 * torch.nn.functional.one_hot(torch.tensor(0), norm.weight.numel())
    hook = norm.register_forward_pre_hook(lambda _, given: (given[0] * (1 + first * (given[0].shape[1] == 16)),))
    try:
        rows = target.open()
        target.forward([Request.of_prompt(rows, text[:14])])
        rows.keep(range(14))
        together = target.forward([Request.of_tree(rows, int(text[14]), DraftTree.chain(text[15:]))])[0].logits
    finally:
        hook.remove()
    assert not torch.equal(together, plainly(target, text, 14))


@pytest.mark.parametrize("family", ["gemma2", "phi", "glm4"])
def test_logits_are_equal_before_they_are_rounded(family: str) -> None:
    """Products have the same bits, so little is left that may differ: not in a head over a large vocabulary either."""
    target, text, found = target_of(family), drawn(5, 30), list[Tensor]()
    assert target.anatomy.head is not None
    hook = target.anatomy.head.register_forward_hook(lambda _, __, out: found.append(out))
    plainly(target, text, 14)
    apart = torch.cat([out[0] for out in found[-16:]])
    rows = target.open()
    target.forward([Request.of_prompt(rows, text[:14])])
    rows.keep(range(14))
    target.forward([Request.of_tree(rows, int(text[14]), DraftTree.chain(text[15:]))])
    hook.remove()
    assert apart.dtype == torch.float64
    assert torch.equal(found[-1][0], apart)


def test_what_is_done_at_an_early_exit_is_not_in_doubles() -> None:
    target, heard = target_of("gemma2"), list[torch.dtype]()

    def hear(early: Tensor) -> None:
        heard.extend([early.dtype, torch.zeros(3).exp().dtype, torch.nn.Embedding(2, 2)(torch.tensor(1)).dtype])

    want = Want(logits=True, early_exit=1)
    request = Request.of_tree(target.open(), 3, EMPTY, want, on_early=hear)
    target.forward([request])
    assert heard == [torch.float32] * 3


def test_a_folder_is_opened_in_8_and_in_4_bits(tmp_path: Path) -> None:
    config = configuration("qwen3_5", "small")
    assert config is not None
    build(config).to(torch.bfloat16).save_pretrained(tmp_path)
    for bits, kind in ((8, Int8Linear), (4, Int4Linear)):
        target = load_target(tmp_path, quantize=f"int{bits}")
        assert isinstance(target, OrdinaryIntegerTarget)
        assert (target.dtype, target.exact) == (f"int{bits}", True)
        kinds = {type(part) for part in target.model.modules() if isinstance(part, IntegerLinear)}
        assert kinds == {kind, Int8Linear}  # the head has 8 bits
        lm = paceline.LanguageModel(target)
        texts = {
            tuple(lm.generate([3, 4, 5] * 4, max_new_tokens=24, temperature=0.8, seed=2, method=method).tokens)
            for method in ("plain", "auto", "lookup")
        }
        assert len(texts) == 1


def test_states_that_heads_read_are_float32() -> None:
    target = target_of("qwen3_5")
    rows, text = target.open(), drawn(0, 9)
    (scores,) = target.forward([Request.of_prompt(rows, text, Want(logits=True, hidden=frozenset({0, target.layers})))])
    assert {scores.hidden(layer).dtype for layer in (0, target.layers)} == {torch.float32}
    assert scores.logits.dtype == torch.float32


def test_a_model_that_its_owner_calls_computes_as_ever() -> None:
    target, ids = target_of("gemma2"), torch.from_numpy(drawn(1, 12))[None]
    before = target.model(ids).logits
    plainly(target, drawn(1, 12), 6)
    assert before.dtype == torch.float32
    assert torch.equal(target.model(ids).logits, before)


@pytest.mark.parametrize("family", ["granitemoehybrid", "jamba", "minimax"])
def test_experts_are_refused(family: str) -> None:
    config = configuration(family, "small")
    assert config is not None
    with pytest.raises(UnsupportedModel, match=r"linear layers hold \d+% of its weights, and the others \(such as exp"):
        in_integers(load_quietly(build(config)))


def test_what_does_not_compute_in_doubles_is_refused() -> None:
    """Experts that multiply in groups take floats of other types only."""
    config = configuration("qwen3_next", "small")
    assert config is not None
    with pytest.raises(UnsupportedModel, match="cannot be quantised: it does not compute in doubles"):
        in_integers(load_quietly(build(config)))


def test_other_layers_than_linear_ones_are_refused(tmp_path: Path) -> None:
    families.save("gpt2", tmp_path)
    with pytest.raises(InputError, match="linear layers hold 0% of its weights"):
        paceline.load(tmp_path, quantize="int8")


# --- doubles ----------------------------------------------------------------------------------------------------


def test_what_is_a_double_stays_one_and_what_is_not_stays_as_it_is() -> None:
    wide, narrow = torch.linspace(0, 1, 7).double(), torch.linspace(0, 1, 7)
    with InDoubles():
        assert wide.float().dtype == wide.to(torch.float32).dtype == wide.to(dtype=torch.float32).dtype == torch.float64
        written = torch.zeros(3)
        written.exp_()
        assert written.tolist() == [1, 1, 1]
        assert torch.sigmoid(written, out=written) is written
        assert wide.type_as(narrow).dtype == torch.float64
        assert torch.softmax(wide, 0, dtype=torch.float32).dtype == torch.float64
        assert narrow.exp().dtype == (narrow @ wide).dtype == torch.float64
        assert (narrow + 1).dtype == narrow.to(torch.float32).dtype == torch.float32
        assert wide.to(torch.int64).dtype == torch.int64
        assert wide.to("cpu", torch.bfloat16).dtype == torch.bfloat16
    assert wide.float().dtype == torch.float32


def test_exponentials_do_not_depend_on_their_place() -> None:
    values = torch.linspace(-20, 20, 999)
    with InDoubles():
        alone, together = torch.cat([value.sigmoid() for value in values.split(1)]), values.sigmoid()
    assert torch.equal(together.float(), alone.float())


def test_functions_that_are_changed_exist() -> None:
    """A wrong name would change nothing."""
    names = {function.__name__ for group in get_overridable_functions().values() for function in group}
    assert names >= MENDED
