"""Modules that keep a state in their own way: a draft is taken back, whatever was accepted and refused before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from paceline.errors import UnsupportedModel
from paceline.targets.base import Request
from paceline.targets.hf.recurrent import families, functions, mixers
from paceline.targets.hf.recurrent.families import FAMILIES
from paceline.targets.hf.recurrent.forward import RecurrentForward
from paceline.targets.hf.recurrent.rows import StatefulRows, States
from paceline.targets.hf.recurrent.walk import RowWalk
from paceline.targets.hf.target import refuse_unknown
from paceline.tree import DraftTree, Ints
from paceline_lab.check.tiny import build, configuration

TOKENS = 50
MODULES = {
    "minimax": ("MiniMaxLightningAttention", {"position_embeddings": None, "attention_mask": None}),
    "zaya": ("ZayaCCAProjection", {"cache": None}),
    "recurrent_gemma": ("RecurrentGemmaRecurrentBlock", {"attention_mask": None, "use_cache": False}),
    "xlstm": ("xLSTMLayer", {}),
    "qwen4_exp_text": ("Qwen4ExpTextPLELayer", {"cache": None}),
    "inkling2_text": ("Inkling2DynamicShortConvolution", {}),
    "rwkv-attention": ("RwkvSelfAttention", {}),
    "rwkv-feed-forward": ("RwkvFeedForward", {}),
}
"""By names of cases: the class, and the arguments that it needs besides its rows."""
WIDTHS = {"qwen4_exp_text": 256, "inkling2_text": 32}
"""Of the rows, where it is not the model's."""


class Layer:
    """A module of a tiny model, on inputs that follow from the token and its position alone."""

    def __init__(self, name: str) -> None:
        kind, self.given = MODULES[name]
        config = configuration(name.partition("-")[0], "small")
        assert config is not None
        model = build(config)
        families.install({type(module).__module__ for module in model.modules()})
        self.module: Any = next(module for module in model.modules() if type(module).__name__ == kind)
        drawn = torch.Generator().manual_seed(5)
        self.table = torch.randn(TOKENS, WIDTHS.get(name, config.hidden_size), generator=drawn)
        self.name = name

    @torch.no_grad()
    def __call__(self, tokens: Ints, positions: Ints) -> torch.Tensor:
        """Outputs ``[rows, ...]`` of these rows."""
        given = dict(self.given)
        if self.name == "recurrent_gemma":
            given["position_ids"] = torch.from_numpy(positions)[None]
        elif self.name == "qwen4_exp_text":
            given["input_ids"] = torch.from_numpy(tokens)[None]
        elif self.name == "inkling2_text":
            given["dynamic_input"] = torch.cat([self.table[tokens], -self.table[tokens]], dim=-1)[None]
        out = self.module(self.table[tokens][None], **given)
        if isinstance(out, torch.Tensor):
            return out[0]
        kept = [
            each.flatten(2) for each in out if isinstance(each, torch.Tensor) and each.shape[:2] == (1, len(tokens))
        ]
        return torch.cat(kept, dim=-1)[0]


KINDS: dict[str, Callable[[], Layer]] = {name: cache(lambda name=name: Layer(name)) for name in MODULES}


class Text:
    """A text of one layer, written in rounds."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.rows = layer, StatefulRows(64)

    def score(self, *requests: Request) -> torch.Tensor:
        token = functions.current.set(RecurrentForward(requests))
        try:
            for request in requests:
                request.rows.note(request.tokens, request.held)
            tokens, positions = ([getattr(each, name) for each in requests] for name in ("tokens", "positions"))
            return self.layer(np.concatenate(tokens), np.concatenate(positions))
        finally:
            functions.current.reset(token)

    def read(self, tokens: Ints) -> torch.Tensor:
        out = self.score(Request.of_prompt(self.rows, tokens, ends_prompt=True))
        self.rows.keep(range(len(tokens)))
        return out

    def write(self, *tokens: int) -> torch.Tensor:
        """Plain decoding."""
        out = [self.score(Request.of_tree(self.rows, token, DraftTree.chain([])))[0] for token in self._kept(tokens)]
        return torch.stack(out)

    def _kept(self, tokens: tuple[int, ...]) -> Iterator[int]:
        for token in tokens:
            yield token
            self.rows.keep([0])


Same = Callable[[torch.Tensor, torch.Tensor], bool]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Kernels of matrices round by the number of rows."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def same_states(one: States, other: States, same: Same) -> bool:
    pairs = (one.windows, other.windows), (one.recurrent, other.recurrent)
    assert one.recurrent
    assert all(mine.keys() == theirs.keys() for mine, theirs in pairs)
    return all(same(mine[key], theirs[key]) for mine, theirs in pairs for key in mine)


def tree(drawn: np.random.Generator, most: int, *, chain: bool) -> DraftTree:
    nodes = int(drawn.integers(0, most + 1))
    tokens = drawn.integers(0, TOKENS, nodes)
    if chain:
        return DraftTree.chain(tokens)
    return DraftTree.build(tokens, [int(drawn.integers(-1, i)) for i in range(nodes)])


def path_in(drawn: np.random.Generator, request: Request) -> Ints:
    """The rows from the root to a row at random."""
    row, path = int(drawn.integers(0, len(request.tokens))), list[int]()
    while row >= 0:
        path.append(row)
        row = int(request.parents[row])
    return np.array(path[::-1])


def rounds(layer: Layer, count: int, *, chain: bool, same: Same) -> None:
    """Random drafts of which random paths are accepted: every row's output and every state are those of plain
    decoding."""
    drawn = np.random.default_rng(0)
    drafted, plain = Text(layer), Text(layer)
    for text in (drafted, plain):
        text.read(np.arange(9))
    assert same_states(drafted.rows.states, plain.rows.states, torch.equal)
    for _ in range(count):
        request = Request.of_tree(drafted.rows, int(drawn.integers(0, TOKENS)), tree(drawn, 9, chain=chain))
        out = drafted.score(request)
        path = path_in(drawn, request)
        drafted.rows.keep(path)
        expected = plain.write(*request.tokens[path].tolist())
        assert same(out[torch.from_numpy(path)], expected)
        assert same_states(drafted.rows.states, plain.rows.states, same)
        drafted.rows.check()


@pytest.mark.parametrize("name", MODULES)
def test_after_200_rounds_of_chains_the_states_are_those_of_plain_decoding(name: str) -> None:
    """Bit by bit where a module is called for each row of a chain, as plain decoding calls it."""
    rounds(KINDS[name](), 200, chain=True, same=close if name == "recurrent_gemma" else torch.equal)


@pytest.mark.parametrize("name", MODULES)
def test_after_200_rounds_of_trees_the_states_are_those_of_plain_decoding(name: str) -> None:
    rounds(KINDS[name](), 200, chain=False, same=close)


@pytest.mark.parametrize("name", MODULES)
def test_rows_are_those_of_the_whole_text(name: str) -> None:
    """Read in pieces, then written; transformers reads all at once, without a state."""
    layer, tokens = KINDS[name](), np.random.default_rng(3).integers(0, TOKENS, 60)
    text = Text(layer)
    found = [text.read(tokens[:7]), text.read(tokens[7:8]), text.read(tokens[8:30]), text.write(*tokens[30:].tolist())]
    assert close(torch.cat(found), layer(tokens, np.arange(60)))


@pytest.mark.parametrize("name", MODULES)
def test_texts_of_one_forward_do_not_touch_each_other(name: str) -> None:
    """Of any lengths and drafts, some at a prompt; the same texts alone have these outputs and states."""
    layer, drawn = KINDS[name](), np.random.default_rng(8)
    together, alone = ([Text(layer) for _ in range(4)] for _ in range(2))
    for turn in range(40):
        requests = list[tuple[Request, Request]]()
        for one, other in zip(together, alone, strict=True):
            if turn == 0 or drawn.random() < 0.1:
                tokens = drawn.integers(0, TOKENS, int(drawn.integers(1, 9)))
                requests.append(tuple(Request.of_prompt(t.rows, tokens, ends_prompt=True) for t in (one, other)))
            else:
                root, draft = int(drawn.integers(0, TOKENS)), tree(drawn, 6, chain=False)
                requests.append(tuple(Request.of_tree(t.rows, root, draft) for t in (one, other)))
        found = together[0].score(*(ours for ours, _ in requests))
        assert close(found, torch.cat([alone[0].score(theirs) for _, theirs in requests]))
        for ours, theirs in requests:
            path = np.arange(len(ours.tokens)) if ours.prefill else path_in(drawn, ours)
            ours.rows.keep(path)
            theirs.rows.keep(path)
        for one, other in zip(together, alone, strict=True):
            assert same_states(one.rows.states, other.rows.states, close)


@pytest.mark.parametrize("name", MODULES)
def test_a_draft_that_is_scored_level_by_level(name: str) -> None:
    layer, drawn = KINDS[name](), np.random.default_rng(4)
    levels, whole = Text(layer), Text(layer)
    for text in (levels, whole):
        text.read(np.arange(5))
    for _ in range(30):
        request = Request.of_tree(whole.rows, 11, tree(drawn, 9, chain=False))
        wanted = whole.score(request)
        cuts = sorted({0, len(request.tokens), *drawn.integers(0, len(request.tokens) + 1, 2).tolist()})
        found = [
            levels.score(Request(levels.rows, request.tokens[start:end], request.parents[:end], held=start))
            for start, end in pairwise(cuts)
        ]
        assert close(torch.cat(found), wanted)
        path = path_in(drawn, request)
        for text in (levels, whole):
            text.rows.keep(path)
        assert same_states(levels.rows.states, whole.rows.states, close)


# --- planted faults ---------------------------------------------------------------------------------------------


def _a_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node starts from the state of the first node of its parent's level."""
    levels = RowWalk.levels.func  # type: ignore[attr-defined]

    def wrong(self: RowWalk) -> Any:
        found = levels(self)
        for level in found[1:]:
            level.parents[:] = 0
            object.__setattr__(level, "in_order", False)
        return found

    monkeypatch.setattr(RowWalk, "levels", property(wrong))


def _an_old_state(monkeypatch: pytest.MonkeyPatch) -> None:
    right = mixers.ModuleStates.after
    monkeypatch.setattr(
        mixers.ModuleStates, "after", lambda self, path: right(self, path[:-1] if len(path) > 1 else path)
    )


@pytest.mark.parametrize("fault", [_a_sibling, _an_old_state])
@pytest.mark.parametrize("name", MODULES)
def test_a_planted_fault_is_seen(
    name: str, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = KINDS[name]()
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        rounds(layer, 40, chain=False, same=close)


# --- what is replaced -------------------------------------------------------------------------------------------


def test_other_calls_are_transformers_own() -> None:
    """The module's state, where it is an attribute, is as transformers left it."""
    layer = KINDS["recurrent_gemma"]()
    replaced = type(layer.module).forward
    original = getattr(replaced, functions.OURS)
    rows, places = layer.table[None, :9], torch.arange(9)[None]
    with torch.no_grad():
        wanted, _ = original(layer.module, rows, places, None)
        before = layer.module.rg_lru.recurrent_states
        Text(layer).write(1, 2, 3)
        assert layer.module.rg_lru.recurrent_states is before
        found, _ = layer.module(rows, places, None)
    assert torch.equal(found, wanted)
    families.install([type(layer.module).__module__])
    assert type(layer.module).forward is replaced  # once


def test_families_are_those_of_transformers_alone() -> None:
    from transformers.models.rwkv import modeling_rwkv

    assert families.family_of(modeling_rwkv.__name__) is FAMILIES["rwkv"]
    assert families.family_of("transformers_modules.somebody.modeling_rwkv") is None


def test_a_state_that_is_not_known_is_refused() -> None:
    class Strange:
        _is_stateful = True

    with pytest.raises(UnsupportedModel, match="llama keeps a recurrent state in a way that is not known here"):
        refuse_unknown(configuration("llama", "small"), Strange)


def test_an_older_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        _is_stateful = True

    monkeypatch.setattr("paceline.targets.hf.versions.TRANSFORMERS_VERSION", "5.14.3")
    with pytest.raises(UnsupportedModel, match=r"pip install -U 'transformers>=5\.15'"):
        refuse_unknown(configuration("mamba2", "small"), Older)
