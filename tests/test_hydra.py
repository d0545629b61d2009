"""Hydra's heads: public files tensor for tensor, the prefix layer's rows, drafts by hand, texts and laws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from drafting import context_of
from engine import write
from enumeration import Coins, World, outcome_of, output_law, played
from made_heads import Made, Tensors, assert_same, of_kind, store, store_code
from paceline.api.chat import Conversation
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Seen, make_drafter
from paceline.drafters.compose import Union
from paceline.drafters.networks import search
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.hydra import Hydra, fitting
from paceline.drafters.networks.hydra.checkpoint import read_heads, write_heads
from paceline.drafters.networks.hydra.drafter import PrefixState
from paceline.drafters.networks.hydra.fitting import state_of, widened
from paceline.drafters.networks.hydra.head import HydraHeads, HydraShape
from paceline.drafters.networks.hydra.prefix import PrefixShape
from paceline.errors import DamagedFile, InputError
from paceline.law import Outlook, Sampling
from paceline.targets.base import Request, Want
from paceline.targets.table import TableTarget, random_table
from paceline.tree import DraftTree
from paceline.verify import Rule, Verdict
from test_redrafter import drawn_by

LAYER = PrefixShape(heads=4, key_heads=2, head_width=6, units=10, theta=500.0)
SMALL = HydraShape(width=8, vocab_size=11, heads=3, blocks=2)
PLUS = replace(SMALL, prefix=LAYER)
SHAPES = {
    "one block": replace(SMALL, blocks=1),
    "tied": replace(SMALL, blocks=4),
    "untied": replace(SMALL, blocks=3, tied=False),
    "ungrounded": replace(SMALL, grounded=False, blocks=2),
    "thin part": replace(SMALL, rank=3, kept=5, vocab_size=40),
    "plus": PLUS,
    "plus, thin part": replace(PLUS, rank=3, kept=5, vocab_size=40, blocks=4),
}


def random_heads(shape: HydraShape, seed: int = 0, std: float = 0.4) -> HydraHeads:
    torch.manual_seed(seed)
    heads = HydraHeads(shape)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return heads


# --- public files, and a forward by the format's description -------------------------------------------------

P = "prefix_embeding_layer."


class Public:
    """Heads with random sizes and weights under the public names, and what they compute."""

    def __init__(self, seed: int) -> None:
        made = Made(seed)
        self.width, self.known = 2 * made.size(2, 5), made.size(10, 20)
        self.heads, self.blocks = made.size(1, 4), made.size(1, 4)
        self.plus, self.grounded = bool(seed % 2), made.size(0, 3) > 0
        self.kv_heads, group, self.size, self.theta = made.size(1, 2), made.size(1, 3), 2 * made.size(1, 4), 10_000.0
        tensors: Tensors = {"input_embed_fn.weight": made.tensor(self.known, self.width)}
        if self.plus:
            tensors |= self._prefix(made, group * self.kv_heads * self.size)
        for head in range(self.heads):
            shared = self._block(made, self.width)
            for block in range(self.blocks):
                wide = self.width * (head + 2) if self.grounded and block == 0 else 0
                own = self._block(made, wide, self.width, residual=True) if wide else shared
                tensors |= {f"{self._place(head, block)}.{name}": weight for name, weight in own.items()}
            tensors[f"{self._last(head)}.weight"] = made.tensor(self.known, self.width)
            tensors[f"{self._last(head)}.bias"] = made.tensor(self.known)
        self.tensors = of_kind(tensors, torch.float32 if self.plus else made.kind())
        self.states, self.embedded = made.tensor(2, 5, self.width), made.tensor(2, 5, self.heads, self.width)
        self.config = {
            "hydra_num_heads": 2,
            "hydra_num_layers": 9,
            "hydra_head_arch": "prefix-mlp" if self.plus else "mlp",
            "grounded_heads": self.grounded,
            "hidden_state_offset": 0,
            "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        }

    @staticmethod
    def _block(made: Made, inputs: int, outputs: int = 0, *, residual: bool = False) -> Tensors:
        outputs = outputs or inputs
        names = ("linear", "res_connection") if residual else ("linear",)
        found: Tensors = {}
        for name in names:
            found |= {f"{name}.weight": made.tensor(outputs, inputs), f"{name}.bias": made.tensor(outputs)}
        return found

    def _prefix(self, made: Made, queries: int) -> Tensors:
        width, units, first = self.width, made.size(3, 9), f"{P}layers.0."
        keys = self.kv_heads * self.size
        matrices = {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "mlp.gate_proj": (units, width),
            "mlp.up_proj": (units, width),
            "mlp.down_proj": (width, units),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        found = {f"{first}{name}.weight": made.tensor(*sizes) for name, sizes in matrices.items()}
        found |= {f"{P}norm.weight": made.tensor(width), f"{P}embed_tokens.weight": made.tensor(self.known, width)}
        turns = 1.0 / self.theta ** (torch.arange(0, self.size, 2).float() / self.size)
        return found | {f"{first}self_attn.rotary_emb.inv_freq": turns}

    def _place(self, head: int, block: int) -> str:
        return f"hydra_mlp.{head}.{2 * block + 1 if self.plus else block}"

    def _last(self, head: int) -> str:
        return f"hydra_lm_head.{head}{'.1' if self.plus else ''}"

    def _by(self, name: str, x: torch.Tensor) -> torch.Tensor:
        found = x @ self.tensors[f"{name}.weight"].float().T
        return found + self.tensors[f"{name}.bias"].float() if f"{name}.bias" in self.tensors else found

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.tensors[f"{P}{name}.weight"]

    def prefixed(self) -> torch.Tensor:
        """One row after the other, one head after the other."""
        if not self.plus:
            return self.states
        layer, found = f"{P}layers.0.", torch.empty_like(self.states)
        for text, states in enumerate(self.states):
            normed = self._normed("layers.0.input_layernorm", states)
            q, k, v = (
                self._by(f"{layer}self_attn.{name}_proj", normed).unflatten(-1, (-1, self.size)) for name in "qkv"
            )
            group = q.shape[1] // k.shape[1]
            for row in range(len(states)):
                heads = []
                for head in range(q.shape[1]):
                    asked = self._turned(q[row, head], row)
                    keys = torch.stack([self._turned(k[other, head // group], other) for other in range(row + 1)])
                    shares = torch.softmax(keys @ asked / self.size**0.5, dim=0)
                    heads.append(shares @ v[: row + 1, head // group])
                x = states[row] + self._by(f"{layer}self_attn.o_proj", torch.cat(heads))
                normed_x = self._normed("layers.0.post_attention_layernorm", x)
                gate = self._by(f"{layer}mlp.gate_proj", normed_x)
                units = gate / (1 + torch.exp(-gate)) * self._by(f"{layer}mlp.up_proj", normed_x)
                found[text, row] = self._normed("norm", x + self._by(f"{layer}mlp.down_proj", units))
        return found

    def _turned(self, x: torch.Tensor, position: int) -> torch.Tensor:
        half = self.size // 2
        angles = torch.tensor([position * self.theta ** (-2 * pair / self.size) for pair in range(half)])
        one, other = x[:half], x[half:]
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()])

    def logits(self) -> torch.Tensor:
        hidden, found = self.prefixed(), []
        for head in range(self.heads):
            x = torch.cat([hidden, *self.embedded[:, :, : head + 1].unbind(2)], dim=-1) if self.grounded else hidden
            for block in range(self.blocks):
                place = self._place(head, block)
                inner = self._by(f"{place}.linear", x)
                beside = self._by(f"{place}.res_connection", x) if self.grounded and block == 0 else x
                x = beside + inner / (1 + torch.exp(-inner))
            found.append(self._by(self._last(head), x))
        return torch.stack(found)


@pytest.mark.parametrize("seed", range(20))
def test_public_files_are_read_tensor_for_tensor_and_computed(tmp_path: Path, seed: int) -> None:
    public = Public(seed)
    heads, facts = read_heads(store(tmp_path / "hydra_lm_head.pt", public.tensors, public.config))
    left_out = ("input_embed_fn.weight", f"{P}embed_tokens.weight", f"{P}layers.0.self_attn.rotary_emb.inv_freq")
    assert_same(heads.state_dict(), {name: each for name, each in public.tensors.items() if name not in left_out})
    assert (facts.width, facts.vocab_size) == (public.width, public.known)
    shape = heads.shape
    assert (shape.heads, shape.blocks, shape.grounded) == (public.heads, public.blocks, public.grounded)
    assert shape.tied
    heads = heads.float()
    hidden = heads.prefixed(public.states)
    torch.testing.assert_close(hidden, public.prefixed(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(heads(hidden, public.embedded), public.logits(), atol=1e-4, rtol=1e-4)
    path = heads.first(public.embedded[:, :, 0])
    for head in range(public.heads):
        path = heads.next(path, public.embedded[:, :, head]) if head else path
        torch.testing.assert_close(heads.logits(hidden, path), public.logits()[head], atol=1e-4, rtol=1e-4)


def test_heads_can_be_trained() -> None:
    heads = random_heads(PLUS)
    states, embedded, wanted = torch.randn(2, 7, 8), torch.randn(2, 7, 3, 8), torch.randint(11, (3, 2, 7))
    losses = []
    optimizer = torch.optim.Adam(heads.parameters(), 0.02)
    for _ in range(30):
        logits = heads(heads.prefixed(states), embedded)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in heads.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_own_files_hold_heads_under_public_names(tmp_path: Path, name: str) -> None:
    heads = random_heads(SHAPES[name])
    write_heads(tmp_path, heads, Provenance(target="abc", target_name="big", trained={"positions": 7}))
    found, facts = read_heads(tmp_path)
    assert found.shape == SHAPES[name]
    assert_same(found.state_dict(), heads.state_dict())
    assert (facts.target, facts.target_name, facts.noise) == ("abc", "big", None)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hydra_head_arch"] == ("prefix-mlp" if heads.shape.prefix else "mlp")
    assert (config["hydra_num_heads"], config["hydra_num_layers"]) == (heads.shape.heads, heads.shape.blocks)


def test_integers_and_part_vocabularies_are_kept(tmp_path: Path) -> None:
    heads = random_heads(replace(PLUS, kept=6))
    heads.token_ids = torch.tensor([0, 2, 3, 7, 9, 10])
    write_heads(tmp_path, heads, Provenance(int8=True))
    found, _ = read_heads(tmp_path)
    assert found.token_ids is not None
    assert found.token_ids.tolist() == [0, 2, 3, 7, 9, 10]
    given, wanted = (each.state_dict()["hydra_lm_head.1.1.weight"] for each in (found, heads))
    assert 0 < (given - wanted).abs().max() < wanted.abs().max() / 100


@pytest.mark.parametrize("ratio", [4, 16])
@pytest.mark.parametrize("name", SHAPES)
def test_ballast_does_not_change_heads(name: str, ratio: int) -> None:
    heads = random_heads(SHAPES[name])
    wide = widened(heads, ratio)

    def padded(states: torch.Tensor) -> torch.Tensor:
        return torch.cat([states, torch.zeros(*states.shape[:-1], 8 * (ratio - 1))], dim=-1)

    states, embedded = torch.randn(2, 5, 8), torch.randn(2, 5, 3, 8)
    found = wide(wide.prefixed(padded(states)), padded(embedded))
    torch.testing.assert_close(found, heads(heads.prefixed(states), embedded), atol=1e-4, rtol=1e-4)
    sizes = [sum(each.numel() for each in one.parameters()) for one in (heads, wide)]
    assert sizes[1] > ratio * sizes[0] / 2


# --- files that are refused ----------------------------------------------------------------------------------

MLP = {"hydra_head_arch": "mlp", "grounded_heads": True}
PREFIX_MLP = {"hydra_head_arch": "prefix-mlp", "grounded_heads": True}
Q = f"{P}layers.0.self_attn.q_proj.weight"
TURNS = f"{P}layers.0.self_attn.rotary_emb.inv_freq"


def public_tensors(plus: bool) -> Tensors:
    found = dict(random_heads(PLUS if plus else SMALL).state_dict())
    return found | ({TURNS: 10_000.0 ** -(torch.arange(3) / 3)} if plus else {})


SPOILED: dict[str, tuple[bool, Any]] = {
    "lacks the tensor hydra_mlp.1.0.res_connection.bias": (
        False,
        lambda some: some.pop("hydra_mlp.1.0.res_connection.bias"),
    ),
    "is 3 x 3, and its configuration says 8 x 24": (
        False,
        lambda some: some.update({"hydra_mlp.1.0.linear.weight": torch.ones(3, 3)}),
    ),
    "is 5, and its configuration says 11": (False, lambda some: some.update({"hydra_lm_head.2.bias": torch.ones(5)})),
    "holds numbers that are not finite": (False, lambda some: some["hydra_lm_head.2.bias"].fill_(torch.inf)),
    "holds a tensor 'more' that": (True, lambda some: some.update({"more": torch.ones(1)})),
    "are not those of Hydra's heads of kind 'mlp'": (
        False,
        lambda some: some.update({"hydra_mlp.999999999.0.linear.bias": torch.ones(8)}),
    ),
    "are not those of Hydra's heads of kind 'prefix-mlp'": (True, lambda some: some.pop("hydra_lm_head.0.1.weight")),
    f"lacks the tensor {Q}": (True, lambda some: some.pop(Q)),
    "24 queries and 12 keys of .* are not of heads 10 wide": (True, lambda some: some.update({TURNS: torch.ones(5)})),
    "the rotations of .* are scaled": (True, lambda some: some.update({TURNS: some[TURNS] / 4})),
    "num_attention_heads is None, not a whole number": (True, lambda some: some.pop(TURNS)),
    f"the tensor {TURNS} of .* is no row of numbers above 0": (True, lambda some: some[TURNS].zero_()),
    f"the tensor {Q} of .* is a single number": (True, lambda some: some.update({Q: torch.tensor(1.0)})),
    "the head in .* is damaged: vocab_size of Hydra's heads is at least 1, not 0": (
        False,
        lambda some: some.update({"token_ids": torch.arange(11)}),
    ),
}


@pytest.mark.parametrize("said", SPOILED)
def test_a_spoiled_file_is_one_sentence(tmp_path: Path, said: str) -> None:
    plus, change = SPOILED[said]
    tensors = public_tensors(plus)
    change(tensors)
    with pytest.raises((InputError, DamagedFile), match=said) as error:
        read_heads(store(tmp_path / "hydra_lm_head.pt", tensors, PREFIX_MLP if plus else MLP))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_attention_heads": 0}, "a value is of the wrong kind"),
        ({"num_attention_heads": 4, "rms_norm_eps": None}, "a value is of the wrong kind"),
        ({"num_attention_heads": 4, "rope_theta": [1]}, "a value is of the wrong kind"),
        ({"num_attention_heads": 4, "hidden_state_offset": "one"}, "hidden_state_offset is 'one', not a whole number"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    tensors = public_tensors(True)
    del tensors[TURNS]
    with pytest.raises(DamagedFile, match=f"config.json of the head in .* is damaged: {said}") as error:
        read_heads(store(tmp_path / "hydra_lm_head.pt", tensors, {**PREFIX_MLP, **values}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["cross-attn", "eagle-attn", "other", 3])
def test_other_kinds_of_hydra_are_refused(tmp_path: Path, kind: Any) -> None:
    folder = store(tmp_path / "hydra_lm_head.pt", public_tensors(False), {"hydra_head_arch": kind})
    with pytest.raises(InputError, match=f"is a Hydra of kind {kind!r}, and paceline drafts with mlp and prefix-mlp"):
        read_heads(folder)


def test_code_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    folder = store_code(tmp_path / "hydra_lm_head.pt", tmp_path / "mark", MLP)
    with pytest.raises(InputError, match="holds more than tensors, and could run code when it is opened"):
        read_heads(folder)
    assert not (tmp_path / "mark").exists()


def test_rotations_in_half_precision_are_those_that_are_stated(tmp_path: Path) -> None:
    tensors = public_tensors(True)
    tensors[TURNS] = tensors[TURNS].half()
    assert read_heads(store(tmp_path / "hydra_lm_head.pt", tensors, PREFIX_MLP))[0].shape.prefix.theta == 10_000.0  # type: ignore[union-attr]
    with pytest.raises(InputError, match="are scaled"):
        read_heads(store(tmp_path / "hydra_lm_head.pt", tensors, {**PREFIX_MLP, "rope_theta": 500_000.0}))


def test_heads_must_be_for_the_target(lm: LanguageModel, tmp_path: Path) -> None:
    def refused(shape: HydraShape, said: str, target: str = "") -> None:
        write_heads(tmp_path, HydraHeads(shape), Provenance(target=target))
        with pytest.raises(InputError, match=said):
            make_drafter(f"hydra:head={tmp_path}").fit(lm.target, lm.vocabulary)

    fitting_shape = HydraShape(width=256, vocab_size=8192, heads=1)
    refused(SMALL, "states of width 8, and those of pocket are 256 wide")
    refused(replace(fitting_shape, vocab_size=100), "names 100 tokens, and pocket has 8192")
    refused(fitting_shape, "was trained for a model with other weights", "abc")
    refused(replace(fitting_shape, offset=99), "reads a state 99 layers before the last, and pocket has")
    with pytest.raises(InputError, match="no head for table comes with paceline"):
        make_drafter("hydra").fit(TableTarget(random_table(4), 4))


# --- drafts, by hand -----------------------------------------------------------------------------------------

SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=1.0, seed=3),
    "cut": Sampling(temperature=1.2, top_k=4, top_p=0.9, seed=3),
    "penalised": Sampling(temperature=0.9, repetition_penalty=1.3, presence_penalty=0.4, seed=3),
}
SIZE = 8


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes drafters with given heads."""

    def make(heads: HydraHeads, target: Any = None, **options: Any) -> Hydra:
        found = heads.double().requires_grad_(False)
        monkeypatch.setattr(fitting, "heads_for", lambda named, target: fitting.FittedHead(found))
        drafter = Hydra(**options)
        drafter.fit(target or TableTarget(random_table(SIZE), SIZE))
        return drafter

    return make


def by_hand(heads: HydraHeads, hidden: torch.Tensor, context: Context, width: int, depth: int) -> set[tuple[int, ...]]:
    """All that a beam search chooses: the paths of the beams of every level. Embeddings are rows of a unit matrix."""
    outlook = Outlook(context.sampling, context.prompt_length)
    beams, chosen = [((), 0.0)], set[tuple[int, ...]]()
    for place in range(depth):
        found = []
        for path, score in beams:
            tokens = [int(context.tokens[-1]), *path]
            row = heads(hidden, torch.eye(SIZE).double()[tokens])[len(path)]
            (law,) = outlook.laws(row[None], [context.extended(path).tokens])
            sampled = not context.sampling.greedy
            speeds = law.weights / context.exponentials(place, law.ids) if sampled else law.weights
            for token, speed in zip(law.ids.tolist(), speeds / speeds.sum(), strict=True):
                found.append(((*path, token), score + np.log(speed)))
        beams = sorted(found, key=lambda beam: -beam[1])[:width]
        chosen |= {path for path, _ in beams}
    return chosen


@pytest.mark.parametrize("setting", SAMPLINGS)
@pytest.mark.parametrize("grounded", [True, False])
def test_a_draft_is_what_a_search_by_hand_chooses(given: Any, setting: str, grounded: bool) -> None:
    heads = random_heads(HydraShape(width=SIZE, vocab_size=SIZE, heads=3, blocks=2, grounded=grounded), std=0.3)
    drafter = given(heads, width=3, length=4)
    asks, wanted = [], []
    for number, last in enumerate([3, 0, 5, 1]):
        context = context_of([2, 4, number, last], **{**vars(SAMPLINGS[setting]), "seed": number})
        state = drafter.open(context)
        state.hidden, state.length = Made(number).tensor(SIZE).double(), len(context)
        asks.append(Ask(state, Budget(99, 3 - number % 2)))
        wanted.append(by_hand(heads, state.hidden, context, 3, 3 - number % 2))
    for tree, paths in zip(drafter.propose(asks), wanted, strict=True):
        tree.check(SIZE)
        assert {tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))} == paths


def test_no_more_levels_than_heads(given: Any) -> None:
    drafter = given(random_heads(HydraShape(width=SIZE, vocab_size=SIZE, heads=2)), length=5)
    assert drafter.levels(99) == 2
    session = write(TableTarget(random_table(SIZE), SIZE), [1, 2], drafter, max_new_tokens=20, nodes=16)
    assert max(each.depth for each in session.rounds) == 2


def test_sizes_are_those_of_the_heads_also_in_a_composition(given: Any) -> None:
    short, long = (random_heads(HydraShape(width=SIZE, vocab_size=SIZE, heads=heads)) for heads in (2, 9))
    drafter = given(short, width=3, length=5)
    united = Union((drafter, make_drafter("lookup")))
    nodes = united.nodes
    for heads, length in ((short, 2), (long, 5), (short, 2)):
        given(heads)
        united.fit(TableTarget(random_table(SIZE), SIZE))
        assert (drafter.length, drafter.nodes, drafter.costly_levels) == (length, 3 * length, length)
        assert (united.nodes, united.costly_levels) == (nodes + 3 * (length - 2), length)


def test_a_state_is_counted_in_the_layers_of_the_small_model() -> None:
    class Big(TableTarget):
        layers = 24

    big = Big(random_table(SIZE), SIZE)
    big.name = "pocket+ballast:500M"
    offsets = {0: 24, 1: 21, 8: 0}
    assert {offset: state_of(replace(SMALL, offset=offset), "it", big) for offset in offsets} == offsets
    with pytest.raises(InputError, match=r"reads a state 9 layers before the last, and .* has 8 layers"):
        state_of(replace(SMALL, offset=9), "it", big)


# --- the prefix layer's rows ---------------------------------------------------------------------------------


def seen_by(drafter: Hydra, state: PrefixState, rows: Any, request: Request, verdict: Verdict, target: Any) -> None:
    """Have the target score a request, keep what the verdict accepts, and show it to the drafter."""
    (scores,) = target.score([request])
    rows.keep([0, *(node + 1 for node in verdict.path)])
    for token in verdict.tokens:
        state.context.commit(token)
    drafter.observe([Seen(state, verdict, scores)])


def opened(drafter: Hydra, tokens: Sequence[int], target: Any) -> tuple[PrefixState, Any]:
    """A text whose prompt the target has read, in two pieces."""
    context = Context(tokens, Sampling(), Ending(max_new_tokens=60))
    state, rows = drafter.open(context), target.open(99)
    for piece in np.array_split(context.tokens[:-1], 2):
        request = Request.of_prompt(rows, piece, Want(hidden=drafter.needs.hidden))
        verdict = Verdict(path=tuple(range(len(piece) - 1)), tokens=(), accepted=0)
        seen_by(drafter, state, rows, request, verdict, target)
    return state, rows


def test_rows_are_those_of_a_forward_from_scratch_after_any_verdict(given: Any) -> None:
    random, target = np.random.default_rng(0), TableTarget(random_table(SIZE), SIZE)
    heads = random_heads(replace(PLUS, vocab_size=SIZE))
    drafter = given(heads, target)
    texts = [opened(drafter, tokens, target) for tokens in ([1, 2, 3, 4], [5, 6, 7, 1, 1], [2, 2, 0])]
    for _ in range(8):
        for state, rows in texts:
            accepted = int(random.integers(0, 4))
            line = random.integers(0, SIZE, accepted + 1).tolist()
            draft = DraftTree.build([7, *line[:-1]], [-1, -1, *range(1, accepted)][: accepted + 1])
            verdict = Verdict(path=tuple(range(1, accepted + 1)), tokens=tuple(line), accepted=accepted)
            request = Request.of_tree(rows, state.context.root, draft, Want(hidden=drafter.needs.hidden))
            seen_by(drafter, state, rows, request, verdict, target)
        found = drafter.hidden([state for state, _ in texts])
        for (state, _), own in zip(texts, found, strict=True):
            state.rows.check()  # type: ignore[union-attr]
            assert state.ready
            tokens = state.context.tokens[:-1]
            (scores,) = target.score([Request.of_prompt(target.open(), tokens, Want(hidden=frozenset({1})))])
            torch.testing.assert_close(own, heads.prefixed(scores.hidden(1))[-1])


def test_rows_are_reused_by_texts_that_begin_alike(given: Any) -> None:
    target = TableTarget(random_table(SIZE), SIZE)
    drafter = given(random_heads(replace(PLUS, vocab_size=SIZE)), target)
    first, _ = opened(drafter, [1, 2, 3, 4, 5], target)
    beside = drafter.open(context_of([1, 2, 3, 6, 6, 6]))
    assert (first.rows.committed, beside.rows.committed) == (4, 3)
    drafter.close(first)
    again = drafter.open(context_of([1, 2, 3, 4, 5, 6, 7]))
    assert again.rows.committed == 4
    torch.testing.assert_close(again.rows.layers[0].span(0, 3), beside.rows.layers[0].span(0, 3))
    assert not again.ready


def test_a_beginning_that_only_the_layer_has_read_is_not_read_again(given: Any) -> None:
    target = TableTarget(random_table(SIZE), SIZE)
    drafter = given(random_heads(replace(PLUS, vocab_size=SIZE)), target)
    first, _ = opened(drafter, [1, 2, 3, 4, 5, 6], target)
    before = torch.cat(first.rows.layers[0].span(0, 5)).clone()
    drafter.close(first)
    for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 0]):  # in two pieces, of which the first is there
        again, _ = opened(drafter, tokens, target)
        assert again.ready
        assert again.rows.committed == len(tokens) - 1
        torch.testing.assert_close(torch.cat(again.rows.layers[0].span(0, 5)), before)
        drafter.close(again)


def test_a_beginning_that_only_the_target_has_cached_is_zeros(given: Any) -> None:
    target = TableTarget(random_table(SIZE), SIZE)
    drafter = given(random_heads(replace(PLUS, vocab_size=SIZE)), target)
    rows = target.open()
    target.score([Request.of_prompt(rows, np.array([1, 2, 3]))])
    rows.keep(range(3))
    context = Context([1, 2, 3, 4, 5], Sampling(), Ending(max_new_tokens=9))
    state = drafter.open(context)
    request = Request.of_prompt(rows, np.array([4]), Want(hidden=drafter.needs.hidden))
    seen_by(drafter, state, rows, request, Verdict(path=(), tokens=(), accepted=0), target)
    assert state.ready
    assert not torch.cat(state.rows.layers[0].span(0, 3)).any()
    assert torch.isfinite(drafter.hidden([state])).all()


def test_other_heads_and_other_targets_begin_anew(given: Any) -> None:
    one, other = (TableTarget(random_table(SIZE, seed=seed), SIZE) for seed in (1, 2))
    heads = {
        "plus": random_heads(replace(PLUS, vocab_size=SIZE)),
        "more": random_heads(replace(PLUS, vocab_size=SIZE), 1),
        "plain": random_heads(replace(SMALL, vocab_size=SIZE)),
    }
    drafter = given(heads["plus"], one)

    def reused(name: str, target: Any) -> int | None:
        given(heads[name])
        drafter.fit(target)
        state = drafter.open(context_of([1, 2, 3, 4, 5]))
        found = None if state.rows is None else state.rows.committed
        drafter.close(state)
        if found is not None:
            drafter.close(opened(drafter, [1, 2, 3, 4, 5], target)[0])
        return found

    steps = [("plus", one), ("plus", one), ("plus", other), ("plus", other), ("more", other), ("plain", other)]
    assert [reused(*step) for step in steps] == [0, 4, 0, 4, 0, None]
    state = drafter.open(context_of([1, 2]))
    state.hidden = Made(0).tensor(SIZE).double()
    assert torch.equal(drafter.hidden([state])[0], state.hidden)
    assert reused("plus", other) == 0


def test_rows_of_a_model_before_it_was_changed_are_not_reused(lm: LanguageModel, made: dict[str, Path]) -> None:
    drafter, tokens = make_drafter(f"hydra:head={made['plus']}"), list(range(1, 9))
    drafter.fit(lm.target, lm.vocabulary)
    assert isinstance(drafter, Hydra)
    drafter.close(opened(drafter, tokens, lm.target)[0])
    drafter.close(again := drafter.open(context_of(tokens)))
    lm.target.forget()
    changed = drafter.open(context_of(tokens))
    assert again.rows is not None
    assert changed.rows is not None
    assert changed.rows.committed == 0


def test_a_second_turn_reads_only_what_is_new(lm: LanguageModel, made: dict[str, Path]) -> None:
    talks = {}
    for method in ("plain", f"hydra:head={made['plus']}"):
        lm.forget()
        how: dict[str, Any] = {"method": method, "planner": "fixed:6", "temperature": 0.8, "seed": 4}
        talk = talks[method] = Conversation(lm, max_new_tokens=16, **how)
        for said in ("Tell me of the house", "and of its garden?"):
            assert list(talk.stream(said))
    plain, drafted = (talk.replies for talk in talks.values())
    assert [reply.tokens for reply in drafted] == [reply.tokens for reply in plain]
    assert all(any(each.drafted for each in reply.rounds[1:3]) for reply in drafted)


# --- texts and laws ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads for `pocket` that were never trained."""
    folder, shape = tmp_path_factory.mktemp("hydra"), HydraShape(width=256, vocab_size=8192, heads=3, rank=32)
    layer = PrefixShape(heads=8, key_heads=4, head_width=32, units=64)
    shapes = {"mlp": shape, "plus": replace(shape, blocks=3, prefix=layer)}
    for name, each in shapes.items():
        write_heads(folder / name, random_heads(each, std=0.05))
    return {name: folder / name for name in shapes}


TEXTS = ["The old house stood", "Na końcu długiej drogi stał", "Старий будинок"]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "0.8": {"temperature": 0.8, "seed": 2},
    "1": {"temperature": 1.0, "seed": 2},
    "cut": {"temperature": 1.1, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 2},
}


@pytest.mark.parametrize("method", ["mlp", "plus", "plus,width=1", "mlp,noise=none,length=2"])
@pytest.mark.parametrize("how", HOW)
def test_the_text_is_plain_decodings(lm: LanguageModel, made: dict[str, Path], how: str, method: str) -> None:
    name, _, options = method.partition(",")
    plain = lm.generate_batch(TEXTS, method="plain", max_new_tokens=12, **HOW[how])
    spec = f"hydra:head={made[name]}{',' * bool(options)}{options}"
    found = lm.generate_batch(TEXTS, method=spec, planner="fixed", max_new_tokens=12, **HOW[how])
    assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
    assert all(text.totals.drafted for (text,) in found)


@pytest.mark.parametrize("name", ["mlp", "plus"])
def test_auto_finds_out_which_method_heads_are_for(lm: LanguageModel, made: dict[str, Path], name: str) -> None:
    auto = make_drafter(f"auto:head={made[name]}")
    assert isinstance(auto.parts[-1], Hydra)
    assert auto.costly_levels == 4
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 16}
    found = lm.generate(TEXTS[0], method=f"auto:head={made[name]}", planner="fixed:8", **how)
    assert found.tokens == lm.generate(TEXTS[0], method="plain", **how).tokens


@cache
def heads_of_a_world(size: int) -> HydraHeads:
    layer = PrefixShape(heads=1, key_heads=1, head_width=2, units=2)
    return random_heads(HydraShape(width=size, vocab_size=size, heads=2, prefix=layer), std=0.7)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Rule.REJECTION, {"width": 1, "length": 2}),
        (Rule.REJECTION, {"width": 2, "length": 2}),
        (Rule.COUPLED, {"width": 2, "length": 2, "noise": "none"}),
    ],
    ids=["drawn", "beams", "coupled"],
)
def test_the_law_is_plain_decodings(
    given: Any, monkeypatch: pytest.MonkeyPatch, rule: Rule, options: dict[str, Any]
) -> None:
    world = World(length=2 if rule is Rule.REJECTION else 3)
    drawn = list[DraftTree]()

    def play(coins: Coins) -> Any:
        monkeypatch.setattr(search, "drawn_noise", drawn_by(coins))
        drafter = given(heads_of_a_world(world.size), world.target, **options)
        propose = drafter.propose
        monkeypatch.setattr(drafter, "propose", lambda asks: drawn.extend(trees := propose(asks)) or trees)
        return outcome_of(played(world, rule, drafter, coins, nodes=4))

    found, plain = output_law(play), world.plain()
    assert any(len(tree) for tree in drawn)
    assert any(tree.drawn for tree in drawn) == (rule is Rule.REJECTION and options["width"] == 1)
    assert found.keys() == plain.keys()
    for text, probability in plain.items():
        assert float(found[text]) == pytest.approx(float(probability), abs=1e-9)


@pytest.mark.parametrize("numbers", [{"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "plus"])
def test_it_drafts_for_models_in_bfloat16_and_int8(made: dict[str, Path], kind: str, numbers: dict[str, str]) -> None:
    """Their states and scores are of other types, and numpy knows no bfloat16."""
    small = paceline.load("pocket", **numbers, generation_config=False)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_new_tokens": 14}
    found = small.generate_batch(TEXTS, method=f"hydra:head={made[kind]}", planner="fixed", **how)
    assert all(text.totals.drafted > 14 for (text,) in found)
    if small.target.exact:
        plain = small.generate_batch(TEXTS, method="plain", **how)
        assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
