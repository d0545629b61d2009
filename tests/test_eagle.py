"""EAGLE heads: their forward against the description of every published form, rows, texts, laws and files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline
from eagle_heads import VARIANTS, Published, Reference, publish
from enumeration import Coins, World, outcome_of, output_law, played
from paceline.api.chat import Conversation
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Seen, make_drafter
from paceline.drafters.networks import growth
from paceline.drafters.networks import states as states_module
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.eagle import Eagle, checkpoint, fitting
from paceline.drafters.networks.eagle.checkpoint import SAFEAILAB, SPECULATORS, read_head, write_head
from paceline.drafters.networks.eagle.fitting import FittedEagle, layers_read, widened
from paceline.drafters.networks.eagle.head import EagleHead, EagleShape
from paceline.drafters.networks.eagle.model import EagleModel, made_for
from paceline.drafters.networks.layers import LayerShape, TextRows, WindowRows
from paceline.drafters.networks.marginals import CANDIDATES
from paceline.drafters.networks.rotary import Rotary
from paceline.errors import DamagedFile, InputError
from paceline.law import Sampling
from paceline.targets.base import Request, Want
from paceline.targets.table import TableTarget, random_table
from paceline.tree import EMPTY, DraftTree
from paceline.verify import Rule, Verdict
from test_foreign import sampled_by

ROPE = {"rope_theta": 10_000.0}
POCKET = LayerShape(width=256, units=64, heads=4, kv_heads=2, head_size=16)
FORMS = {
    "eagle": EagleShape(form="eagle", layer=POCKET, vocab_size=8192, state_width=256, fc_bias=True),
    "eagle3": EagleShape(
        form="eagle3", layer=POCKET, vocab_size=8192, state_width=256, aux=3, kept=600, own_output=True
    ),
    "peagle": EagleShape(
        form="peagle", layer=POCKET, layers=2, vocab_size=8192, state_width=256, aux=3, kept=600, own_output=True
    ),
    "mtp": EagleShape(form="mtp", layer=POCKET, vocab_size=8192, state_width=256),
}
WRITTEN = ("eagle", "eagle3", "peagle")
"""The forms that are also written."""


def random_head(shape: EagleShape, seed: int = 0) -> EagleHead:
    """A head that was never trained."""
    torch.manual_seed(seed)
    head = EagleHead(shape, Rotary.of(ROPE, shape.layer.head_size)).requires_grad_(False)
    if shape.kept:
        head.token_ids = torch.randperm(shape.vocab_size)[: shape.kept].sort().values
    if shape.form == "peagle":
        torch.nn.init.normal_(head.mask_hidden)
    return head


def layout(shape: EagleShape) -> dict[str, Any]:
    """How `write_head` is asked to write it."""
    more = {"mask_token": 3} if shape.form == "peagle" else {}
    return {"names": SAFEAILAB if shape.form == "eagle" else SPECULATORS, **more}


def save_mtp(folder: Path, head: EagleHead) -> None:
    """As speculators does."""
    layer = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, **ROPE}
    config = {
        "speculators_model_type": "mtp",
        "transformer_layer_config": {**layer, "head_dim": 16, "vocab_size": 8192},
    }
    (folder / "config.json").write_text(json.dumps(config))
    names = {"fc": "input_proj", "token_norm": "token_layernorm", "hidden_norm": "hidden_layernorm"}
    names |= {"norm": "final_layernorm", "layers.0": ""}
    found = dict[str, torch.Tensor]()
    for name, weight in head.state_dict().items():
        part = next(part for part in names if name.startswith(f"{part}."))
        found[f"mtp_layers.0.{names[part]}{name.removeprefix(part)}".replace("..", ".")] = weight
    save_file(found, folder / "model.safetensors")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def folders(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads for `pocket` in every form."""
    found = {name: tmp_path_factory.mktemp(name) for name in FORMS}
    for name, folder in found.items():
        shape = FORMS[name]
        if name == "mtp":
            save_mtp(folder, random_head(shape))
            continue
        write_head(folder, random_head(shape), ROPE, Provenance(target=lm.target.fingerprint()), **layout(shape))
    return found


# --- published heads against their descriptions ------------------------------------------------------------


class Shown:
    """What a head needs of a target."""

    name, device, context_length, layers, dtype = "shown", "cpu", None, 8, "float32"
    compiled, bundled = False, ""

    def __init__(self, made: Published) -> None:
        self.made, self.vocab_size = made, made.layer["vocab_size"]

    def look(self) -> int:
        return 0

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.made.embedding[tokens]

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self.made.output.T


def opened(folder: Path, made: Published) -> EagleModel:
    head, config = read_head(folder)
    target: Any = Shown(made)
    layers = layers_read(head.shape, config.layer_ids, target)
    model, _ = made_for(FittedEagle(head, layers, config.mask_token, None), target)
    return model


def chain(rows: Any, tokens: Sequence[int]) -> Request:
    return Request(rows, np.array(tokens), np.arange(-1, len(tokens) - 1))


def logits_of(model: EagleModel, request: Request) -> torch.Tensor:
    (scores,) = model.submit([request]).result()
    found: torch.Tensor = model.columns.spread(scores.logits)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_published_head_computes_what_its_description_says(variant: str, tmp_path: Path) -> None:
    for seed in range(20):
        made = publish(tmp_path / str(seed), variant, seed)
        model, reference = opened(tmp_path / str(seed), made), Reference(made)
        random = np.random.default_rng(seed)
        text = random.integers(0, model.vocab_size, 9).tolist()
        shown = torch.randn(8, made.aux * made.state_width, generator=torch.Generator().manual_seed(seed))
        states = reference.taken(shown)
        torch.testing.assert_close(model.taken(shown), states, atol=1e-5, rtol=1e-4)
        rows = model.open(4)
        rows.show(0, model.taken(shown))
        model.submit([chain(rows, text[:4])]).result()
        rows.keep(range(4))
        masks = [] if variant != "peagle" else [made.config["mask_token_id"]] * 3
        ahead = reference.taken(made.tensors["mask_hidden"][0]).expand(3, -1) if masks else states[:0]
        found = logits_of(model, chain(rows, text[4:] + masks))
        given, wanted = reference(text[1:] + masks, torch.cat([states, ahead]))
        torch.testing.assert_close(found, wanted[3:], atol=1e-4, rtol=1e-4)
        if not masks:
            rows.keep(range(5))
            check_draft(model, rows, reference, text, torch.cat([states, given[-1:]]))


def check_draft(model: EagleModel, rows: Any, reference: Reference, text: list[int], states: torch.Tensor) -> None:
    """Two children of the text, and a child of each: rows of a tree are those of two texts."""
    first = logits_of(model, Request(rows, np.array([1, 2]), np.array([-1, -1])))
    second = logits_of(model, Request(rows, np.array([3, 4]), np.array([-1, -1, 1, 0]), held=2))
    for child, below, place in ((1, 4, 1), (2, 3, 0)):
        given, wanted = reference([*text[1:], child], states)
        torch.testing.assert_close(first[child - 1], wanted[-1], atol=1e-4, rtol=1e-4)
        _, wanted = reference([*text[1:], child, below], torch.cat([states, given[-1:]]))
        torch.testing.assert_close(second[place], wanted[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_tensor_of_a_file_is_used(variant: str, tmp_path: Path) -> None:
    made = publish(tmp_path, variant, 3)
    offset = float(variant == "mtp-qwen3-next")
    head, _ = read_head(tmp_path)
    found = sorted(float(weight.sum()) for name, weight in head.state_dict().items() if name != "token_ids")
    wanted = [
        float((weight + offset * name.removesuffix(".weight").endswith("norm")).sum())
        for name, weight in made.tensors.items()
        if name not in ("d2t", "t2d")
    ]
    assert found == pytest.approx(sorted(wanted), abs=1e-4)


def test_windows_of_training_are_texts(tmp_path: Path) -> None:
    """A batch of windows with a mask gives what each text gives, step after step, and gradients reach all weights."""
    made = publish(tmp_path, "speculators-layers", 6)
    model, (head, _) = opened(tmp_path, made), read_head(tmp_path)
    head.requires_grad_(True)
    tokens, states = torch.randint(0, 17, (2, 5)), torch.randn(2, 5, head.shape.width)
    mask, windows = torch.ones(5, 5).tril().bool(), WindowRows()
    head.shape = replace(head.shape, windows=())
    embedded = head.embedded(tokens, Shown(made).embed)
    given, read = head(embedded, states, torch.arange(5).expand(2, -1), windows.step(mask))
    after = torch.cat([mask, torch.eye(5).bool()], dim=1)
    _, later = head(embedded, given, torch.arange(1, 6).expand(2, -1), windows.step(after))
    assert later.shape == read.shape
    with torch.no_grad():
        requests = [chain(model.open(5), text.tolist()) for text in tokens]
        attend = TextRows(requests, torch.device("cpu"))
        alone, _ = head(embedded.flatten(0, 1), states.flatten(0, 1), torch.arange(5).repeat(2), attend)
        torch.testing.assert_close(alone.view_as(given), given.detach(), atol=1e-5, rtol=1e-4)
        below = Request(requests[0].rows, np.array([int(tokens[0, 3])]), np.array([-1, 0, 1, 2, 3]), held=4)
        requests[0].rows.note(requests[0].tokens[:4])
        row = head(embedded[0, 3:4], given[0, 3:4], torch.tensor([4]), TextRows([below], torch.device("cpu")))[1]
        torch.testing.assert_close(row[0], later[0, 3].detach(), atol=1e-5, rtol=1e-4)
    (head.logits(read, Shown(made).unembed).sum() + later.sum()).backward()
    unread = {name for name, weight in head.named_parameters() if weight.grad is None}
    assert unread <= {"fc.weight", "input_norm.weight", "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 8.0},
        {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 20.0},
        {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.9, "truncate": False},
    ],
    ids=lambda rope: f"{rope['rope_type']}-{len(rope)}",
)
def test_rotary_embeddings_are_those_of_transformers(rope: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = {"rope_theta": 5000.0, "original_max_position_embeddings": 64, **rope}
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=512, rope_parameters=given)
    positions = torch.arange(500)
    wanted = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    found = Rotary.of({"rope_parameters": given}, 32).at(positions, torch.float32)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours[:, 0], theirs[0], atol=3e-5, rtol=1e-4)


# --- texts -------------------------------------------------------------------------------------------------

TEXTS = ["The old house stood", "Na końcu długiej drogi stał", "Старий будинок"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", ["", ",beams=1,length=3", ",noise=none"])
def test_the_text_is_plain_decodings(lm: LanguageModel, folders: dict[str, Path], form: str, options: str) -> None:
    for how in ({}, {"temperature": 0.8, "seed": 2}, {"temperature": 1.0, "seed": 2}):
        plain = lm.generate_batch(TEXTS, method="plain", max_new_tokens=10, **how)
        method = f"eagle:head={folders[form]}{options}"
        found = lm.generate_batch(TEXTS, method=method, planner="fixed", max_new_tokens=10, **how)
        assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
        assert all(text.totals.drafted for (text,) in found)


def test_a_broken_head_drafts_nothing(lm: LanguageModel, tmp_path: Path) -> None:
    """Weights are finite, and what they compute is not."""
    head = random_head(FORMS["eagle3"])
    head.lm_head.weight.mul_(3e38)
    write_head(tmp_path, head, ROPE)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 6}
    for rule in ("coupled", "rejection"):
        found = lm.generate(TEXTS[0], method=f"eagle:head={tmp_path},beams=1", planner="fixed", rule=rule, **how)
        assert found.tokens == lm.generate(TEXTS[0], method="plain", rule=rule, **how).tokens
        assert found.totals.drafted == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_text_of_one_token_goes_on(lm: LanguageModel, folders: dict[str, Path], form: str) -> None:
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 8}
    found = lm.generate([5], method=f"eagle:head={folders[form]}", planner="fixed", **how)
    assert found.tokens == lm.generate([5], method="plain", **how).tokens
    assert found.totals.drafted


@pytest.mark.parametrize("form", FORMS)
def test_a_chat_goes_on_with_the_rows_of_its_turns(lm: LanguageModel, folders: dict[str, Path], form: str) -> None:
    talks = {}
    for method in ("plain", f"eagle:head={folders[form]}"):
        lm.forget()
        how: dict[str, Any] = {"method": method, "planner": "fixed", "temperature": 0.8, "seed": 4}
        talk = talks[method] = Conversation(lm, max_new_tokens=12, **how)
        for said in ("Tell me of the house", "and of its garden?"):
            assert list(talk.stream(said))
    plain, drafted = (talk.replies for talk in talks.values())
    assert [reply.tokens for reply in drafted] == [reply.tokens for reply in plain]
    assert all(reply.totals.drafted for reply in drafted)


@pytest.mark.parametrize(
    "spec", ["auto:head={}", "eagle:paper,head={}", "eagle:head={}+suffix", "suffix,eagle:head={}"]
)
def test_the_text_is_plain_decodings_in_compositions(lm: LanguageModel, folders: dict[str, Path], spec: str) -> None:
    how: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_new_tokens": 16}
    found = lm.generate(TEXTS[0], method=spec.format(folders["eagle3"]), **how)
    assert found.tokens == lm.generate(TEXTS[0], method="plain", **how).tokens


def test_int8_targets_show_what_int8_finds(folders: dict[str, Path], tmp_path: Path) -> None:
    lm = paceline.load("pocket", quantize="int8", generation_config=False)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_new_tokens": 12}
    found = lm.generate(TEXTS[0], method=f"eagle:head={folders['eagle3']}", planner="fixed", **how)
    assert found.tokens == lm.generate(TEXTS[0], method="plain", **how).tokens
    assert found.totals.drafted


def test_the_papers_draft_is_sixty_nodes_with_the_root(lm: LanguageModel, folders: dict[str, Path]) -> None:
    drafter = make_drafter(f"eagle:paper,head={folders['eagle3']}")
    drafter.fit(lm.target, lm.vocabulary)
    state = reading(lm, drafter, lm.encode(TEXTS[0]))
    (tree,) = drafter.propose([Ask(state, Budget(drafter.nodes, 99))])
    assert (len(tree), drafter.levels(59), drafter.planner) == (59, 8, "fixed")
    assert tree.depth <= 8
    assert max(np.bincount(tree.parents + 1)) <= 10


# --- rows --------------------------------------------------------------------------------------------------


def shown(lm: LanguageModel, drafter: Any, state: Any, request: Request, verdict: Verdict) -> None:
    """Have the target score a request, keep what the verdict accepts, and show it to the drafter."""
    (scores,) = lm.target.score([request])
    request.rows.keep([0, *(node + 1 for node in verdict.path)])
    for token in verdict.tokens:
        state.context.commit(token)
    drafter.observe([Seen(state, verdict, scores)])


def reading(lm: LanguageModel, drafter: Any, tokens: Any) -> Any:
    """A text whose prompt the target has read, in two pieces."""
    context = Context(tokens, Sampling(), Ending(max_new_tokens=60))
    state, rows = drafter.open(context), lm.target.open(99)
    for piece in np.array_split(context.tokens[:-1], 2):
        request = Request.of_prompt(rows, piece, Want(hidden=drafter.needs.hidden))
        path = tuple(range(len(piece) - 1))
        shown(lm, drafter, state, request, Verdict(path=path, tokens=(), accepted=0))
    state.target_rows = rows
    return state


def test_states_of_rounds_without_drafts_wait_and_are_taken_together(
    lm: LanguageModel, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, take = list[int](), Eagle.taken

    def counted(drafter: Eagle, states: torch.Tensor) -> torch.Tensor:
        taken.append(len(states))
        return take(drafter, states)

    def drafted(waiting: int) -> DraftTree:
        monkeypatch.setattr(states_module, "WAITING", waiting)
        drafter = make_drafter(f"eagle:head={folders['eagle3']}")
        drafter.fit(lm.target, lm.vocabulary)
        state = reading(lm, drafter, lm.encode(TEXTS[0]))
        taken.clear()
        for token in (5, 77, 901, 4, 8, 15, 16):
            want = Want(hidden=drafter.needs.hidden)
            request = Request.of_tree(state.target_rows, state.context.root, EMPTY, want)
            shown(lm, drafter, state, request, Verdict(path=(), tokens=(token,), accepted=0))
        (tree,) = drafter.propose([Ask(state, Budget(12, 4))])
        return tree

    monkeypatch.setattr(Eagle, "taken", counted)
    at_once = drafted(1)
    assert taken == [1] * 7
    waited = drafted(32)
    assert taken == [7]
    assert waited.tokens.tolist() == at_once.tokens.tolist()
    np.testing.assert_allclose(waited.scores, at_once.scores, atol=1e-4)
    drafted(3)
    assert taken == [3, 3, 1]


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_a_forward_from_scratch_after_any_verdict(
    lm: LanguageModel, folders: dict[str, Path], form: str
) -> None:
    random, method = np.random.default_rng(0), f"eagle:head={folders[form]},beams=3,length=3"
    drafter = make_drafter(method)
    drafter.fit(lm.target, lm.vocabulary)
    states = [reading(lm, drafter, lm.encode(prompt)) for prompt in (*TEXTS, TEXTS[0] + " there")]
    for _ in range(6):
        trees = drafter.propose([Ask(state, Budget(9, 3)) for state in states])
        assert all(len(tree) == 9 and tree.depth > 1 for tree in trees)
        for state in states:
            accepted = int(random.integers(0, 4))
            line = random.integers(0, 8000, accepted + 1).tolist()
            draft = DraftTree.build([7, *line[:-1]], [-1, -1, *range(1, accepted)][: accepted + 1])
            verdict = Verdict(path=tuple(range(1, accepted + 1)), tokens=tuple(line), accepted=accepted)
            want = Want(hidden=drafter.needs.hidden)
            request = Request.of_tree(state.target_rows, state.context.root, draft, want)
            shown(lm, drafter, state, request, verdict)
    drafts = drafter.propose([Ask(state, Budget(9, 3)) for state in states])
    for state, draft in zip(states, drafts, strict=True):
        state.rows.check()
        fresh = make_drafter(method)
        fresh.fit(lm.target, lm.vocabulary)
        again = reading(lm, fresh, state.context.tokens)
        (wanted,) = fresh.propose([Ask(again, Budget(9, 3))])
        assert (draft.tokens.tolist(), draft.parents.tolist()) == (wanted.tokens.tolist(), wanted.parents.tolist())
        assert state.rows.committed == again.rows.committed == len(state.context)
        for layer, rows in state.rows.layers.items():
            ours, theirs = (torch.cat(each.span(0, len(state.context))) for each in (rows, again.rows.layers[layer]))
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("form", ["eagle3", "peagle"])
def test_the_order_of_a_heads_columns_changes_no_draft(lm: LanguageModel, form: str, tmp_path: Path) -> None:
    """A level below the first embeds tokens of the level above: ids of the target, whatever their columns are."""
    head = random_head(FORMS[form])
    order = torch.randperm(FORMS[form].kept)
    head.layers[0].self_attn.o_proj.weight.mul_(20)  # so that the token fed changes the draft
    write_head(tmp_path / "ascending", head, ROPE, **layout(FORMS[form]))
    assert head.token_ids is not None
    head.token_ids, head.lm_head.weight.data = head.token_ids[order], head.lm_head.weight[order]
    write_head(tmp_path / "permuted", head, ROPE, **layout(FORMS[form]))
    drafts = [drafts_of(lm, tmp_path / name) for name in ("ascending", "permuted")]
    assert drafts[0] == drafts[1]


def drafts_of(lm: LanguageModel, folder: Path) -> list[tuple[list[int], list[int]]]:
    """The trees of several rounds, of each of which the first node is accepted."""
    drafter, found = make_drafter(f"eagle:head={folder},beams=3,length=4"), []
    drafter.fit(lm.target, lm.vocabulary)
    state = reading(lm, drafter, lm.encode(TEXTS[0]))
    for _ in range(4):
        (tree,) = drafter.propose([Ask(state, Budget(12, 4))])
        assert tree.depth > 1
        found.append((tree.tokens.tolist(), tree.parents.tolist()))
        request = Request.of_tree(state.target_rows, state.context.root, tree, Want(hidden=drafter.needs.hidden))
        first = int(tree.tokens[0])
        shown(lm, drafter, state, request, Verdict(path=(0,), tokens=(first, 7), accepted=1))
    return found


@pytest.mark.parametrize("form", ["eagle", "eagle3", "mtp"])
def test_a_draft_is_what_training_reads(lm: LanguageModel, folders: dict[str, Path], form: str) -> None:
    """Row by row: a token, beside the target's state of the token before; then the head's own."""
    drafter = make_drafter(f"eagle:head={folders[form]},beams=1,length=3")
    drafter.fit(lm.target, lm.vocabulary)
    tokens = lm.encode(TEXTS[0] + " at the end of a long road, and nobody knew who had lived there")
    (tree,) = drafter.propose([Ask(reading(lm, drafter, tokens), Budget(3, 3))])
    wanted = Want(hidden=drafter.needs.hidden)
    (scores,) = lm.target.score([Request.of_prompt(lm.target.open(99), np.array(tokens[:-1]), wanted)])
    head, _ = read_head(folders[form])
    states = head.taken(torch.cat([scores.hidden(layer) for layer in drafter.layers], dim=-1))
    text = list(tokens[1:])
    for token in tree.tokens.tolist():
        count = len(text)
        attend, embedded = WindowRows().step(torch.ones(count, count).tril().bool()), torch.tensor(text)
        given, read = head(head.embedded(embedded, lm.target.embed), states, torch.arange(count), attend)
        best = int(head.logits(read[-1:], lm.target.unembed).argmax())
        assert token == (best if head.token_ids is None else int(head.token_ids[best]))
        text, states = [*text, token], torch.cat([states, given[-1:]])


@pytest.mark.parametrize("confidence", [0.0, 1e-4])
def test_masks_draft_the_likeliest_paths_of_all(lm: LanguageModel, folders: dict[str, Path], confidence: float) -> None:
    """In one forward: the levels do not know of one another, so the chance of a path is a product."""
    options = f"beams=2,length=3,noise=none,confidence={confidence}"
    drafter = make_drafter(f"eagle:head={folders['peagle']},{options}")
    drafter.fit(lm.target, lm.vocabulary)
    tokens = lm.encode(TEXTS[0])
    state = reading(lm, drafter, tokens)
    (tree,) = drafter.propose([Ask(state, Budget(12, 3))])
    wanted = Want(hidden=drafter.needs.hidden)
    (scores,) = lm.target.score([Request.of_prompt(lm.target.open(99), np.array(tokens[:-1]), wanted)])
    (head, _), ahead = read_head(folders["peagle"]), [3, 3]
    states = head.taken(torch.cat([scores.hidden(layer) for layer in drafter.layers], dim=-1))
    text, count = torch.tensor([*tokens[1:], *ahead]), len(tokens) + 1
    attend = WindowRows().step(torch.ones(count, count).tril().bool())
    masked = torch.cat([states, head.masked().expand(len(ahead), -1)])
    _, read = head(head.embedded(text, lm.target.embed), masked, torch.arange(count), attend)
    best, columns = head.logits(read[-3:], lm.target.unembed).topk(CANDIDATES)
    assert head.token_ids is not None
    logs, ids = best.log_softmax(dim=-1)[:, :2].tolist(), head.token_ids[columns][:, :2].tolist()
    chances = {
        tuple(ids[level][choice] for level, choice in enumerate(path)): np.exp(
            sum(logs[level][choice] for level, choice in enumerate(path))
        )
        for depth in (1, 2, 3)
        for path in itertools.product((0, 1), repeat=depth)
    }
    likeliest = sorted((path for path in chances if chances[path] >= confidence), key=lambda path: -chances[path])
    drafted = [tuple(int(tree.tokens[node]) for node in tree.path(leaf)) for leaf in range(len(tree))]
    assert len(drafted) == min(12, len(likeliest)) > 4
    assert (len(likeliest) < 14) == (confidence > 0)
    assert set(drafted) == set(likeliest[:12])
    assert drafter.counts(state)["draft_forwards"] == 1


@pytest.mark.parametrize(("form", "levels"), [("eagle3", 5), ("peagle", 1)])
@pytest.mark.parametrize("spec", ["eagle:head={}", "eagle:head={}+suffix", "auto:head={}"])
def test_levels_of_one_forward_cost_as_one(
    lm: LanguageModel, folders: dict[str, Path], spec: str, form: str, levels: int
) -> None:
    """Compositions are made before the head is read, and planners after it."""
    drafter = make_drafter(spec.format(folders[form]))
    drafter.fit(lm.target, lm.vocabulary)
    assert drafter.costly_levels == levels
    drafter.dispose()


def test_rows_of_another_model_are_not_reused(folders: dict[str, Path], tmp_path: Path) -> None:
    write_head(tmp_path, random_head(FORMS["eagle3"]), ROPE)
    one, other = (paceline.load("pocket", dtype="float32", generation_config=False) for _ in range(2))
    drafter, tokens = make_drafter(f"eagle:head={tmp_path}"), list(range(1, 41))

    def reused(model: LanguageModel) -> bool:
        drafter.fit(model.target, model.vocabulary)
        state = drafter.open(Context(tokens, Sampling(), Ending(max_new_tokens=9)))
        found = bool(state.rows.committed > 20)
        drafter.close(state)
        drafter.close(reading(model, drafter, tokens))
        return found

    assert [reused(model) for model in (one, one, other, other)] == [False, True, False, True]
    other.target.forget()  # it was changed
    assert [reused(other), reused(other)] == [False, True]


# --- laws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Rule.REJECTION, {"beams": 1, "length": 2}),
        (Rule.REJECTION, {"beams": 2, "length": 2}),
        (Rule.COUPLED, {"beams": 2, "length": 2, "noise": "none"}),
    ],
    ids=["drawn", "beams", "coupled"],
)
@pytest.mark.parametrize("form", ["eagle3", "peagle"])
def test_the_law_is_plain_decodings(
    monkeypatch: pytest.MonkeyPatch, form: Any, rule: Rule, options: dict[str, Any]
) -> None:
    world = World(length=2)
    layer = LayerShape(width=4, units=6, heads=2, kv_heads=1, head_size=2)
    sizes = {"vocab_size": 3, "state_width": 3, "own_embedding": True, "own_output": True}
    head = random_head(EagleShape(form=form, layer=layer, **sizes), 1).double()
    fitted = FittedEagle(head, (1,), 0 if form == "peagle" else None, None)
    monkeypatch.setattr(fitting, "head_for", lambda named, target: fitted)

    def play(coins: Coins) -> Any:
        if rule is Rule.REJECTION and options["beams"] == 1:
            monkeypatch.setattr(growth, "foremost", sampled_by(coins))
        drafter = Eagle(**options)
        drafter.fit(world.target)
        return outcome_of(played(world, rule, drafter, coins, nodes=3))

    found, plain = output_law(play), world.plain()
    assert found.keys() == plain.keys()
    for text, probability in plain.items():
        assert float(found[text]) == pytest.approx(float(probability), abs=1e-9)


# --- heads and their files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [4, 16])
@pytest.mark.parametrize("variant", ["eagle", "eagle3-narrow", "speculators-layers", "peagle", "mtp", "mtp-qwen3-next"])
def test_ballast_does_not_change_a_head(variant: str, ratio: int, tmp_path: Path) -> None:
    for seed in range(4):
        made = publish(tmp_path / str(seed), variant, seed)
        head, _ = read_head(tmp_path / str(seed))
        wide, size = widened(head, ratio), made.state_width
        assert sum(each.numel() for each in wide.parameters()) > ratio * sum(each.numel() for each in head.parameters())

        def padded(states: torch.Tensor, size: int) -> torch.Tensor:
            parts = states.split(size, dim=-1)
            return torch.cat([torch.nn.functional.pad(part, (0, (ratio - 1) * size)) for part in parts], dim=-1)

        tokens, rows = torch.tensor([3, 1, 2, 7, 5]), torch.randn(5, made.aux * size)
        mask, places = torch.ones(5, 5).tril().bool(), torch.arange(5)
        outputs = []
        for each, shown_states, embedding, output in (
            (head, rows, made.embedding, made.output),
            (wide, padded(rows, size), padded(made.embedding, size), padded(made.output, size)),
        ):
            embedded = each.embedded(tokens, lambda ids, embedding=embedding: embedding[ids])
            given, read = each(embedded, each.taken(shown_states), places, WindowRows().step(mask))
            again = each(embedded, given, places, WindowRows().step(mask))[1]
            logits = [each.logits(states, lambda states, output=output: states @ output.T) for states in (read, again)]
            outputs.append(torch.stack(logits))
            if variant == "peagle":
                outputs[-1] = outputs[-1] + each.masked().sum()
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)


def test_a_head_drafts_the_same_on_ballast(lm: LanguageModel, folders: dict[str, Path]) -> None:
    """Layers of the small model stand elsewhere in the large one, and its states are the same."""
    heavy = paceline.load("pocket+ballast:25M", dtype="float32", generation_config=False)
    for form in ("eagle", "eagle3"):
        trees = []
        for model in (lm, heavy):
            drafter = make_drafter(f"eagle:head={folders[form]}")
            drafter.fit(model.target, model.vocabulary)
            state = reading(model, drafter, model.encode(TEXTS[0]))
            (tree,) = drafter.propose([Ask(state, Budget(20, 9))])
            trees.append((tree.tokens.tolist(), tree.parents.tolist()))
        assert trees[0] == trees[1]


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("rank", [0, 5])
def test_files_hold_a_head(form: str, rank: int, tmp_path: Path) -> None:
    shape = replace(FORMS[form], rank=rank) if FORMS[form].own_output else FORMS[form]
    head = random_head(shape)
    more = {} if form == "eagle" else {"layer_ids": (1, 2, 3)}
    write_head(tmp_path, head, ROPE, Provenance(target="abc", target_name="some"), **layout(shape), **more)
    found, config = read_head(tmp_path)
    assert (found.shape, config.own.target, config.own.target_name) == (shape, "abc", "some")
    assert config.layer_ids == (None if form == "eagle" else (1, 2, 3))
    assert config.rope == ROPE
    assert all(torch.equal(weight, found.state_dict()[name]) for name, weight in head.state_dict().items())


def test_a_head_is_written_in_the_names_of_safeailab(tmp_path: Path) -> None:
    head = random_head(FORMS["eagle3"])
    write_head(tmp_path, head, ROPE, names=SAFEAILAB)
    stored = load_file(tmp_path / "model.safetensors")
    assert {"midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight", "d2t", "t2d", "norm.weight"} <= set(
        stored
    )
    found, config = read_head(tmp_path)
    assert found.shape == head.shape
    assert config.layer_ids is None
    with pytest.raises(InputError, match="the layout of SafeAILab has no norm_output"):
        write_head(tmp_path, random_head(replace(FORMS["eagle3"], norm_output=True)), ROPE, names=SAFEAILAB)


def test_integers_are_close(tmp_path: Path) -> None:
    head = random_head(replace(FORMS["eagle3"], rank=9))
    write_head(tmp_path, head, ROPE, Provenance(int8=True, dtype=torch.bfloat16))
    found, _ = read_head(tmp_path)
    for ours, wanted in zip(found.lm_head, head.lm_head, strict=True):
        assert (ours.weight - wanted.weight).abs().max() < wanted.weight.abs().max() / 60


def put(name: str, tensor: torch.Tensor, *gone: str) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensor
        for each in gone:
            del tensors[each]

    return change


SPOILED: dict[str, Any] = {
    "lacks the tensor fc.weight": lambda tensors: tensors.pop("fc.weight"),
    "layers.0.mlp.up_proj.weight of .* is 3 x 3, and its": put("midlayer.mlp.up_proj.weight", torch.ones(3, 3)),
    "holds numbers that are not finite": lambda tensors: tensors["fc.weight"].fill_(torch.nan),
    "holds a tensor 'more' that": put("more", torch.ones(1)),
    "d2t of .* does not name 9 of": put("d2t", torch.zeros(9, dtype=torch.int64) - 1, "t2d"),
    "d2t and t2d of .* name different tokens": lambda tensors: tensors["t2d"].logical_not_(),
    "d2t of .* is 4 of type int64, and its configuration says 9": put("d2t", torch.zeros(4, dtype=torch.int64)),
    "lacks the tensor d2t, which says": lambda tensors: [tensors.pop(name) for name in ("d2t", "t2d")],
    "the tensor fc.weight of .* is a single number": put("fc.weight", torch.tensor(1.0)),
    "has a mixture of experts": put("midlayer.mlp.experts.0.up_proj.weight", torch.ones(1)),
}


@pytest.fixture
def reduced(tmp_path: Path) -> Path:
    """A head of SafeAILab's with a reduced vocabulary."""
    seed = next(seed for seed in range(9) if publish(tmp_path, "eagle3", seed).config["draft_vocab_size"] == 9)
    publish(tmp_path, "eagle3", seed)
    return tmp_path


@pytest.mark.parametrize("said", SPOILED)
def test_a_spoiled_head_is_one_sentence(reduced: Path, said: str) -> None:
    file = reduced / "model.safetensors"
    tensors = load_file(file)
    SPOILED[said](tensors)
    save_file(tensors, file)
    with pytest.raises(InputError, match=said) as caught:
        read_head(reduced)
    assert "\n" not in str(caught.value)


def changed(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    inner = content.get("transformer_layer_config", content)
    for name, value in values.items():
        place = content if name in content or name not in inner else inner
        place[name] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("variant", "values", "said"),
    [
        ("eagle3", {"hidden_act": "gelu"}, "hidden_act is 'gelu', and a head's is 'silu'"),
        ("eagle3", {"hidden_size": "many"}, "hidden_size is 'many', not a whole number"),
        ("eagle3", {"hidden_size": 2**40}, "channels, and states have 1099511627776"),
        ("eagle3", {"intermediate_size": 2**40}, "says intermediate_size 1099511627776, and no tensor in"),
        ("eagle3", {"num_attention_heads": 2**40}, "do not fit|lacks|is .* and its configuration says"),
        (
            "eagle3",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None},
            "'dynamic', and heads",
        ),
        ("eagle3", {"rope_scaling": "far", "rope_parameters": None}, "a value is of the wrong kind"),
        ("eagle3", {"rope_scaling": {"type": "yarn"}, "rope_parameters": None}, "it has no factor"),
        (
            "speculators",
            {"speculators_model_type": "dflash"},
            "'dflash' in the layout of speculators, and method 'eagle' reads",
        ),
        ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, "it names 4 layers, and fc reads"),
        ("speculators", {"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ("speculators", {"transformer_layer_config": None}, "it has no transformer_layer_config"),
        ("peagle", {"mask_token_id": 99}, "mask_token_id is 99, and it has"),
        ("mtp", {"num_nextn_predict_layers": 2}, "has 2 layers of prediction, and one can be read"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, variant: str, values: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, variant, 1)
    changed(tmp_path, **values)
    if max((value for value in values.values() if isinstance(value, int)), default=0) == 2**40:
        monkeypatch.setattr(checkpoint, "EagleHead", None if "heads" not in str(values) else EagleHead)
    with pytest.raises(InputError, match=said) as caught:
        read_head(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(str(tmp_path)) == 1


class Code:
    """Runs when an ordinary pickle with it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


def test_nothing_in_a_pickle_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = publish(tmp_path, "eagle-bin", 0)
    torch.save({**made.tensors, "fc.weight": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than tensors, and could run code when it is opened"):
        read_head(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds no tensors by name"):
        read_head(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises((DamagedFile, InputError)):
        read_head(tmp_path)
    assert "this must not run" not in capsys.readouterr().out


def test_a_head_must_be_for_the_target(lm: LanguageModel, tmp_path: Path) -> None:
    def refused(shape: EagleShape, said: str, target: str = "", **how: Any) -> None:
        write_head(tmp_path, random_head(shape), ROPE, Provenance(target=target), **layout(shape), **how)
        with pytest.raises(InputError, match=said):
            make_drafter(f"eagle:head={tmp_path}").fit(lm.target, lm.vocabulary)

    small = LayerShape(width=8, units=8, heads=1, kv_heads=1, head_size=4)
    shape = FORMS["eagle3"]
    refused(replace(shape, layer=small, state_width=8), "states of width 8, and those of pocket are 256 wide")
    refused(replace(shape, vocab_size=700), "names 700 tokens, and pocket has 8192")
    refused(shape, "was trained for a model with other weights", target="abc")
    refused(shape, "the state before layer 8 of pocket, which has the layers 0 to 7", layer_ids=(2, 4, 8))
    refused(replace(shape, aux=2), "reads the states of 2 layers and does not say of which ones")
    with pytest.raises(InputError, match="no head for table comes with paceline"):
        make_drafter("eagle").fit(TableTarget(random_table(4), 4))


def test_states_are_the_inputs_of_layers(lm: LanguageModel, folders: dict[str, Path]) -> None:
    """The classic mistake is one layer off: the input of layer 2 is the output of layers 0 and 1."""
    drafter = make_drafter(f"eagle:head={folders['eagle3']}")
    drafter.fit(lm.target, lm.vocabulary)
    assert drafter.needs.hidden == {2, 4, 5}
    model: Any = lm.target.own.model  # type: ignore[attr-defined]
    tokens = torch.tensor([[5, 17, 99]])
    inputs = dict[int, torch.Tensor]()
    for layer in (2, 4, 5):
        model.model.layers[layer].register_forward_pre_hook(
            lambda module, given, kept, layer=layer: inputs.update(
                {layer: (given[0] if given else kept["hidden_states"])[0]}
            ),
            with_kwargs=True,
        )
    with torch.no_grad():
        model(tokens)
    other = paceline.load("pocket", dtype="float32", generation_config=False).target
    request = Request.of_prompt(other.open(9), tokens[0].numpy(), Want(hidden=drafter.needs.hidden))
    (scores,) = other.score([request])
    for layer, state in inputs.items():
        torch.testing.assert_close(scores.hidden(layer), state, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("eagle:beams=0", "eagle needs beams of at least 1, not 0"),
        ("eagle:length=0", "eagle needs length of at least 1, not 0"),
        ("eagle:nodes=0", "eagle needs nodes of at least 1, not 0"),
        ("eagle:confidence=1", "'confidence' of method 'eagle' is from 0 to below 1"),
        ("eagle:noise=loud", "noise=shared or noise=none"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        make_drafter(spec)


@pytest.mark.parametrize("numbers", [{"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_it_drafts_for_models_in_bfloat16_and_int8(
    folders: dict[str, Path], form: str, numbers: dict[str, str]
) -> None:
    """Their states and scores are of other types, and numpy knows no bfloat16."""
    small = paceline.load("pocket", **numbers, generation_config=False)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 4, "max_new_tokens": 14}
    found = small.generate_batch(TEXTS, method=f"eagle:head={folders[form]}", planner="fixed", **how)
    assert all(text.totals.drafted > 14 for (text,) in found)
    if small.target.exact:
        plain = small.generate_batch(TEXTS, method="plain", **how)
        assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
