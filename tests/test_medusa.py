"""Medusa's heads: public files tensor for tensor, the drafts of a search by hand, texts and their laws."""

from __future__ import annotations

import heapq
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
from made_heads import Made, Tensors, assert_same, draw_by, in_fractions, of_kind, store, store_code
from paceline.api.model import LanguageModel
from paceline.context import Context
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.networks.beams import HeadState
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.medusa import Medusa, fitting
from paceline.drafters.networks.medusa.checkpoint import read_heads, write_heads
from paceline.drafters.networks.medusa.fitting import widened
from paceline.drafters.networks.medusa.head import MedusaHeads, MedusaShape
from paceline.errors import DamagedFile, InputError
from paceline.law import Sampling
from paceline.law.outlook import NEGLIGIBLE
from paceline.targets.table import TableTarget, random_table
from paceline.tree import DraftTree
from paceline.verify import Rule

SMALL = MedusaShape(width=8, vocab_size=11, heads=3)
UPLOADED = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
"""The public configurations, which are of fewer heads than there are."""
SIZE = 6


# --- public files, and a forward by the format's description -------------------------------------------------


class Public:
    """Heads with random sizes and weights under the public names, and what they compute."""

    def __init__(self, seed: int) -> None:
        made = Made(seed)
        self.width, self.known = made.size(3, 9), made.size(10, 20)
        self.heads, self.blocks = made.size(1, 5), made.size(0 if seed % 3 else 1, 3)
        self.tied, self.own_output = made.chance(), made.chance() or not self.blocks
        self.output = made.tensor(self.known, self.width)
        """The target's."""
        tensors: Tensors = {}
        for head in range(self.heads):
            shared = made.tensor(self.width, self.width), made.tensor(self.width)
            for block in range(self.blocks):
                both = shared if self.tied else (made.tensor(self.width, self.width), made.tensor(self.width))
                tensors[f"{head}.{block}.linear.weight"], tensors[f"{head}.{block}.linear.bias"] = both
            if self.own_output:
                tensors[f"{head}.{self.blocks}.weight"] = made.tensor(self.known, self.width)
        self.tensors = of_kind(tensors, made.kind())
        self.states = made.tensor(4, self.width)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        found = []
        for head in range(self.heads):
            x = states
            for block in range(self.blocks):
                inner = x @ self._weight(f"{head}.{block}.linear.weight").T + self._weight(
                    f"{head}.{block}.linear.bias"
                )
                x = x + inner / (1 + torch.exp(-inner))
            output = self._weight(f"{head}.{self.blocks}.weight") if self.own_output else self.output
            found.append(x @ output.T)
        return torch.stack(found)

    def _weight(self, name: str) -> torch.Tensor:
        return self.tensors[name].float()

    def store(self, folder: Path, form: str) -> Path:
        """In a file of heads, or within a model, in one file or two."""
        if form.startswith("medusa_lm_head"):
            return store(folder / form, self.tensors, UPLOADED)
        whole = {f"medusa_head.{name}": weight for name, weight in self.tensors.items()}
        whole |= {"model.embed_tokens.weight": self.output, "lm_head.weight": self.output}
        config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **UPLOADED}
        if "-of-" not in form:
            return store(folder / form, whole, config)
        names = sorted(whole)
        first, other = (form.replace("00001-of", f"0000{part}-of") for part in (1, 2))
        parts = {first: names[::2], other: names[1::2]}
        for file, own in parts.items():
            store(folder / file, {name: whole[name] for name in own}, config)
        index = "model.safetensors" if form.endswith(".safetensors") else "pytorch_model.bin"
        places = {name: file for file, own in parts.items() for name in own}
        (folder / f"{index}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        return folder


FORMS = (
    "medusa_lm_head.pt",
    "medusa_lm_head.safetensors",
    "model.safetensors",
    "pytorch_model.bin",
    "model-00001-of-00002.safetensors",
    "pytorch_model-00001-of-00002.bin",
)


@pytest.mark.parametrize("seed", range(20))
def test_public_files_are_read_tensor_for_tensor_and_computed(tmp_path: Path, seed: int) -> None:
    public = Public(seed)
    heads, facts = read_heads(public.store(tmp_path, FORMS[seed % len(FORMS)]))
    assert_same(heads.state_dict(), public.tensors)
    assert (facts.width, heads.shape.heads, heads.shape.blocks) == (public.width, public.heads, public.blocks)
    assert facts.vocab_size == (public.known if public.own_output else None)
    found = heads.float()(public.states, lambda states: states @ public.output.T)
    torch.testing.assert_close(found, public.logits(public.states))
    torch.testing.assert_close(heads(public.states, lambda x: x @ public.output.T, 1), public.logits(public.states)[:1])
    if public.blocks > 1:
        assert heads.shape.tied == public.tied


def test_heads_can_be_trained() -> None:
    torch.manual_seed(0)
    heads = MedusaHeads(replace(SMALL, blocks=2))
    states, wanted = torch.randn(5, 7, 8), torch.randint(11, (3, 5, 7))
    losses = []
    optimizer = torch.optim.Adam(heads.parameters(), 0.02)
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(heads(states).flatten(0, 2), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        replace(SMALL, blocks=3),
        replace(SMALL, blocks=2, tied=False),
        replace(SMALL, own_output=False),
        replace(SMALL, rank=3, kept=5, vocab_size=40),
        replace(SMALL, rank=3, blocks=0),
    ],
)
def test_own_files_hold_heads_under_public_names(tmp_path: Path, shape: MedusaShape) -> None:
    torch.manual_seed(3)
    heads = MedusaHeads(shape)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    write_heads(tmp_path, heads, Provenance(target="abc", target_name="big", trained={"positions": 7}))
    found, facts = read_heads(tmp_path)
    assert found.shape == shape
    assert_same(found.state_dict(), heads.state_dict())
    assert (facts.target, facts.target_name, facts.noise) == ("abc", "big", None)
    assert (tmp_path / "medusa_lm_head.safetensors").exists()
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (shape.heads, shape.blocks)


def test_integers_and_part_vocabularies_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(4)
    heads = MedusaHeads(replace(SMALL, kept=6))
    heads.token_ids = torch.tensor([0, 2, 3, 7, 9, 10])
    write_heads(tmp_path, heads, Provenance(int8=True, dtype=torch.bfloat16))
    found, _ = read_heads(tmp_path)
    assert found.token_ids is not None
    assert found.token_ids.tolist() == [0, 2, 3, 7, 9, 10]
    given, wanted = (each.state_dict()["1.1.weight"] for each in (found, heads))
    assert 0 < (given - wanted).abs().max() < wanted.abs().max() / 100


@pytest.mark.parametrize("ratio", [4, 16])
@pytest.mark.parametrize("change", [{}, {"blocks": 2}, {"rank": 3, "kept": 5}, {"own_output": False}])
def test_ballast_does_not_change_heads(change: dict[str, Any], ratio: int) -> None:
    torch.manual_seed(2)
    heads = MedusaHeads(replace(SMALL, **change))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    wide, states = widened(heads, ratio), torch.randn(3, 8)
    padded, output = torch.cat([states, torch.zeros(3, 8 * (ratio - 1))], dim=1), torch.randn(11, 8)
    found = wide(padded, lambda states: states[:, :8] @ output.T)
    torch.testing.assert_close(found, heads(states, lambda states: states @ output.T), atol=1e-5, rtol=1e-5)
    sizes = [sum(each.numel() for each in one.parameters()) for one in (heads, wide)]
    assert sizes[1] > ratio * sizes[0] / 2


# --- files that are refused ----------------------------------------------------------------------------------


def made_up() -> Tensors:
    heads = MedusaHeads(replace(SMALL, blocks=1))
    return dict(heads.state_dict())


SPOILED = {
    "lacks the tensor 1.0.linear.bias": lambda tensors: tensors.pop("1.0.linear.bias"),
    "lacks the tensor 2.1.weight": lambda tensors: tensors.pop("2.1.weight"),
    "is 3 x 3, and its configuration says 8 x 8": lambda tensors: tensors.update(
        {"1.0.linear.weight": torch.ones(3, 3)}
    ),
    "is 5 x 8, and its configuration says 11 x 8": lambda tensors: tensors.update({"2.1.weight": torch.ones(5, 8)}),
    "holds numbers that are not finite": lambda tensors: tensors["2.0.linear.weight"].fill_(torch.nan),
    "is of type int64": lambda tensors: tensors.update({"2.0.linear.bias": torch.ones(8, dtype=torch.int64)}),
    "holds a tensor 'more' that": lambda tensors: tensors.update({"more": torch.ones(1)}),
    "are not those of Medusa's heads": lambda tensors: tensors.update({"999999999.0.linear.bias": torch.ones(8)}),
    "are not those of Medusa's heads; train": lambda tensors: tensors.clear(),
    "the tensor 0.1.0.weight of .* is a single number": lambda tensors: tensors.update(
        {"0.1.0.weight": torch.tensor(1.0)}
    ),
    "the head in .* is damaged: vocab_size of Medusa's heads is at least 1, not 0; train": lambda tensors: [
        tensors.update({f"{head}.1.weight": torch.ones(0, 8)}) for head in range(3)
    ],
}


@pytest.mark.parametrize("said", SPOILED)
def test_a_spoiled_file_is_one_sentence(tmp_path: Path, said: str) -> None:
    tensors = made_up()
    SPOILED[said](tensors)
    with pytest.raises(InputError, match=said) as error:
        read_heads(store(tmp_path / "medusa_lm_head.pt", tensors, UPLOADED))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "pytorch_model.bin"])
def test_code_in_a_pickle_does_not_run(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    folder = store_code(tmp_path / name, mark, UPLOADED)
    with pytest.raises(InputError, match="holds more than tensors, and could run code when it is opened"):
        read_heads(folder)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"garbage"])
def test_rubbish_is_not_said_to_hold_code(tmp_path: Path, name: str, content: bytes) -> None:
    store(tmp_path / name, made_up(), UPLOADED)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"{name} is damaged: \w.*; train it again") as error:
        read_heads(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "it has no weight_map"),
        ([], "a value is of the wrong kind"),
        ({"weight_map": []}, "a value is of the wrong kind"),
        ({"weight_map": {"medusa_head.0.0.linear.weight": 3}}, "a value is of the wrong kind"),
    ],
)
def test_an_index_without_its_files_is_one_sentence(tmp_path: Path, content: Any, said: str) -> None:
    folder = store(tmp_path / "model.safetensors", made_up(), UPLOADED)
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match=rf"model\.safetensors\.index\.json of .* is damaged: {said}"):
        read_heads(folder)


def test_what_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    folder = store(tmp_path / "model.safetensors", made_up(), UPLOADED)
    index = folder / "model.safetensors.index.json"
    index.mkdir()
    with pytest.raises(InputError, match=r"cannot be read: model\.safetensors\.index\.json: Is a directory"):
        read_heads(folder)
    index.rmdir()
    index.write_text(json.dumps({"weight_map": {"medusa_head.0.0.linear.weight": "gone.safetensors"}}))
    with pytest.raises(InputError, match=r"cannot be read: gone\.safetensors: No such file"):
        read_heads(folder)


def test_other_folders_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has no config.json"):
        read_heads(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(UPLOADED))
    with pytest.raises(InputError, match=r"has no medusa_lm_head.safetensors or medusa_lm_head.pt"):
        read_heads(tmp_path)
    store(tmp_path / "model.safetensors", {"lm_head.weight": torch.ones(3, 3)}, UPLOADED)
    with pytest.raises(InputError, match=r"hold no medusa_head\.\*"):
        read_heads(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DamagedFile, match="is damaged"):
        read_heads(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"medusa_head.0.0.linear.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(DamagedFile, match="it names files of other folders"):
        read_heads(tmp_path)
    config = {**UPLOADED, "paceline": {"version": 1, "noise": "loud"}}
    with pytest.raises(DamagedFile, match="noise is 'loud', and a head has shared or none"):
        read_heads(store(tmp_path / "medusa_lm_head.pt", made_up(), config))


def test_heads_must_be_for_the_target(lm: LanguageModel, tmp_path: Path) -> None:
    def refused(shape: MedusaShape, said: str, target: str = "") -> None:
        write_heads(tmp_path, MedusaHeads(shape), Provenance(target=target))
        with pytest.raises(InputError, match=said):
            make_drafter(f"medusa:head={tmp_path}").fit(lm.target, lm.vocabulary)

    refused(SMALL, "states of width 8, and those of pocket are 256 wide")
    refused(replace(SMALL, width=256, vocab_size=100), "names 100 tokens, and pocket has 8192")
    refused(replace(SMALL, width=256, vocab_size=100, own_output=False), "names 100 tokens, and pocket has 8192")
    refused(replace(SMALL, width=256, vocab_size=8192), "was trained for a model with other weights", "abc")
    with pytest.raises(InputError, match="no head for table comes with paceline"):
        make_drafter("medusa").fit(TableTarget(lambda history: [0.0] * 4, 4))


def test_heads_in_use_are_checked_for_every_target(tmp_path: Path) -> None:
    one, other = (TableTarget(random_table(SIZE, seed=seed), SIZE) for seed in (1, 2))
    write_heads(
        tmp_path, MedusaHeads(replace(SMALL, width=SIZE, vocab_size=SIZE)), Provenance(target=one.fingerprint())
    )
    first, second, third = (make_drafter(f"medusa:head={tmp_path}") for _ in range(3))
    first.fit(one)
    with pytest.raises(InputError, match="was trained for a model with other weights, not for table"):
        second.fit(other)
    third.fit(one)
    assert third.network.heads is first.network.heads


def test_heads_without_an_output_need_that_of_the_target(drafter_by: Any) -> None:
    with pytest.raises(InputError, match="table shows no output head; choose a drafter that needs none"):
        drafter_by(MedusaHeads(MedusaShape(width=SIZE, vocab_size=0, own_output=False)))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("medusa:top=0", "medusa needs top of at least 1, not 0"),
        ("medusa:nodes=0", "medusa needs nodes of at least 1, not 0"),
        ("medusa:length=0", "medusa needs length of at least 1, not 0"),
        ("medusa:noise=loud", "noise=shared or noise=none"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_drafter(spec)


# --- drafts, by hand -----------------------------------------------------------------------------------------


class StatedHeads(MedusaHeads):
    """Heads whose logits are stated, and do not depend on the state."""

    def __init__(self, rows: torch.Tensor, ids: Sequence[int] | None = None) -> None:
        super().__init__(MedusaShape(width=SIZE, vocab_size=99 if ids else rows.shape[1], heads=len(rows), blocks=0))
        self._rows, self.token_ids = rows, None if ids is None else torch.tensor(ids)
        self.forwards = 0

    def forward(self, hidden: torch.Tensor, unembed: Any = None, heads: int | None = None) -> torch.Tensor:
        self.forwards += 1
        return self._rows[:heads, None].expand(-1, len(hidden), -1)


@pytest.fixture
def drafter_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes drafters with given heads."""

    def make(heads: MedusaHeads, target: TableTarget | None = None, **options: Any) -> Medusa:
        monkeypatch.setattr(fitting, "heads_for", lambda named, target: fitting.FittedHead(heads))
        drafter = Medusa(**options)
        drafter.fit(target or TableTarget(lambda history: [0.0] * SIZE, SIZE))
        return drafter

    return make


def ready(drafter: Medusa, context: Context, hidden: torch.Tensor | None = None) -> Any:
    state = drafter.open(context)
    state.last.hidden = torch.zeros(SIZE).double() if hidden is None else hidden
    state.last.length = len(context)
    return state


def by_hand(
    rows: torch.Tensor, ids: list[int], context: Context, *, shared: bool, nodes: int, top: int, depth: int
) -> dict[tuple[int, ...], float]:
    """The best paths and their log-probabilities, by a queue: the likeliest beginning goes on first."""
    sampling, places = context.sampling, []
    for place, row in enumerate(rows[:depth]):
        scaled = row.double().numpy() / (1.0 if sampling.greedy else sampling.temperature)
        weights = np.where(scaled >= scaled.max() + np.log(NEGLIGIBLE), np.exp(scaled - scaled.max()), 0)
        if shared and not sampling.greedy:
            weights = weights / context.exponentials(place, np.array(ids))
        chances = zip((weights / weights.sum()).tolist(), ids, strict=True)
        places.append(sorted(((np.log(chance), token) for chance, token in chances if chance), reverse=True)[:top])
    queue = [(-chance, (token,)) for chance, token in places[0]]
    heapq.heapify(queue)
    found: dict[tuple[int, ...], float] = {}
    while queue and len(found) < nodes:
        less, path = heapq.heappop(queue)
        found[path] = -less
        if len(path) < len(places) and path[-1] not in context.ending.eos:
            for chance, token in places[len(path)]:
                heapq.heappush(queue, (less - chance, (*path, token)))
    return found


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    ways = [tree.path(node) for node in range(len(tree))]
    return {tuple(tree.tokens[way].tolist()): float(tree.scores[way].sum()) for way in ways}


SAMPLINGS = {"greedy": Sampling(), "warm": Sampling(temperature=1.0, seed=3), "cold": Sampling(temperature=0.6, seed=4)}


@pytest.mark.parametrize("ids", [None, [0, 3, 4, 9, 20, 21, 40, 66, 67, 98]], ids=["all", "part"])
@pytest.mark.parametrize("noise", ["shared", "none"])
@pytest.mark.parametrize("setting", SAMPLINGS)
def test_a_draft_is_the_likeliest_paths(drafter_by: Any, setting: str, noise: str, ids: list[int] | None) -> None:
    for seed in range(6):
        made = Made(seed)
        size, heads, nodes, top = made.size(10, 10) if ids else made.size(5, 12), made.size(1, 5), made.size(1, 40), 4
        rows = 6 * made.tensor(heads, size)
        target = TableTarget(lambda history, size=size: [0.0] * (99 if ids else size), 99 if ids else size)
        drafter = drafter_by(StatedHeads(rows, ids), target, noise=noise, top=top, nodes=nodes)
        tokens, depth = [2, 4, made.size(0, 3)], made.size(1, 5)
        contexts = [context_of(tokens, eos=[3], **{**vars(SAMPLINGS[setting]), "seed": seed}), context_of([1])]
        asks = [Ask(ready(drafter, context), Budget(nodes, depth)) for context in contexts]
        for context, tree in zip(contexts, drafter.propose(asks), strict=True):
            tree.check()
            how = {"nodes": nodes, "top": top, "depth": min(depth, nodes)}
            wanted = by_hand(rows, ids or list(range(size)), context, shared=noise == "shared", **how)
            assert paths(tree) == pytest.approx(wanted, abs=1e-5)


def test_certain_tokens_are_no_children_without_parents(drafter_by: Any) -> None:
    rows = torch.full((4, SIZE), -40.0)
    rows[:, 2] = 40
    drafter = drafter_by(StatedHeads(rows), nodes=3)
    (tree,) = drafter.propose([Ask(ready(drafter, context_of([1], temperature=1.0, top_k=1)), Budget(3, 4))])
    assert paths(tree).keys() == {(2,), (2, 2), (2, 2, 2)}


def test_a_broken_state_drafts_nothing_and_leaves_others_alone(drafter_by: Any) -> None:
    class Broken(StatedHeads):
        def forward(self, hidden: torch.Tensor, unembed: Any = None, heads: int | None = None) -> torch.Tensor:
            return super().forward(hidden, unembed, heads) + hidden.sum(-1, keepdim=True)

    drafter = drafter_by(Broken(Made(0).tensor(3, SIZE)))
    states = [ready(drafter, context_of([1]), torch.full((SIZE,), number)) for number in (torch.nan, 0.0)]
    broken, whole = drafter.propose([Ask(state, Budget(5, 5)) for state in states])
    assert (len(broken), len(whole)) == (0, 5)


def test_levels_of_several_texts_take_one_pass(drafter_by: Any) -> None:
    heads = StatedHeads(6 * Made(0).tensor(4, SIZE))
    drafter = drafter_by(heads)
    states = [ready(drafter, context_of([number])) for number in range(3)]
    trees = drafter.propose([Ask(state, Budget(16, 9)) for state in states])
    assert [tree.depth for tree in trees] == [4, 4, 4]
    assert heads.forwards == 1
    assert [drafter.counts(state) for state in states] == [{"draft_forwards": 1, "draft_tokens": 6 + 3 * 16}] * 3


# --- heads that know what comes ------------------------------------------------------------------------------


NEXT = (3, 4, 1, 5, 2, 0)
"""After each token this one."""


class Following(MedusaHeads):
    """Heads that know the tokens behind a state of a table whose texts follow `NEXT`."""

    def __init__(self) -> None:
        super().__init__(MedusaShape(width=SIZE, vocab_size=SIZE, heads=4, blocks=0))

    def forward(self, hidden: torch.Tensor, unembed: Any = None, heads: int | None = None) -> torch.Tensor:
        token, rows = hidden.argmax(dim=-1), []
        for head in range(heads or 4):
            for _ in range(2 if head == 0 else 1):
                token = torch.tensor(NEXT)[token]
            rows.append(9 * torch.nn.functional.one_hot(token, SIZE).double())
        return torch.stack(rows)


def following(history: tuple[int, ...]) -> list[float]:
    return [40.0 * (token == NEXT[history[-1]]) for token in range(SIZE)]


def wrong_rounds(drafter_by: Any) -> int:
    """Rounds with a refused token, of a text that its heads know."""
    target = TableTarget(following, SIZE)
    session = write(target, [1], drafter_by(Following(), target, top=1), max_new_tokens=40)
    assert sum(each.drafted for each in session.rounds) > 20
    return sum(each.accepted < each.drafted for each in session.rounds)


def test_heads_that_know_what_comes_are_never_wrong(drafter_by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And states of other rows would be seen."""
    assert wrong_rounds(drafter_by) == 0
    honest = HeadState.note

    def other_row(self: HeadState, scores: Any, verdict: Any, layer: int) -> None:
        honest(self, scores, verdict, layer)
        self.hidden = scores.hidden(layer)[0].clone()

    monkeypatch.setattr(HeadState, "note", other_row)
    assert wrong_rounds(drafter_by) > 3


LAW = [0.0, 2.0, 1.0, 3.0, 1.0, 2.0]


@pytest.mark.parametrize("rejecting", [False, True], ids=["public noise", "with laws"])
def test_heads_that_know_the_law_are_never_wrong(
    drafter_by: Any, monkeypatch: pytest.MonkeyPatch, rejecting: bool
) -> None:
    """The noise of every place is the target's, or a drawn token has the target's law; other noise would be seen."""

    def wrong() -> int:
        target = TableTarget(lambda history: LAW, SIZE)
        heads = StatedHeads(torch.tensor(LAW, dtype=torch.float64).expand(4, -1) * np.log(2))
        how: dict[str, Any] = {"sampling": Sampling(temperature=0.8, seed=5), "max_new_tokens": 60}
        rule = Rule.REJECTION if rejecting else Rule.COUPLED
        session = write(target, [1, 2, 3], drafter_by(heads, target, top=1), rule=rule, **how)
        assert sum(each.drafted for each in session.rounds) > 30
        return sum(each.accepted < each.drafted for each in session.rounds)

    assert wrong() == 0
    if not rejecting:
        coins = Context.exponentials
        monkeypatch.setattr(Context, "exponentials", lambda self, ahead, ids: coins(self, ahead, ids + 7))
        assert wrong() > 3


# --- texts and laws ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@cache
def random_heads(folder: Path, own_output: bool) -> Path:
    """Heads for `pocket` that were never trained."""
    torch.manual_seed(0)
    shape = MedusaShape(width=256, vocab_size=8192, heads=3, own_output=own_output, rank=32 if own_output else 0)
    write_heads(folder, MedusaHeads(shape))
    return folder


TEXTS = ["The old house stood", "Na końcu długiej drogi stał", "Старий будинок"]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "0.8": {"temperature": 0.8, "seed": 2},
    "1": {"temperature": 1.0, "seed": 2},
    "cut": {"temperature": 1.1, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 2},
}


@pytest.mark.parametrize("options", ["", ",top=1", ",noise=none", ",length=2,top=3"])
@pytest.mark.parametrize("how", HOW)
def test_the_text_is_plain_decodings(
    lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory, how: str, options: str
) -> None:
    own_output = options != ""
    folder = random_heads(tmp_path_factory.getbasetemp() / f"medusa-{own_output}", own_output)
    plain = lm.generate_batch(TEXTS, method="plain", max_new_tokens=12, **HOW[how])
    method = f"medusa:head={folder}{options}"
    found = lm.generate_batch(TEXTS, method=method, planner="fixed", max_new_tokens=12, **HOW[how])
    assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
    assert all(text.totals.drafted for (text,) in found)


def test_auto_finds_out_which_method_heads_are_for(lm: LanguageModel, tmp_path: Path) -> None:
    folder = random_heads(tmp_path, False)
    auto = make_drafter(f"auto:head={folder}")
    assert isinstance(auto.parts[-1], Medusa)
    assert auto.costly_levels == 1
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 16}
    found = lm.generate(TEXTS[0], method=f"auto:head={folder}", planner="fixed:8", **how)
    assert found.tokens == lm.generate(TEXTS[0], method="plain", **how).tokens
    assert sum(each.counts.get("draft_forwards", 0) for each in found.rounds) > 3


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Rule.REJECTION, {"top": 1, "length": 2}),
        (Rule.REJECTION, {"top": 2, "length": 2}),
        (Rule.COUPLED, {"top": 2, "length": 2, "noise": "none"}),
    ],
    ids=["drawn", "tree", "coupled"],
)
def test_the_law_is_plain_decodings(
    drafter_by: Any, monkeypatch: pytest.MonkeyPatch, rule: Rule, options: dict[str, Any]
) -> None:
    world = World(length=3 if rule is Rule.REJECTION else 4)
    heads = StatedHeads(Made(1).tensor(2, world.size).double())
    drawn = list[DraftTree]()

    def play(coins: Coins) -> Any:
        draw_by(coins, monkeypatch)
        drafter = drafter_by(heads, world.target, **options)
        propose = drafter.propose

        def exactly(asks: Sequence[Ask]) -> list[DraftTree]:
            trees = [in_fractions(tree) for tree in propose(asks)]
            drawn.extend(trees)
            return trees

        monkeypatch.setattr(drafter, "propose", exactly)
        return outcome_of(played(world, rule, drafter, coins, nodes=4))

    found, plain = output_law(play), world.plain()
    assert max(tree.depth for tree in drawn) == 2
    assert any(tree.drawn for tree in drawn) == (rule is Rule.REJECTION and options["top"] == 1)
    assert found.keys() == plain.keys()
    for text, probability in plain.items():
        assert float(found[text]) == pytest.approx(float(probability), abs=1e-9)


@pytest.mark.parametrize("numbers", [{"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
@pytest.mark.parametrize("own_output", [False, True])
def test_it_drafts_for_models_in_bfloat16_and_int8(tmp_path: Path, own_output: bool, numbers: dict[str, str]) -> None:
    """Their states and scores are of other types, and numpy knows no bfloat16."""
    small = paceline.load("pocket", **numbers, generation_config=False)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_new_tokens": 14}
    found = small.generate_batch(
        TEXTS, method=f"medusa:head={random_heads(tmp_path, own_output)}", planner="fixed", **how
    )
    assert all(text.totals.drafted > 14 for (text,) in found)
    if small.target.exact:
        plain = small.generate_batch(TEXTS, method="plain", **how)
        assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
