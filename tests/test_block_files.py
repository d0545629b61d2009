"""Files of block heads: what is refused, what is written and read again, heads for models with ballast, training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

import paceline
from block_heads import KINDS, Made, made
from paceline.drafters.networks.block import BlockDrafter
from paceline.drafters.networks.block.checkpoint import read_block, write_block
from paceline.drafters.networks.block.fitting import states_of, widened
from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.shape import BlockShape, read_shape
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import method_for
from paceline.drafters.networks.layers import LayerShape
from paceline.errors import DamagedFile, InputError
from paceline.targets.table import TableTarget, random_table

SMALL = BlockShape(
    layer=LayerShape(width=16, units=20, heads=4, kv_heads=2, head_size=4, head_norms=True),
    vocab_size=40,
    block=4,
    mask_token=39,
    states=(1, 3),
    windows=(None, None),
    causal=(False, False),
    target_layers=4,
)
SHAPES = {
    "dflash": SMALL,
    "part": replace(SMALL, kept=12, own_output=True),
    "thin": replace(SMALL, kept=12, own_output=True, rank=5),
    "windows": replace(SMALL, windows=(3, None), causal=(True, False), window_of_anchor=True),
    "jetspec": replace(SMALL, causal=(True, True)),
    "dflash2": replace(SMALL, taps=2, group=4, selector_rank=3, selector_top=7),
    "dspark": replace(SMALL, from_anchor=True, markov_rank=3, markov="gated", confidence=True, own_embedding=True),
    "scaled": replace(SMALL, softcap=5.0, output_scale=0.5, embedding_scale=2.0),
}


def head_of(shape: BlockShape, seed: int = 0) -> BlockHead:
    torch.manual_seed(seed)
    head = BlockHead(shape)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return head


def predicted(head: BlockHead, ratio: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """What a head predicts behind anchors, of states whose channels are followed by zeros; and its logits."""
    random, shape = torch.Generator().manual_seed(1), head.shape
    width = shape.width // ratio

    def wide(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, shape.width - width))

    states = torch.cat([wide(torch.randn(2, 9, width, generator=random)) for _ in shape.states], dim=-1)
    tokens = torch.randint(shape.vocab_size, (2, 9), generator=random)
    embedding, output = (wide(torch.randn(shape.vocab_size, width, generator=random)) for _ in range(2))
    found = head(states, tokens, torch.tensor([[3, 8], [0, 5]]), embedding.__getitem__)
    return found, head.logits(found, output.T.__rmatmul__)


# --- files that cannot be used -----------------------------------------------------------------------------


def without(name: str) -> Callable[[Made], None]:
    def change(head: Made) -> None:
        del head.tensors[name]

    return change


def said(**values: Any) -> Callable[[Made], None]:
    return lambda head: head.config.update(values)


def said_inside(**values: Any) -> Callable[[Made], None]:
    return lambda head: head.config["dflash_config"].update(values)


def added(name: str, *shape: int) -> Callable[[Made], None]:
    return lambda head: head.tensors.update({name: torch.zeros(shape)})


def infinite(head: Made) -> None:
    head.tensors["fc.weight"][0, 0] = torch.inf


WRONG = {
    "no fc": (without("fc.weight"), "lacks the tensor fc.weight"),
    "no norm": (without("layers.0.self_attn.q_norm.weight"), "q_norm|k_norm"),
    "other width": (added("hidden_norm.weight", 3), "hidden_norm.weight .* is 3, and its configuration says"),
    "strange": (added("layers.0.other.weight", 3), "holds a tensor 'layers.0.other.weight'"),
    "infinite": (infinite, "not finite"),
    "mask": (said_inside(mask_token_id=10**6), "mask_token_id is 1000000, and its vocabulary"),
    "no mask": (said_inside(mask_token_id=None), "mask_token_id is None, not a whole number"),
    "layers": (said_inside(target_layer_ids="all"), "target_layer_ids is 'all', not a list of layers"),
    "block": (said_inside(block_size=1), "block_size is 1"),
    "many layers": (said(num_hidden_layers=10**6, layer_types=None), "says 1000000 layers"),
    "wide": (said(hidden_size=10**9), "hidden_size 1000000000, and no tensor"),
    "rope": (said(rope_parameters={"rope_type": "dynamic"}), "rotary embedding is 'dynamic'"),
    "activation": (said(hidden_act="gelu"), "hidden_act is 'gelu'"),
    "wider target": (said(target_hidden_size=64), r"is \d+ wide and its target 64, which paceline does not compute"),
    "domino": (said_inside(projector_type="domino"), "one of Domino, whose corrections paceline does not compute"),
    "xpress": (added("xpress_head.w1.weight", 3), "one of XPress"),
    "lilicorr": (added("lilicorr.layers.0.weight", 3), "one of LiLiCorr"),
    "vocabulary": (said(draft_vocab_size=5), "lm_head"),
    "epsilon": (said(rms_norm_eps=None), "a value is of the wrong kind"),
    "rope name": (said(rope_scaling="yarn"), "a value is of the wrong kind"),
    "rope base": (said(rope_parameters=None, rope_theta=[1]), "a value is of the wrong kind"),
    "rope factor": (said(rope_parameters={"rope_type": "linear"}), "it has no factor"),
    "rank": (said(paceline={"version": 1, "rank": -1}), "rank is -1, and cannot be negative"),
    "single": (added("fc.weight"), "the tensor fc.weight of .* is a single number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    head = made("zlab", 1)
    change(head)
    with pytest.raises((InputError, DamagedFile), match=message) as refused:
        read_block(head.save(tmp_path))
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    for file in ("pytorch_model.bin", "mask_embedding.pt"):
        folder = made("zlab", 1).save(tmp_path / file)
        if file == "pytorch_model.bin":
            (folder / "model.safetensors").unlink()
        torch.save({"fc.weight": Trap()}, folder / file)
        with pytest.raises(InputError, match="could run code"):
            read_block(folder)
        assert not (tmp_path / "ran").exists()


def test_a_pickle_of_tensors_is_read(tmp_path: Path) -> None:
    head = made("dspark", 1)
    folder = head.save(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(head.tensors, folder / "pytorch_model.bin")
    assert torch.equal(read_block(folder)[0].fc.weight, head.tensors["fc.weight"])


def test_a_mask_embedding_of_another_token_or_width_is_refused(tmp_path: Path) -> None:
    head = made("zlab", 1)
    folder = head.save(tmp_path)
    for content, message in (
        ({"mask_token_id": 1 + head.mask_token, "embedding": torch.zeros(4)}, "mask token is another"),
        (torch.zeros(5), "mask_embedding .* is 5"),
        ({"other": torch.zeros(5)}, "holds no embedding"),
    ):
        torch.save(content, folder / "mask_embedding.pt")
        with pytest.raises(InputError, match=message):
            read_block(folder)
    torch.save(torch.ones(1, head.layers["hidden_size"]), folder / "mask_embedding.pt")
    assert read_block(folder)[0].mask_embedding is not None


def test_a_wrong_rank_of_ties_is_refused(tmp_path: Path) -> None:
    head = made("dspark", 1)
    folder = head.save(tmp_path)
    (folder / "config.json").write_text(json.dumps({**head.config, "markov_rank": None}))
    with pytest.raises(DamagedFile, match="a value is of the wrong kind"):
        read_block(folder)


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_mask_embedding_of_rubbish_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = made("zlab", 1).save(tmp_path)
    (folder / "mask_embedding.pt").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"mask_embedding\.pt is damaged: \w"):
        read_block(folder)


def test_other_targets_are_refused(tmp_path: Path) -> None:
    target = TableTarget(random_table(6), 6)

    def refused(message: str, **given: Any) -> Path:
        head = made("jetspec", 1, output=True, **{"width": 6, "vocab": 6, "depth": 1, **given})
        folder = head.save(tmp_path / str(len(list(tmp_path.iterdir()))))
        with pytest.raises(InputError, match=message):
            BlockDrafter(head=folder).fit(target)
        return folder

    refused("reads states of width 5", width=5)
    refused("names 9 tokens", vocab=9)
    folder = refused("was made for a model of 7 layers, and table has 1", depth=7)
    with pytest.raises(InputError, match="was trained for another model, not for pocket"):
        BlockDrafter(head=write_for_pocket(folder / "pocket")).fit(paceline.load("pocket").target)


def write_for_pocket(folder: Path) -> Path:
    """A head that says that it was made for other weights."""
    head = made("jetspec", 1, width=256, vocab=8192, depth=8).save(folder)
    write_block(folder, read_block(head)[0], Provenance(target="other", target_name="another model"))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_says_which_method_drafts_with_it(kind: str, tmp_path: Path) -> None:
    assert method_for(made(kind, 1).save(tmp_path)) == "block"


# --- what configurations leave out, or state in another way -------------------------------------------------


def shape_of(head: Made, folder: Path, **layers: Any) -> BlockShape:
    """The shape of a head whose configuration says these of its layers; None for what it leaves out."""
    head.layers.update(layers)
    for name in [name for name, value in layers.items() if value is None]:
        del head.layers[name]
    return read_block(head.save(folder))[0].shape


@pytest.mark.parametrize(
    ("model_type", "stated", "slides"),
    [
        ("llama", None, True),
        ("mistral", None, True),
        ("llama", True, True),
        ("llama", False, False),
        ("qwen3", None, False),
        ("qwen2", None, False),
        ("qwen3", True, True),
    ],
)
@pytest.mark.parametrize("kind", ["dflash", "zlab"])
def test_layers_that_are_called_sliding_have_the_window(
    kind: str, model_type: str, stated: bool | None, slides: bool, tmp_path: Path
) -> None:
    """`use_sliding_window` is a key of Qwen's alone, which is False where it is left out."""
    head = made(kind, 1)
    types = ["sliding_attention"] + ["full_attention"] * (head.layers["num_hidden_layers"] - 1)
    rest = (None,) * (len(types) - 1)
    shape = shape_of(
        head, tmp_path, model_type=model_type, layer_types=types, sliding_window=16, use_sliding_window=stated
    )
    assert shape.windows == ((16 if slides else None), *rest)
    shape = shape_of(head, tmp_path, layer_types=["full_attention"] * len(types), sliding_window=None)
    assert not any(shape.windows)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"])
def test_only_qwens_sizes_may_be_left_out(name: str, tmp_path: Path) -> None:
    layers = dict(made("zlab", 1).config)
    del layers[name]
    shape = read_shape(layers, frozenset(), tmp_path)
    sizes = {"vocab_size": shape.vocab_size, "hidden_size": shape.width}
    sizes |= {"intermediate_size": shape.layer.units, "num_attention_heads": shape.layer.heads}
    assert sizes[name] == Qwen3Config().to_dict()[name]
    del layers["model_type"]
    assert read_shape(layers, frozenset(), tmp_path) == shape
    with pytest.raises(DamagedFile, match=f"{name} is None, not a whole number"):
        read_shape({**layers, "model_type": "llama"}, frozenset(), tmp_path)


@pytest.mark.parametrize("kind", ["dflash", "dspark_speculators", "zlab"])
def test_the_anchors_row_predicts_by_any_of_three_names(kind: str, tmp_path: Path) -> None:
    """The first that is stated; null states nothing."""
    names = ("sample_from_anchor", "draft_shift", "shift_label")
    for number, stated in enumerate(product((None, False, True), repeat=3)):
        head = made(kind, 1)
        place = head.config.get("dflash_config", head.config)
        place.update(zip(names, stated, strict=True))
        first = next((each for each in stated if each is not None), "dspark" in kind)
        shape = read_block(head.save(tmp_path / str(number)))[0].shape
        assert (shape.from_anchor, shape.places) == (first, head.block - (not first))


@pytest.mark.parametrize("kind", ["dflash", "dspark", "zlab"])
def test_a_target_as_wide_as_the_head_may_be_stated(kind: str, tmp_path: Path) -> None:
    head = made(kind, 1)
    width = head.layers["hidden_size"]
    said(target_hidden_size=width)(head)
    assert read_block(head.save(tmp_path))[0].shape.width == width


# --- writing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    head = head_of(SHAPES[name])
    if head.token_ids is not None:
        head.token_ids = torch.arange(12) * 3 + 1
    write_block(tmp_path, head, Provenance(target="print", target_name="model", trained={"steps": 3}))
    again, facts = read_block(tmp_path)
    assert again.shape == replace(head.shape, rope=again.shape.rope)
    assert (facts.target, facts.target_name, facts.width, facts.vocab_size) == ("print", "model", 16, 40)
    for one, other in zip(predicted(head), predicted(again), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    kind = {"dflash2": "dflash2", "dspark": "dspark", "jetspec": None, "scaled": None}.get(name, "dflash")
    assert config.get("speculators_model_type") == kind
    if kind is not None:
        assert config["aux_hidden_state_layer_ids"] == [1, 3]
    else:
        assert config["dflash_config"]["target_layer_ids"] == [0, 2]


def test_either_table_names_the_known_tokens_and_both_must_agree(tmp_path: Path) -> None:
    head, file = head_of(SHAPES["part"]), tmp_path / "model.safetensors"
    head.token_ids = torch.arange(12) * 3 + 1
    write_block(tmp_path, head)
    both = load_file(file)
    for left_out in ("d2t", "t2d"):
        save_file({name: weight for name, weight in both.items() if name != left_out}, file)
        assert read_block(tmp_path)[0].token_ids.tolist() == head.token_ids.tolist()
    for changed, message in (
        ({"t2d": both["t2d"].roll(1)}, "d2t and t2d of .* name different tokens"),
        ({"t2d": both["t2d"][:20]}, "t2d of .* is 20 of type bool, and its configuration says 40 numbers"),
        ({"d2t": both["d2t"].float()}, "d2t of .* is 12 of type float32"),
        ({"d2t": both["d2t"] + 40}, "name different tokens"),
    ):
        save_file(both | changed, file)
        with pytest.raises((InputError, DamagedFile), match=message):
            read_block(tmp_path)
    for name in ("d2t", "t2d"):
        del both[name]
    save_file(both, file)
    with pytest.raises(InputError, match="lacks the tensor d2t, which says what its 12 tokens are"):
        read_block(tmp_path)


def test_integers_are_small_and_close(tmp_path: Path) -> None:
    head = head_of(SHAPES["thin"])
    write_block(tmp_path, head, Provenance(int8=True, dtype=torch.bfloat16))
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["lm_head.1.weight"].dtype == torch.int8
    assert stored["fc.weight"].dtype == torch.int8
    assert stored["norm.weight"].dtype == torch.bfloat16
    again = read_block(tmp_path)[0].float()
    torch.testing.assert_close(predicted(again)[1], predicted(head)[1], atol=0.3, rtol=0.1)


# --- ballast, training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_widened_head_computes_the_same(name: str) -> None:
    head = head_of(SHAPES[name])
    found, logits = predicted(widened(head, 4), 4)
    expected, wanted = predicted(head)
    torch.testing.assert_close(found[..., :16], expected, atol=1e-4, rtol=1e-3)
    assert not found[..., 16:].any()
    torch.testing.assert_close(logits, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn"])
def test_widened_ties_compute_the_same(markov: Any) -> None:
    shape = replace(SHAPES["dspark"], markov=markov)
    for each in (shape, SHAPES["dflash2"]):
        small = head_of(each)
        wide = widened(small, 4)
        hidden = torch.randn(2, 3, 16)
        before, ids = torch.randint(40, (2, 3, 5)), torch.randint(40, (2, 3, 6))
        padded = torch.nn.functional.pad(hidden, (0, 48))
        for one, other in (
            (small.gains(hidden, before, ids, ids), wide.gains(padded, before, ids, ids)),
            (small.trust(hidden, before), wide.trust(padded, before)),
        ):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        if small.markov_head is not None and wide.markov_head is not None:
            torch.testing.assert_close(
                small.markov_head(before[..., 0], hidden),
                wide.markov_head(before[..., 0], padded),
                atol=1e-5,
                rtol=1e-4,
            )


def test_layers_of_a_target_with_ballast_stand_further_apart() -> None:
    target = TableTarget(random_table(6), 6)
    assert states_of(replace(SMALL, target_layers=0, states=(0, 1)), "it", target) == (0, 1)
    with pytest.raises(InputError, match="3 layers or more, and table has 1"):
        states_of(replace(SMALL, target_layers=0), "it", target)


@pytest.mark.parametrize("name", ["dflash2", "dspark", "windows"])
def test_gradients_reach_every_weight(name: str) -> None:
    head = head_of(SHAPES[name]).train()
    found, logits = predicted(head)
    before, ids = (torch.randint(40, (*found.shape[:3], count)) for count in (1, 6))
    loss = logits.square().sum()
    for part in (head.gains(found, before, ids, ids), head.trust(found, before)):
        loss = loss if part is None else loss + part.square().sum()
    loss.backward()
    unreached = {name for name, weight in head.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert unreached <= {"mask_embedding"}
