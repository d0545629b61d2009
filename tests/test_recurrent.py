"""Layers that keep a state: a draft is taken back exactly, whatever was accepted and refused before."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from paceline.targets.base import Request
from paceline.targets.hf.integers.kernels import without_numba
from paceline.targets.hf.recurrent import forward as states_forward
from paceline.targets.hf.recurrent import functions
from paceline.targets.hf.recurrent.forward import RecurrentForward
from paceline.targets.hf.recurrent.rows import APART, SNAPSHOTS, StatefulRows
from paceline.targets.hf.recurrent.walk import Order, PackedPart, RowWalk
from paceline.tree import DraftTree, Ints

TOKENS = 50
HEADS, KEYS, VALUES, WIDTH = 3, 5, 6, 4
LAYER = 7


class Layer:
    """A layer that convolves and recurs as a model's file does, on inputs that follow from the token alone."""

    def __init__(self, family: str, whole: str) -> None:
        self.home = import_module(f"transformers.models.{family}.modeling_{family}")
        functions.install([self.home.__name__])
        self.whole, self.convolution = getattr(self.home, whole), self.home.causal_conv1d_fn
        self.single = getattr(self.home, functions.functions()[whole][1])
        drawn = torch.Generator().manual_seed(5)
        self.channels = sum(self.sizes)
        self.table = torch.randn(TOKENS, self.channels, generator=drawn)
        self.gates = self.gated(torch.randn(TOKENS, self.gate_count, generator=drawn))
        self.weight = torch.randn(self.channels, WIDTH, generator=drawn)
        self.decay = -torch.rand(self.decay_shape, generator=drawn)

    sizes: tuple[int, ...] = (HEADS * KEYS, HEADS * KEYS, HEADS * VALUES)
    gate_count = 2 * HEADS
    decay_shape: tuple[int, ...] = (HEADS,)

    def __call__(self, tokens: Ints, forward: RecurrentForward | None) -> torch.Tensor:
        """Outputs ``[rows, ...]`` of these rows."""
        if forward is not None:
            forward.enter(LAYER, 0)
        mixed = self.convolution(self.table[tokens].T[None], self.weight, None, activation="silu")
        return self.recur(mixed[..., -len(tokens) :].transpose(1, 2), self.gates[tokens][None])

    def gated(self, drawn: torch.Tensor) -> torch.Tensor:
        """A table of what torch would round in another way for other rows beside it."""
        return drawn

    def recur(self, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        pytest.fail("a kind of layer")

    def plainly(self, state: torch.Tensor | None, mixed: torch.Tensor, gates: torch.Tensor) -> Any:
        """The output of one row and the state after it, by transformers' function for one row."""
        pytest.fail("a kind of layer")


class DeltaLayer(Layer):
    def arguments(self, mixed: torch.Tensor, gates: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = mixed.shape[1]
        query, key, value = mixed.split(self.sizes, dim=-1)
        return {
            "query": query.view(1, rows, HEADS, KEYS),
            "key": key.view(1, rows, HEADS, KEYS),
            "value": value.view(1, rows, HEADS, VALUES),
            "g": self.decays(gates[..., HEADS:]),
            "beta": gates[..., :HEADS],
        }

    def gated(self, drawn: torch.Tensor) -> torch.Tensor:
        return torch.cat([drawn[:, :HEADS].sigmoid(), -drawn[:, HEADS:].exp()], dim=1)

    def decays(self, gates: torch.Tensor) -> torch.Tensor:
        return gates

    def recur(self, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        given = self.arguments(mixed, gates)
        out, _ = self.whole(**given, initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=True)
        return out[0]

    def plainly(self, state: torch.Tensor | None, mixed: torch.Tensor, gates: torch.Tensor) -> Any:
        given = self.arguments(mixed, gates)
        assert state is not None
        out, after = self.single(
            **given, initial_state=state[None], output_final_state=True, use_qk_l2norm_in_kernel=True
        )
        return out[0, 0], after[0]


class ChannelDelta(DeltaLayer):
    gate_count = HEADS + HEADS * KEYS

    def decays(self, gates: torch.Tensor) -> torch.Tensor:
        return gates.reshape(1, -1, HEADS, KEYS)


class Mamba2Layer(Layer):
    sizes = (HEADS * VALUES, KEYS, KEYS)
    gate_count = HEADS

    def arguments(self, mixed: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = mixed.shape[1]
        x, b, c = mixed.split(self.sizes, dim=-1)
        return x.reshape(1, rows, HEADS, VALUES), gates, self.decay, b.unsqueeze(2), c.unsqueeze(2)

    def recur(self, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        x, dt, a, b, c = self.arguments(mixed, gates)
        out, _ = self.whole(
            x, dt, a, b, c, chunk_size=8, D=self.decay, z=None, return_final_states=True, dt_bias=self.decay,
            dt_softplus=True, initial_states=None,
        )  # fmt: skip
        return out[0]

    def plainly(self, state: torch.Tensor | None, mixed: torch.Tensor, gates: torch.Tensor) -> Any:
        x, dt, a, b, c = self.arguments(mixed, gates)
        assert state is not None
        after = state[None].clone()
        wide = self.decay[:, None].expand(-1, VALUES)
        out = self.single(
            after, x[:, 0], dt[:, 0, :, None].expand(-1, -1, VALUES), a[:, None, None].expand(-1, VALUES, KEYS),
            b[:, 0], c[:, 0], wide, z=None, dt_bias=wide, dt_softplus=True,
        )  # fmt: skip
        return out[0], after[0]


class Mamba1Layer(Layer):
    sizes = (HEADS * VALUES, KEYS, KEYS)
    gate_count = 2 * HEADS * VALUES
    decay_shape = (HEADS * VALUES, KEYS)

    def recur(self, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        x, b, c = mixed.transpose(1, 2).split(self.sizes, dim=1)
        dt, z = gates.transpose(1, 2).chunk(2, dim=1)
        out, _ = self.whole(
            x, dt, self.decay, b, c, D=self.decay[:, 0], z=z, delta_bias=self.decay[:, 1], delta_softplus=True,
            return_last_state=True,
        )  # fmt: skip
        return out[0].T

    def plainly(self, state: torch.Tensor | None, mixed: torch.Tensor, gates: torch.Tensor) -> Any:
        x, b, c = mixed[:, 0].split(self.sizes, dim=-1)
        dt, z = gates[:, 0].chunk(2, dim=-1)
        assert state is not None
        after = state[None].clone()
        out = self.single(
            after, x, dt, self.decay, b, c, self.decay[:, 0], z=z, dt_bias=self.decay[:, 1], dt_softplus=True
        )
        return out[0], after[0]


KINDS: dict[str, Callable[[], Layer]] = {
    "qwen3_next": lambda: DeltaLayer("qwen3_next", "torch_chunk_gated_delta_rule"),
    "kimi_linear": lambda: ChannelDelta("kimi_linear", "chunk_kimi_delta_attention"),
    "mamba2": lambda: Mamba2Layer("mamba2", "mamba2_chunk_scan"),
    "mamba": lambda: Mamba1Layer("mamba", "mamba_selective_scan"),
}


class Text:
    """A text of one layer, written in rounds."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.rows = layer, StatefulRows(64)

    def score(self, *requests: Request) -> torch.Tensor:
        forward = RecurrentForward(requests)
        token = functions.current.set(forward)
        try:
            for request in requests:
                request.rows.note(request.tokens, request.held)
            return self.layer(np.concatenate([request.tokens for request in requests]), forward)
        finally:
            functions.current.reset(token)

    def write(self, *tokens: int) -> torch.Tensor:
        """Plain decoding."""
        out = [self.score(Request.of_tree(self.rows, token, DraftTree.chain([])))[0] for token in self._kept(tokens)]
        return torch.stack(out)

    def _kept(self, tokens: tuple[int, ...]) -> Iterator[int]:
        for token in tokens:
            yield token
            self.rows.keep([0])

    @property
    def state(self) -> torch.Tensor:
        return self.rows.states.recurrent[LAYER, 0, 0]

    @property
    def window(self) -> torch.Tensor:
        return self.rows.states.windows[LAYER, 0, 0]


def tree(drawn: np.random.Generator, most: int, *, chain: bool) -> DraftTree:
    nodes = int(drawn.integers(0, most + 1))
    tokens = drawn.integers(0, TOKENS, nodes)
    return (
        DraftTree.chain(tokens)
        if chain
        else DraftTree.build(tokens, [int(drawn.integers(-1, i)) for i in range(nodes)])
    )


def path_in(drawn: np.random.Generator, request: Request) -> Ints:
    """The rows from the root to a row at random."""
    row, path = int(drawn.integers(0, len(request.tokens))), list[int]()
    while row >= 0:
        path.append(row)
        row = int(request.parents[row])
    return np.array(path[::-1])


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compiled recurrences find the same bits; torch's functions round by where a number stands among others."""
    return torch.equal(one, other) if states_forward.compiles() else torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def rounds(layer: Layer, count: int, *, chain: bool, seed: int = 0) -> Text:
    """Random drafts, of which random paths are accepted: each output and each state is that of plain decoding."""
    drawn = np.random.default_rng(seed)
    drafted, plain = Text(layer), Text(layer)
    for text in (drafted, plain):
        prompt = np.arange(9) % TOKENS
        text.score(Request.of_prompt(text.rows, prompt, ends_prompt=True))
        text.rows.keep(range(9))
    assert same(drafted.state, plain.state)
    for _ in range(count):
        request = Request.of_tree(drafted.rows, int(drawn.integers(0, TOKENS)), tree(drawn, 9, chain=chain))
        out = drafted.score(request)
        path = path_in(drawn, request)
        drafted.rows.keep(path)
        expected = plain.write(*request.tokens[path].tolist())
        assert same(out[torch.from_numpy(path)], expected)
        assert same(drafted.state, plain.state)
        assert torch.equal(drafted.window, plain.window)
        drafted.rows.check()
    return drafted


@pytest.fixture(params=["compiled", "kept", "replayed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How states are taken back: compiled, or by torch, which keeps all states or computes a path again."""
    if request.param == "compiled" and (why := without_numba()) is not None:
        pytest.skip(why)
    monkeypatch.setattr(states_forward, "compiles", lambda: request.param == "compiled")
    monkeypatch.setattr(states_forward, "KEPT_BYTES", 1 << 30 if request.param == "kept" else 0)
    return str(request.param)


@pytest.mark.parametrize("chain", [True, False], ids=["chains", "trees"])
@pytest.mark.parametrize("name", KINDS)
def test_after_400_rounds_the_state_is_that_of_plain_decoding(name: str, chain: bool, way: str) -> None:
    rounds(KINDS[name](), 400, chain=chain)


@pytest.mark.parametrize("name", KINDS)
def test_a_row_is_what_transformers_computes_token_by_token(name: str) -> None:
    """From the state that transformers' function for many rows leaves behind a prompt."""
    layer = KINDS[name]()
    ours, tokens = Text(layer), np.random.default_rng(3).integers(0, TOKENS, 60)
    ours.score(Request.of_prompt(ours.rows, tokens[:20], ends_prompt=True))
    ours.rows.keep(range(20))
    state = ours.state
    mixed = layer.convolution(layer.table[tokens].T[None], layer.weight, None, activation="silu").transpose(1, 2)
    for place in range(20, 60):
        out = ours.write(int(tokens[place]))[0]
        wanted, state = layer.plainly(state, mixed[:, [place]], layer.gates[tokens[[place]]][None])
        assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-5)
        assert torch.allclose(ours.state, state, rtol=1e-4, atol=1e-5)
    whole = layer(tokens, None)
    assert torch.allclose(out, whole[-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_texts_of_one_forward_do_not_touch_each_other(name: str, way: str) -> None:
    """Of any lengths and drafts, some at a prompt. Prompts are read by torch, which rounds by where memory begins."""
    layer, drawn = KINDS[name](), np.random.default_rng(8)
    together, alone = ([Text(layer) for _ in range(4)] for _ in range(2))
    for turn in range(60):
        requests = list[tuple[Request, Request]]()
        for one, other in zip(together, alone, strict=True):
            if turn == 0 or drawn.random() < 0.1:
                tokens = drawn.integers(0, TOKENS, int(drawn.integers(1, 9)))
                requests.append(tuple(Request.of_prompt(t.rows, tokens, ends_prompt=True) for t in (one, other)))
            else:
                root, draft = int(drawn.integers(0, TOKENS)), tree(drawn, 6, chain=False)
                requests.append(tuple(Request.of_tree(t.rows, root, draft) for t in (one, other)))
        found = together[0].score(*(ours for ours, _ in requests))
        wanted = torch.cat([alone[0].score(theirs) for _, theirs in requests])
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)
        for ours, theirs in requests:
            path = np.arange(len(ours.tokens)) if ours.prefill else path_in(drawn, ours)
            ours.rows.keep(path)
            theirs.rows.keep(path)
        for one, other in zip(together, alone, strict=True):
            assert torch.allclose(one.state, other.state, rtol=1e-3, atol=1e-4)
            assert torch.allclose(one.window, other.window)


@pytest.mark.parametrize("name", KINDS)
def test_a_draft_that_is_scored_level_by_level(name: str, way: str) -> None:
    layer, drawn = KINDS[name](), np.random.default_rng(4)
    levels, whole = Text(layer), Text(layer)
    for _ in range(30):  # the first draft begins the text
        draft = tree(drawn, 9, chain=False)
        request = Request.of_tree(whole.rows, 11, draft)
        wanted = whole.score(request)
        cuts = sorted({0, len(request.tokens), *drawn.integers(0, len(request.tokens) + 1, 2).tolist()})
        found = [
            levels.score(Request(levels.rows, request.tokens[start:end], request.parents[:end], held=start))
            for start, end in itertools.pairwise(cuts)
        ]
        assert same(torch.cat(found), wanted)
        path = path_in(drawn, request)
        for text in (levels, whole):
            text.rows.keep(path)
        assert same(levels.state, whole.state)
        assert torch.equal(levels.window, whole.window)


# --- planted faults ---------------------------------------------------------------------------------------------


def _a_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node starts from the state of the first node of its parent's level, or of the row before it."""
    levels, order = RowWalk.levels.func, PackedPart.order.func  # type: ignore[attr-defined]
    monkeypatch.setattr(PackedPart, "order", property(lambda self: Order(np.arange(-1, len(order(self).parents) - 1))))

    def wrong(self: RowWalk) -> Any:
        found = levels(self)
        for level in found[1:]:
            level.parents[:] = 0
        return found

    monkeypatch.setattr(RowWalk, "levels", property(wrong))


def _an_old_window(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StatefulRows._window
    monkeypatch.setattr(
        StatefulRows, "_window", staticmethod(lambda before, inputs, path: right(before, inputs, path[:-1]))
    )


def _another_column(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PackedPart.columns

    def wrong(self: PackedPart, width: int) -> Ints:
        found = right(self, width)
        return np.maximum(found - (np.arange(width) < width - 1), 0)

    monkeypatch.setattr(PackedPart, "columns", wrong)


def _a_replay_one_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (states_forward.SteppedTrail, states_forward.CompiledTrail):
        right = kind.after
        monkeypatch.setattr(
            kind, "after", lambda self, path, right=right: right(self, path[:-1] if len(path) > 2 else path)
        )


@pytest.mark.parametrize("fault", [_a_sibling, _an_old_window, _another_column, _a_replay_one_short])
@pytest.mark.parametrize("name", KINDS)
def test_a_planted_fault_is_seen(
    name: str, fault: Callable[[pytest.MonkeyPatch], None], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = KINDS[name]()
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        rounds(layer, 40, chain=False)


def interrupted(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        right(*args, **kwargs)
        raise KeyboardInterrupt

    return wrong


@pytest.mark.parametrize("name", KINDS)
def test_a_level_that_is_scored_again_replaces_the_one_before(name: str, way: str) -> None:
    layer = KINDS[name]()
    text, plain = Text(layer), Text(layer)
    text.score(Request.of_tree(text.rows, 3, DraftTree.chain([4, 5])))
    again = Request(text.rows, np.array([6, 7]), np.array([-1, 0, 0]), held=1)
    text.score(again)
    text.rows.keep([0, 2])
    plain.write(3, 7)
    assert same(text.state, plain.state)
    assert torch.equal(text.window, plain.window)


@pytest.mark.parametrize("name", KINDS)
def test_states_that_are_kept_keep_nothing_else(name: str) -> None:
    text = Text(KINDS[name]())
    read(text, np.arange(48) % TOKENS, piece=24)
    text.write(*range(5))
    for states in (text.rows.states, *text.rows._snapshots):
        for state in states.recurrent.values():
            assert state.untyped_storage().nbytes() == state.nbytes


def test_functions_that_are_not_transformers_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that comes with a model may have no function by that name."""
    import types

    home = types.ModuleType("transformers_modules.somebody.modeling_new")
    home.causal_conv1d_fn = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    assert not functions.knows(home.__name__)
    functions.install([home.__name__])
    assert home.causal_conv1d_fn is None


# --- rows that are taken back -----------------------------------------------------------------------------------


def read(text: Text, tokens: Ints, piece: int = 16) -> None:
    for start in range(0, len(tokens), piece):
        part = tokens[start : start + piece]
        text.score(Request.of_prompt(text.rows, part))
        text.rows.keep(range(len(part)))


def test_a_later_text_goes_on_behind_the_nearest_place() -> None:
    layer, drawn = KINDS["qwen3_next"](), np.random.default_rng(0)
    tokens = drawn.integers(0, TOKENS, 200)
    first, second = Text(layer), Text(layer)
    read(first, tokens[:96])
    first.write(*tokens[96:].tolist())
    reached = first.rows.common_prefix(np.concatenate([tokens[:150], [1, 2, 3]]))
    assert 96 <= reached <= 150
    second.rows.adopt(first.rows, 150)
    assert second.rows.committed == reached
    assert first.rows.rewind(150) == reached
    for text in (first, second):
        text.write(*tokens[reached:160].tolist())
        text.rows.check()
    fresh = Text(layer)
    read(fresh, tokens[:96])
    fresh.write(*tokens[96:160].tolist())
    assert torch.equal(first.state, fresh.state)
    assert torch.equal(second.state, fresh.state)
    assert first.rows.rewind(3) == 0
    assert first.rows.states.recurrent == {}


def test_places_are_bounded_and_nearer_to_the_end() -> None:
    text = Text(KINDS["qwen3_next"]())
    text.write(*(np.arange(20 * APART) % TOKENS).tolist())
    lengths = [states.length for states in text.rows._snapshots]
    assert len(lengths) == SNAPSHOTS
    assert lengths == sorted(lengths)
    gaps = np.diff([0, *lengths])
    assert gaps[-1] == APART
    assert gaps[0] > APART
    assert lengths[-1] == 20 * APART


def test_states_that_take_much_memory_are_kept_in_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets.hf.recurrent import rows

    monkeypatch.setattr(rows, "SNAPSHOT_BYTES", 1)
    text = Text(KINDS["mamba2"]())
    text.write(*(np.arange(5 * APART) % TOKENS).tolist())
    assert len(text.rows._snapshots) == 2


@pytest.mark.parametrize("where", ["convolved", "recurred"])
def test_an_interrupted_forward_changes_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = KINDS["qwen3_next"]()
    text = Text(layer)
    read(text, np.arange(10))
    before = text.state.clone()
    with monkeypatch.context() as broken:
        broken.setattr(RecurrentForward, where, interrupted(getattr(RecurrentForward, where)))
        with pytest.raises(KeyboardInterrupt):
            text.score(Request.of_tree(text.rows, 5, DraftTree.chain([1, 2])))
    text.rows.keep([])
    assert torch.equal(text.state, before)
    text.write(3, 4)
    other = Text(layer)
    read(other, np.arange(10))
    other.write(3, 4)
    assert torch.equal(text.state, other.state)


def test_other_calls_of_the_replaced_functions_are_transformers_own() -> None:
    layer = KINDS["qwen3_next"]()
    replaced = sys.modules[layer.home.__name__].causal_conv1d_fn
    original = getattr(replaced, functions.OURS)
    x = torch.randn(2, layer.channels, 9)
    assert torch.equal(replaced(x, layer.weight, None, "silu"), original(x, layer.weight, None, "silu"))
    functions.install([layer.home.__name__])
    assert layer.home.causal_conv1d_fn is replaced  # once
