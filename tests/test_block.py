"""Block heads: public files against a reference, rows, trees, the text, laws by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from block_heads import KINDS, Made, Reference, made
from drafting import as_plain, context_of
from engine import PROMPT, SIZE, habitual
from enumeration import Coins, World, outcome_of, output_law, played
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Seen
from paceline.drafters.networks import growth
from paceline.drafters.networks.block import BlockDrafter
from paceline.drafters.networks.block.checkpoint import read_block
from paceline.drafters.networks.block.network import BlockModel, BlockNetwork, BlockRows
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.marginals import CANDIDATES, best_tokens
from paceline.drafters.networks.reading import TokenColumns
from paceline.drafters.networks.states import StateText
from paceline.drafters.noise import foremost
from paceline.law import Distribution, Outlook, Sampling
from paceline.targets.base import Request, Target, Want
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from paceline.verify import Rule, Verdict
from test_foreign import sampled_by

SHAPES = 20


def shown(head: Made, seed: int, tokens: int = 11) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States of a text before the anchor, and the target's embeddings and output."""
    random = torch.Generator().manual_seed(seed + 1000)
    width, vocab = head.layers["hidden_size"], head.layers["vocab_size"]
    states = torch.randn(tokens, len(head.states) * width, generator=random)
    return states, torch.randn(vocab, width, generator=random), torch.randn(vocab, width, generator=random)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-4)  # norms and angles are in float32


@pytest.mark.parametrize("kind", KINDS)
def test_public_files_compute_what_their_formats_say(kind: str, tmp_path: Path) -> None:
    for seed in range(SHAPES):
        head = made(kind, seed)
        states, embedding, output = (each.double() for each in shown(head, seed))
        network, _ = read_block(head.save(tmp_path / str(seed)))
        network, reference = network.double(), Reference(head, embedding, output)
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(len(embedding), (1, len(states)), generator=random)
        anchors = torch.tensor([[len(states) - 1, 0, 5]])
        found = network(states[None], tokens, anchors, embedding.__getitem__)
        for number, anchor in enumerate(anchors[0].tolist()):
            expected = reference.predicting(reference.hidden(states[:anchor], int(tokens[0, anchor])))
            close(found[0, number], expected)
            close(network.logits(found[0, number], output.T.__rmatmul__), reference.logits(expected))


class Beside:
    """The parts of a target that a head uses."""

    device = "cpu"
    compiled = False

    def __init__(self, embedding: torch.Tensor, output: torch.Tensor) -> None:
        self.vocab_size, self._embedding, self._output = len(embedding), embedding, output

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._embedding[tokens]

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self._output.T


def text_behind(model: BlockModel, tokens: Sequence[int], states: torch.Tensor, **sampling: Any) -> StateText:
    """A text whose states were shown in pieces."""
    context = Context(tokens, Sampling(**sampling), Ending(max_new_tokens=60))
    text = StateText(
        context, Outlook(context.sampling, len(tokens)), TokenColumns(model.vocab_size), rows=model.open(9)
    )
    for start in range(0, len(states), 4):
        text.rows.show(start, model.taken(states[start : start + 4]))
    return text


def check_laws(laws: Sequence[Distribution], expected: Sequence[torch.Tensor]) -> None:
    """The laws behind the nodes that go on are those of rows of scores over the whole vocabulary."""
    for law, scores in zip(laws, expected, strict=True):
        best = scores.topk(min(CANDIDATES, int(scores.isfinite().sum()))).indices.numpy()
        assert set(law.ids.tolist()) <= set(best.tolist())
        logs = np.log(law.weights) - np.log(law.weights.max())
        wanted = (scores - scores.max()).numpy()
        np.testing.assert_allclose(logs, wanted[law.ids], atol=2e-3)
        assert (wanted[list(set(best.tolist()) - set(law.ids.tolist()))] < np.log(1e-5) + 1e-2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_follow_the_laws_of_their_paths(kind: str, tmp_path: Path) -> None:
    """Behind texts of several lengths in one pass, whose rows were read in pieces; with what ties tokens."""
    for seed in range(SHAPES):
        head = made(kind, seed, vocab=60)
        states, embedding, output = shown(head, seed)
        network = BlockNetwork(BlockModel(read_block(head.save(tmp_path / str(seed)))[0], Beside(embedding, output)))
        reference, shape = Reference(head, embedding, output), network.model.head.shape
        lengths = (1, 4, 11)
        texts = [text_behind(network.model, range(3, 4 + length), states[:length]) for length in lengths]
        growths = [Growth(text, DraftShape(beams=2, top=2), 99, shape.places) for text in texts]
        network.begin(growths)
        while going := [draft for draft in growths if not draft.done]:
            for draft, laws in zip(going, network.level(going), strict=True):
                length, paths = len(draft.state.context) - 1, [text.tokens.tolist() for text in draft.texts]
                behind = [reference.behind(states[:length], 3 + length, path[length + 1 :])[-1] for path in paths]
                check_laws(laws, behind)
                if head.said("enable_confidence_head"):
                    chances = [reference.confidence(states[:length], 3 + length, path[length + 1 :]) for path in paths]
                    np.testing.assert_allclose(np.exp(draft.trust), [each[-1] for each in chances], rtol=1e-3)
                draft.add(laws)
        assert all(draft.level == shape.places for draft in growths)
        for text in texts:
            text.rows.check()
            assert text.rows.committed == len(text.context) - 1


# --- a head that knows its target ---------------------------------------------------------------------------

SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=1.0, seed=3),
    "cold": Sampling(temperature=0.6, seed=3),
    "cut": Sampling(temperature=1.2, top_k=4, top_p=0.9, min_p=0.02, seed=3),
    "named": Sampling(temperature=1.0, logit_bias={2: 0.7, 5: -1.0}, banned=((1,),), seed=3),
    "penalised": Sampling(
        temperature=0.9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={0: 1}, seed=3
    ),
}
TABLE = habitual(memory=1)


def knowing(kind: str, folder: Path) -> Path:
    """A head that knows a table with a memory of one token: what ties a token to the one before is the table."""
    head = made(kind, 4, width=SIZE, vocab=SIZE, depth=1, markov="vanilla", output=True)
    head.tensors["lm_head.weight"].zero_()
    logits = torch.tensor([TABLE((token,)) for token in range(SIZE)]) * np.log(2)
    config = head.config.get("dflash_config", head.config)
    config |= {"markov_rank": SIZE, "block_size": 4, "mask_token_id": 1}
    head.tensors["markov_head.markov_w1.weight"] = torch.eye(SIZE)
    head.tensors["markov_head.markov_w2.weight"] = logits.T
    config["confidence_head_with_markov"] = False
    head.tensors["confidence_head.proj.weight"] = torch.zeros(1, SIZE)
    head.tensors["confidence_head.proj.bias"] = torch.ones(1)
    return head.save(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return knowing("dspark_speculators", tmp_path_factory.mktemp("knowing"))


def drafter_of(folder: Path, target: Target, **options: Any) -> BlockDrafter:
    drafter = BlockDrafter(head=folder, **options)
    drafter.fit(target)
    return drafter


def table_target() -> TableTarget:
    return TableTarget(TABLE, SIZE)


@pytest.mark.parametrize("setting", SAMPLINGS)
def test_a_head_that_knows_the_law_is_never_wrong(folder: Path, setting: str) -> None:
    """So places of the noise, settings and penalties of drafted tokens are the target's."""
    target = table_target()
    how: dict[str, Any] = {"sampling": SAMPLINGS[setting], "max_new_tokens": 40, "nodes": 4}
    session = as_plain(target, PROMPT, drafter_of(folder, target, width=1), **how)
    drafted = [each for each in session.rounds if each.drafted]
    assert len(drafted) > 6
    assert all(each.accepted == each.drafted for each in drafted)


@pytest.mark.parametrize("setting", SAMPLINGS)
def test_trees_hold_what_comes_next(folder: Path, setting: str) -> None:
    target = table_target()
    how: dict[str, Any] = {"sampling": SAMPLINGS[setting], "max_new_tokens": 40, "nodes": 9}
    session = as_plain(target, PROMPT, drafter_of(folder, target, width=3), **how)
    assert all(each.accepted > 0 for each in session.rounds if each.drafted)
    assert sum(each.accepted for each in session.rounds) > 20


def test_without_the_noise_it_would_be_wrong(folder: Path) -> None:
    target = table_target()
    how: dict[str, Any] = {"sampling": SAMPLINGS["warm"], "max_new_tokens": 40, "nodes": 4}
    session = as_plain(target, PROMPT, drafter_of(folder, target, width=1, noise="none"), **how)
    assert sum(each.accepted < each.drafted for each in session.rounds) > 6


def test_nothing_follows_an_end_of_text(folder: Path) -> None:
    drafter = drafter_of(folder, table_target(), width=4)
    context = context_of([2, 4, 1, 3], eos=[0, 2])
    state = drafter.open(context)
    state.rows.show(0, drafter.taken(torch.eye(SIZE)[[2, 4, 1]].repeat(1, len(drafter.layers))))
    (tree,) = drafter.propose([Ask(state, Budget(99, 4))])
    ends = [node for node, token in enumerate(tree.tokens.tolist()) if token in (0, 2)]
    assert ends
    assert not set(ends) & set(tree.parents.tolist())


def test_a_head_says_how_far_it_can_be_trusted(folder: Path) -> None:
    """The best child of every node has the chance that the confidence head gives, and siblings none beyond 1."""
    target = table_target()
    drafter = drafter_of(folder, target, width=3, noise="none")
    state = drafter.open(context_of(PROMPT))
    state.rows.show(0, drafter.taken(torch.eye(SIZE)[PROMPT[:-1]].repeat(1, len(drafter.layers))))
    (tree,) = drafter.propose([Ask(state, Budget(99, 4))])
    chance = 1 / (1 + np.exp(-1))
    for parent in {-1, *tree.parents.tolist()}:
        children = np.exp(tree.scores[tree.parents == parent])
        assert children.max() <= chance + 1e-6
        assert children.sum() <= 1 + 1e-9
    assert np.exp(tree.scores[:3]).max() == pytest.approx(min(chance, 1.0), abs=0.35)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Rule.REJECTION, {"width": 1}),
        (Rule.REJECTION, {"width": 2}),
        (Rule.COUPLED, {"width": 2, "noise": "none"}),
    ],
    ids=["drawn", "tree", "coupled"],
)
@pytest.mark.parametrize("kind", ["dflash", "dspark_speculators", "zlab2"])
def test_the_law_is_plain_decodings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, rule: Rule, options: dict[str, Any]
) -> None:
    world = World(length=2)
    head = made(kind, 5, width=world.size, vocab=world.size, depth=1, output=True).save(tmp_path)

    def play(coins: Coins) -> Any:
        monkeypatch.setattr(growth, "foremost", sampled_by(coins) if rule is Rule.REJECTION else foremost)
        drafter = drafter_of(head, world.target, length=2, **options)
        return outcome_of(played(world, rule, drafter, coins, nodes=4))

    found, plain = output_law(play), world.plain()
    assert found.keys() == plain.keys()
    for text, probability in plain.items():
        assert float(found[text]) == pytest.approx(float(probability), abs=1e-9)


# --- texts of a model ----------------------------------------------------------------------------------------

PROMPT_TEXT = "Once upon a time there was a little girl who lived in a village near the forest. One morning"
TEXTS = [PROMPT_TEXT, "Kraków jest", PROMPT_TEXT + " she"]


@cache
def model() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A head of each kind for `pocket`, that was never trained."""
    folder, depth = tmp_path_factory.mktemp("heads"), model().target.layers
    return {kind: made(kind, 6, width=256, vocab=8192, depth=depth, block=5).save(folder / kind) for kind in KINDS}


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("kind", ["zlab", "dflash2", "dspark"])
def test_the_text_is_plain_decodings(heads: dict[str, Path], kind: str, temperature: float) -> None:
    how: dict[str, Any] = {"temperature": temperature, "seed": 4, "max_new_tokens": 14}
    plain = [text.tokens for (text,) in model().generate_batch(TEXTS, method="plain", **how)]
    for options in ("", ",width=1"):
        method = f"block:head={heads[kind]}{options}"
        found = model().generate_batch(TEXTS, method=method, planner="fixed", **how)
        assert [text.tokens for (text,) in found] == plain
        assert all(text.totals.drafted > 14 for (text,) in found)


def test_the_authors_chain_is_the_likeliest_token_of_every_place(heads: dict[str, Path]) -> None:
    method = f"block:paper,head={heads['jetspec']}"
    found = model().generate(PROMPT_TEXT, method=method, temperature=1.0, seed=4, max_new_tokens=8)
    head = read_block(heads["jetspec"])[0]
    assert {round.drafted for round in found.rounds if round.drafted} <= set(range(head.shape.places + 1))
    assert max(round.drafted for round in found.rounds) == head.shape.places


def rounds_of(drafter: BlockDrafter, texts: Sequence[str]) -> list[StateText]:
    """Texts after rounds with verdicts of all kinds."""
    random = np.random.default_rng(0)
    states = [opened(drafter, model().encode(text)) for text in texts]
    for _ in range(6):
        trees = drafter.propose([Ask(state, Budget(6, 3)) for state in states])
        assert all(len(tree) == 6 for tree in trees)
        for state in states:
            accepted = int(random.integers(0, 4))
            line = random.integers(0, 8000, accepted + 1).tolist()
            draft = DraftTree.build([7, *line[:-1]], [-1, -1, *range(1, accepted)][: accepted + 1])
            verdict = Verdict(path=tuple(range(1, accepted + 1)), tokens=tuple(line), accepted=accepted)
            request = Request.of_tree(state.target_rows, state.context.root, draft, Want(hidden=drafter.needs.hidden))
            show(drafter, state, request, verdict)
    drafter.propose([Ask(state, Budget(6, 3)) for state in states])
    return states


def show(drafter: BlockDrafter, state: Any, request: Request, verdict: Verdict) -> None:
    """Have the target score a request, keep what the verdict accepts, and show it to the drafter."""
    (scores,) = state.target.score([request])
    state.target_rows.keep([0, *(node + 1 for node in verdict.path)])
    for token in verdict.tokens:
        state.context.commit(token)
    drafter.observe([Seen(state, verdict, scores)])


def opened(drafter: BlockDrafter, tokens: Any, target: Target | None = None) -> Any:
    """A text whose prompt the target has read, in two pieces."""
    context = Context(tokens, Sampling(), Ending(max_new_tokens=60))
    state: Any = drafter.open(context)
    state.target = target or model().target
    state.target_rows = state.target.open(99)
    for piece in np.array_split(context.tokens[:-1], 2):
        request = Request.of_prompt(state.target_rows, piece, Want(hidden=drafter.needs.hidden))
        show(drafter, state, request, Verdict(path=tuple(range(len(piece) - 1)), tokens=(), accepted=0))
    return state


def keys_of(state: StateText) -> list[torch.Tensor]:
    state.rows.check()
    return [torch.cat(layer.span(0, state.rows.committed)) for _, layer in sorted(state.rows.layers.items())]


def test_rows_are_those_of_a_forward_from_scratch_after_any_verdict(heads: dict[str, Path]) -> None:
    drafter = drafter_of(heads["dflash2"], model().target)
    for state in rounds_of(drafter, TEXTS):
        fresh = drafter_of(heads["dflash2"], model().target)
        again = opened(fresh, state.context.tokens)
        fresh.propose([Ask(again, Budget(6, 3))])
        assert state.rows.committed == len(state.context) - 1
        for one, other in zip(keys_of(again), keys_of(state), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_texts_of_a_batch_are_drafted_in_one_pass(heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_of(heads["zlab"], model().target)
    states = [opened(drafter, model().encode(text)) for text in TEXTS]
    passed, blocks = list[int](), BlockModel.blocks
    monkeypatch.setattr(
        BlockModel, "blocks", lambda own, texts, at: passed.append(len(texts)) or blocks(own, texts, at)
    )
    together = drafter.propose([Ask(state, Budget(6, 3)) for state in states])
    assert passed == [len(TEXTS)]
    for state, tree in zip(states, together, strict=True):
        (alone,) = drafter.propose([Ask(state, Budget(6, 3))])
        assert alone.tokens.tolist() == tree.tokens.tolist()
        np.testing.assert_allclose(alone.scores, tree.scores, atol=1e-5)


def test_rows_are_reused_by_the_next_turn(heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of the last round: the target caches them as well, and shows their states to nobody again."""
    drafter, how = BlockDrafter(head=heads["dspark"]), {"temperature": 0.8, "seed": 4, "max_new_tokens": 12}
    first = model().encode(PROMPT_TEXT)
    turn = model().generate(first, method=drafter, planner="fixed:6", **how)
    network, shown, show_states = drafter.network, list[tuple[int, int, int]](), BlockRows.show

    def show(rows: BlockRows, start: int, states: torch.Tensor) -> None:
        shown.append((rows.committed, rows.shown, start))
        show_states(rows, start, states)

    monkeypatch.setattr(BlockRows, "show", show)
    longer = [*first, *turn.tokens, *model().encode(" and then")]
    found = model().generate(longer, method=drafter, planner="fixed:6", **how)
    assert drafter.network is network
    assert shown[0] == (len(first) + len(turn.tokens) - 1,) * 3
    assert found.tokens == model().generate(longer, method="plain", **how).tokens
    assert found.totals.drafted > 12


@pytest.mark.parametrize("kind", ["zlab2", "dspark_speculators"])
def test_a_model_with_ballast_is_drafted_for_as_the_small_one(heads: dict[str, Path], kind: str) -> None:
    """Its layers stand among others, its states are wider, and its vocabulary may be longer."""
    how: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_new_tokens": 10, "planner": "fixed:5"}
    large = paceline.load("pocket+ballast:40M", dtype="float32", generation_config=False)
    assert large.target.layers > model().target.layers
    found = [each.generate(PROMPT_TEXT, method=f"block:head={heads[kind]}", **how) for each in (model(), large)]
    assert found[0].tokens == found[1].tokens
    drafts = [[(round.drafted, round.accepted) for round in text.rounds] for text in found]
    assert drafts[0] == drafts[1]
    trees = []
    for each in (model(), large):
        drafter = drafter_of(heads[kind], each.target)
        state: Any = opened(drafter, each.encode(PROMPT_TEXT), each.target)
        trees.append(drafter.propose([Ask(state, Budget(9, 4))])[0])
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    np.testing.assert_allclose(trees[0].scores, trees[1].scores, atol=1e-3)


def test_the_best_tokens_are_those_of_a_sort() -> None:
    torch.manual_seed(0)
    for size in (40, 700, 40_000, 40_077):
        logits = torch.randn(2, 3, size)
        ids, best, columns = best_tokens(logits)
        wanted = logits.topk(min(CANDIDATES, size)).indices.sort(dim=-1).values
        assert torch.equal(ids, wanted)
        assert torch.equal(columns, wanted)
        assert torch.equal(best, logits.gather(-1, wanted))
        named, _, columns = best_tokens(logits, ids=torch.arange(size).flip(0))
        assert torch.equal(named, size - 1 - columns)
        assert (named.diff(dim=-1) > 0).all()


@pytest.mark.parametrize("numbers", [{"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
@pytest.mark.parametrize("kind", ["zlab", "dflash2", "dspark"])
def test_it_drafts_for_models_in_bfloat16_and_int8(heads: dict[str, Path], kind: str, numbers: dict[str, str]) -> None:
    """Their states and scores are of other types, and numpy knows no bfloat16."""
    small = paceline.load("pocket", **numbers, generation_config=False)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_new_tokens": 14}
    found = small.generate_batch(TEXTS, method=f"block:head={heads[kind]}", planner="fixed", **how)
    assert all(text.totals.drafted > 14 for (text,) in found)
    if small.target.exact:
        plain = small.generate_batch(TEXTS, method="plain", **how)
        assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
