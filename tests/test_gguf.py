"""Models of llama.cpp as targets: the law of trees, faults that must be seen, texts, and files that cannot be used."""

import gc
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from engine import write
from gguf_models import (
    bundled,
    file_of,
    gap,
    needs_llama,
    path_to,
    plain_rows,
    random_tree,
    read,
    score,
    target_of,
    text,
)
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.drafters.lookup import Lookup
from paceline.drafters.networks.heads import shipped_head
from paceline.errors import DamagedFile, DefectError, InputError, MissingPackage, OutOfMemory, UnsupportedModel
from paceline.targets.base import Request, Want
from paceline.targets.gguf import cells, contents, file, library
from paceline.targets.gguf import open as opening
from paceline.targets.gguf.cells import Cells, RowsRead
from paceline.targets.gguf.open import open_gguf
from paceline.targets.gguf.rows import GgufRows
from paceline.targets.gguf.target import GgufTarget
from paceline.targets.load import open_model
from paceline.targets.replay import open_vocabulary
from paceline.testing.evidence import teacher_forced
from paceline.tree import DraftTree, Ints
from paceline_lab.bench.machine import threads
from paceline_lab.bench.peers.llama_cpp import LlamaModel

CLOSE = 1e-4
"""Of a row's deviation: what kernels of other shapes may change in float32."""
SEEN = 100 * CLOSE
METHODS = ("plain", "lookup", "suffix", "auto", "assistant")
PROMPT = "Once upon a time there was a small boat. The small boat"
PROMPTS = [PROMPT, "Dawno, dawno temu żył sobie mały", "The king said to the king that the"]


@pytest.fixture
def rows() -> Iterator[GgufRows]:
    found = target_of().open()
    yield found
    found.close()


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load(file_of(), device="cpu")


# --- the law of trees ---------------------------------------------------------------------------------------


@needs_llama
def test_a_row_is_that_of_plain_decoding_whatever_stands_beside_it() -> None:
    """20 random trees behind texts of different lengths."""
    target = target_of()
    worst = 0.0
    for seed in range(20):
        context, tree = text(3 + 7 * seed, seed), random_tree(seed)
        rows = target.open()
        read(target, rows, context)
        worst = max(worst, gap(score(target, rows, 5, tree), plain_rows(target, context, 5, tree)))
        rows.check()
        rows.close()
    assert worst < CLOSE


@needs_llama
def test_the_rows_are_those_of_transformers() -> None:
    model, _ = bundled("pocket")
    target, context, tree = target_of(), text(40), random_tree(3)
    rows = target.open()
    read(target, rows, context)
    found = score(target, rows, 5, tree)
    rows.close()
    for node in range(-1, len(tree)):
        line = np.concatenate([context, [5], tree.tokens[path_to(tree, node)]])
        with torch.no_grad():
            expected = model(torch.from_numpy(line)[None]).logits[0, -1].numpy()
        assert gap(found[node + 1], expected) < CLOSE


@needs_llama
@pytest.mark.parametrize("branches", [True, False])
def test_the_states_behind_the_last_layer_are_those_of_transformers(
    branches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prompt, and of a tree beside a text that shows none; also where paths are read one after the other."""
    if not branches:
        monkeypatch.setattr(Cells, "branch", lambda cells: None)
    model, _ = bundled("pocket")
    target, context, tree = target_of(), text(40), random_tree(3)
    want, rows, other = Want(hidden=frozenset({target.layers})), target.open(), target.open()
    prompt = read(target, rows, context, want)
    read(target, other, text(9, 2))
    asked = [Request.of_tree(other, 7, DraftTree.chain([8, 9])), Request.of_tree(rows, 5, tree, want)]
    beside, found = target.submit(asked).result()
    states = np.concatenate([prompt.hidden(target.layers), found.hidden(target.layers)])
    for node in range(-1, len(tree)):
        line = np.concatenate([context, [5], tree.tokens[path_to(tree, node)]])
        with torch.no_grad():
            expected = model.model(torch.from_numpy(line)[None]).last_hidden_state[0].numpy()
        assert gap(states[len(context) + 1 + node], expected[-1]) < CLOSE
    assert gap(states[: len(context)], expected[: len(context)]) < CLOSE
    assert gap(found.logits, plain_rows(target, context, 5, tree)) < CLOSE
    assert len(beside.logits) == 3
    for each in (rows, other):
        each.close()


@needs_llama
@pytest.mark.parametrize("shows", [0, 1])
def test_states_of_one_text_leave_another_ones_prompt_alone(shows: int) -> None:
    """llama.cpp finds all rows of a forward that gives states, and only the last row of a prompt is scored."""
    target, lines = target_of(), [text(9, 1), text(14, 2)]
    wants = [Want(hidden=frozenset({target.layers})) if i == shows else Want() for i in range(2)]
    rows = [target.open() for _ in lines]
    given = zip(rows, lines, wants, strict=True)
    found = target.submit([Request.of_prompt(*own, ends_prompt=True) for own in given]).result()
    for own, line, scores in zip(rows, lines, found, strict=True):
        assert gap(scores.logits, plain_rows(target, line[:-1], int(line[-1]), DraftTree.chain([]))) < CLOSE
        own.close()
    alone = target.open()
    expected = read(target, alone, lines[shows], wants[shows]).hidden(target.layers)
    assert gap(found[shows].hidden(target.layers), expected[-1:]) < CLOSE
    alone.close()


@needs_llama
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_embeddings_are_those_of_the_file(kind: str) -> None:
    model, _ = bundled("pocket")
    tokens = torch.tensor([[3, 8191], [0, 3]])
    found = target_of(kind).embed(tokens)
    with torch.no_grad():
        expected = model.get_input_embeddings()(tokens)
    assert found.shape == expected.shape
    assert (found - expected).norm() <= (0.0 if kind == "F32" else 0.01) * expected.norm()


@needs_llama
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_heads_of_the_model_draft(lm: LanguageModel, temperature: float) -> None:
    head = shipped_head("pocket")
    given: Any = {"temperature": temperature, "max_new_tokens": 40, "seed": 5}
    plain = lm.generate(PROMPT, method="plain", **given)
    drafted = lm.generate(PROMPT, method=f"redrafter:head={head}", planner="fixed:8", **given)
    assert drafted.tokens == plain.tokens
    assert len(drafted.rounds) < 0.9 * len(plain.rounds)


@needs_llama
def test_a_path_is_kept_and_the_rest_is_dropped() -> None:
    target, rows, line = target_of(), target_of().open(), text(10)
    read(target, rows, line)
    for seed in range(8):
        tree = random_tree(seed)
        path = path_to(tree, len(tree) - 1)
        score(target, rows, 7, tree)
        rows.keep([0, *(node + 1 for node in path)])
        rows.check()
        line = np.concatenate([line, [7], tree.tokens[path]])
        assert rows.tokens.tolist() == line.tolist()
    found = score(target, rows, 9)
    rows.close()
    assert gap(found, plain_rows(target, line, 9, DraftTree.chain([]))) < CLOSE


@needs_llama
def test_several_texts_in_one_forward() -> None:
    target = target_of()
    trees, contexts = [random_tree(seed) for seed in (1, 2, 3)], [text(n, n) for n in (5, 30, 61)]
    opened = [target.open() for _ in trees]
    for one, context in zip(opened, contexts, strict=True):
        read(target, one, context)
    requests = [Request.of_tree(one, 4, tree) for one, tree in zip(opened, trees, strict=True)]
    for scores, context, tree in zip(target.score(requests), contexts, trees, strict=True):
        assert gap(scores.logits, plain_rows(target, context, 4, tree)) < CLOSE
    for one in opened:
        one.check()
        one.close()


@needs_llama
@pytest.mark.parametrize("piece", [7, 64, 1200])
def test_a_prompt_in_pieces_with_the_logits_of_every_row(piece: int) -> None:
    """The longest is more than a forward of llama.cpp takes."""
    target, line = target_of(), text(1100)
    line = line[:100] if piece < 1100 else line
    rows = target.open()
    found = [
        read(target, rows, line[start : start + piece], Want(logits=True)).logits
        for start in range(0, len(line), piece)
    ]
    rows.check()
    rows.close()
    with torch.no_grad():
        expected = bundled("pocket")[0](torch.from_numpy(line)[None]).logits[0].numpy()
    assert gap(np.concatenate(found), expected) < CLOSE


@needs_llama
def test_a_draft_that_is_scored_level_by_level(rows: GgufRows) -> None:
    """Held rows stay, and may get siblings and children later."""
    target, context = target_of(), text(20)
    read(target, rows, context)
    tokens, parents = np.array([5, 11, 12, 13, 14, 15, 16]), np.array([-1, 0, 0, 1, 1, 2, 0])
    found = []
    for held, end in ((0, 1), (1, 3), (3, 5), (5, 7)):
        request = Request(rows, tokens[held:end], parents[:end], held=held)
        found.append(target.score([request])[0].logits)
        rows.check()
    tree = DraftTree.build(tokens[1:], parents[1:] - 1)
    assert gap(np.concatenate(found), plain_rows(target, context, 5, tree)) < CLOSE
    rows.keep([0, 2, 5])
    rows.check()
    assert rows.tokens[-3:].tolist() == [5, 12, 15]
    line = np.concatenate([context, [5, 12, 15]])
    assert gap(score(target, rows, 3), plain_rows(target, line, 3, DraftTree.chain([]))) < CLOSE


@needs_llama
def test_too_few_sequences_for_a_bushy_tree(rows: GgufRows, monkeypatch: pytest.MonkeyPatch) -> None:
    target, context, tree = target_of(), text(20), random_tree(5)
    expected = plain_rows(target, context, 5, tree)
    monkeypatch.setattr(Cells, "branch", lambda cells: None)
    read(target, rows, context)
    assert gap(score(target, rows, 5, tree), expected) < CLOSE
    rows.check()
    path = path_to(tree, len(tree) - 1)
    rows.keep([0, *(node + 1 for node in path)])
    rows.check()
    line = np.concatenate([context, [5], tree.tokens[path]])
    assert gap(score(target, rows, 9), plain_rows(target, line, 9, DraftTree.chain([]))) < CLOSE


@needs_llama
def test_a_tree_of_more_leaves_than_sequences(rows: GgufRows) -> None:
    target, context = target_of(), text(12)
    read(target, rows, context)
    tokens = text(400, 1)
    tree = DraftTree.build(tokens, [-1] * 300 + [7] * 100)
    found = score(target, rows, 5, tree)
    single = DraftTree.build([tokens[7], tokens[350]], [-1, 0])
    assert gap(found[[0, 8, 351]], plain_rows(target, context, 5, single)) < CLOSE
    rows.keep([0, 8, 351])
    rows.check()


@needs_llama
def test_cells_grow_with_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "FIRST_CELLS", 512)
    target = open_gguf(file_of(), device="cpu")[0]
    one, other, line, tree = target.open(), target.open(), text(200), random_tree(4)
    read(target, one, line)
    other.adopt(one, 100)
    score(target, one, 5, tree)
    read(target, other, text(500, 3))
    assert target.cells.size > 512
    other.check()
    found = score(target, one, 5, tree)
    assert gap(found, plain_rows(target, line, 5, tree)) < CLOSE
    one.check()


@needs_llama
def test_an_interruption_while_cells_grow_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "FIRST_CELLS", 512)
    target = open_gguf(file_of(), device="cpu")[0]
    one, other, line, tree = target.open(), target.open(), text(300), random_tree(4)
    read(target, one, line)
    init, freed = target.calls.llama_init_from_model, list[Any]()

    def interrupted(*given: Any) -> Any:
        init(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(target.calls, "llama_init_from_model", interrupted)
    monkeypatch.setattr(target.calls, "llama_free", freed.append)
    with pytest.raises(KeyboardInterrupt):
        read(target, other, text(400, 3))
    assert not freed, "the cells are those of before"
    monkeypatch.undo()
    assert gap(score(target, one, 5, tree), plain_rows(target, line, 5, tree)) < CLOSE


@needs_llama
@pytest.mark.parametrize("name", ["llama_get_memory", "llama_n_batch"])
def test_an_interruption_before_other_cells_are_used_leaves_the_old_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "FIRST_CELLS", 512)
    target = open_gguf(file_of(), device="cpu")[0]
    one, other, line = target.open(), target.open(), text(300)
    read(target, one, line)
    used = target.cells._context

    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(target.calls, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(target, other, text(400, 3))
    monkeypatch.undo()
    assert (target.cells._context, target.cells.size) == (used, 512)
    assert gap(score(target, one, 5), plain_rows(target, line, 5, DraftTree.chain([]))) < CLOSE


@needs_llama
def test_an_interruption_while_states_are_asked_for_is_no_lasting_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    target, line = target_of(), text(9)
    rows = target.open()
    read(target, rows, line)
    rows.rewind(0)
    switch = target.calls.llama_set_embeddings

    def interrupted(*given: Any) -> None:
        switch(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(target.calls, "llama_set_embeddings", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(target, rows, line, Want(hidden=frozenset({target.layers})))
    monkeypatch.undo()
    rows.rewind(0)
    found = target.submit([Request.of_prompt(rows, line, ends_prompt=True)]).result()[0].logits
    assert gap(found, plain_rows(target, line[:-1], int(line[-1]), DraftTree.chain([]))) < CLOSE
    rows.close()


@needs_llama
def test_a_model_is_freed_after_its_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = list[str]()
    calls = library.library()
    for name in ("llama_model_free", "llama_free"):
        free = getattr(calls, name)
        monkeypatch.setattr(calls, name, lambda thing, name=name, free=free: (freed.append(name), free(thing)))
    target = open_gguf(file_of(), device="cpu")[0]
    rows = target.open()
    del target
    gc.collect()
    assert not freed, "rows still need them"
    del rows
    gc.collect()
    assert freed == ["llama_free", "llama_model_free"]


@needs_llama
def test_cells_of_a_copy_that_was_interrupted_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    target, line = target_of(), text(60)
    one, other = target.open(), target.open()
    read(target, one, line)
    copy = target.calls.llama_memory_seq_cp

    def interrupted(*given: Any) -> None:
        copy(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(target.calls, "llama_memory_seq_cp", interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.adopt(one, 40)
    monkeypatch.undo()
    other.rewind(0)
    other.check()
    read(target, other, text(9, 8))
    assert gap(score(target, other, 5), plain_rows(target, text(9, 8), 5, DraftTree.chain([]))) < CLOSE
    one.close()
    other.close()


@needs_llama
def test_rows_that_were_rewound_or_copied_are_as_good_as_fresh_ones() -> None:
    target, line, tree = target_of(), text(60), random_tree(6)
    one, other = target.open(), target.open()
    read(target, one, line)
    score(target, one, 5, random_tree(7))
    other.adopt(one, 40)
    assert one.rewind(25) == 25
    for rows, length in ((one, 25), (other, 40)):
        rows.check()
        read(target, rows, text(9, 8))
        expected = plain_rows(target, np.concatenate([line[:length], text(9, 8)]), 5, tree)
        assert gap(score(target, rows, 5, tree), expected) < CLOSE
        rows.close()


@needs_llama
def test_sequences_come_back_also_of_rows_that_are_left() -> None:
    target = target_of()
    for seed in range(target.cells.sequences + 8):
        rows = target.open()
        if seed % 20 == 0:
            read(target, rows, text(2, seed))
            score(target, rows, 5, random_tree(1))
    del rows
    with target.cells.held():
        assert len(target.cells._free) >= target.cells.sequences - 8


# --- faults that must be seen -------------------------------------------------------------------------------


def tree_gap() -> float:
    target, context, tree = target_of(), text(30), random_tree(2)
    expected = plain_rows(target, context, 5, tree)
    rows = target.open()
    try:
        read(target, rows, context)
        found = gap(score(target, rows, 5, tree), expected)
        rows.keep([0, *(node + 1 for node in path_to(tree, len(tree) - 1))])
        rows.check()
        return found
    finally:
        rows.close()


@needs_llama
def test_a_sibling_before_a_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two children of the root in one sequence, which llama.cpp takes."""
    target, context, tree = target_of(), text(30), DraftTree.build([50, 60], [-1, -1])
    expected = plain_rows(target, context, 5, tree)
    ways = GgufRows.plan
    monkeypatch.setattr(GgufRows, "plan", lambda rows, request: [[rows.home] for _ in ways(rows, request) or ()])
    rows = target.open()
    read(target, rows, context)
    assert gap(score(target, rows, 5, tree), expected) > SEEN


@needs_llama
def test_a_wrong_position_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Cells.read

    def shifted(cells: Cells, tokens: Ints, positions: list[int], *more: Any) -> RowsRead:
        return whole(cells, tokens, [one + 1 for one in positions], *more)

    monkeypatch.setattr(Cells, "read", shifted)
    with pytest.raises(DefectError, match="could not compute a forward"):
        tree_gap()


@needs_llama
def test_rows_that_are_not_kept_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Cells.share

    def lost(cells: Cells, source: int, sequence: int, end: int) -> None:
        if cells.lengths[source] <= end and cells.lengths[sequence] > 0:
            return
        share(cells, source, sequence, end)

    monkeypatch.setattr(Cells, "share", lost)
    with pytest.raises((AssertionError, DefectError)):
        assert tree_gap() < CLOSE


# --- texts --------------------------------------------------------------------------------------------------


@needs_llama
def test_greedy_text_is_that_of_llama_cpp_itself(lm: LanguageModel) -> None:
    own = LlamaModel(file_of(), "F32", 512)
    prompt, written = lm.encode(PROMPT).tolist(), list[int]()
    own.read(prompt)
    while len(written) < 60:
        written.append(int(own.logits(-1).argmax()))
        own.read(written[-1:])
    own.close()
    for method in METHODS[:4]:
        assert lm.generate(PROMPT, method=method, max_new_tokens=60, ignore_eos=True).tokens == written


@needs_llama
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_method_writes_the_same_text_alone_and_in_a_batch(lm: LanguageModel, temperature: float) -> None:
    how: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_new_tokens": 40, "planner": "fixed:4"}
    expected = [lm.generate(prompt, method="plain", **how).tokens for prompt in PROMPTS]
    drafted = 0
    for method in METHODS[1:]:
        given = (
            how | {"method": method} | ({"draft_model": str(file_of("pocket-draft"))} if method == "assistant" else {})
        )
        alone = [lm.generate(prompt, **given) for prompt in PROMPTS]
        batch = [one for (one,) in lm.generate_batch(PROMPTS, **given)]
        assert [one.tokens for one in alone] == expected
        assert [one.tokens for one in batch] == expected
        drafted += sum(len(one.rounds) < len(one.tokens) for one in alone)
    assert drafted, "some drafts were accepted"


@needs_llama
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_narrower_weights(kind: str) -> None:
    target, context, tree = target_of(kind), text(30), random_tree(2)
    assert target.dtype == {"F16": "float16"}.get(kind, kind)
    rows = target.open()
    read(target, rows, context)
    assert gap(score(target, rows, 5, tree), plain_rows(target, context, 5, tree)) < 0.05
    rows.check()
    rows.close()
    session = write(target, context.tolist(), Lookup(), max_new_tokens=20)
    assert len(session.context.emitted) == 20


@needs_llama
@pytest.mark.parametrize(("kind", "least", "most"), [("F32", 0.0, CLOSE), ("Q8_0", 1e-3, 0.2)])
def test_the_control_of_a_check_sees_rows_in_another_order(kind: str, least: float, most: float) -> None:
    """Inputs of integer products are rounded, so the order of a sum over rows turns some of them into the next. Rows
    behind refused drafts have another order than the text, and so have those of the control, without a draft."""
    target, line = target_of(kind), text(120)
    rows = target.open()
    ordered = np.stack([read(target, rows, line[at : at + 1], Want(logits=True)).logits[0] for at in range(119)])
    rows.close()
    free = len(target.cells._free)
    assert least <= gap(np.stack(list(teacher_forced(target, line, 1))), ordered) < most
    with target.cells.held():
        assert len(target.cells._free) == free


@needs_llama
def test_a_prompt_that_begins_alike_is_read_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    lm.forget()
    first = lm.generate(PROMPT, method="lookup", max_new_tokens=20)
    counted, whole = list[int](), Cells.read
    monkeypatch.setattr(
        Cells, "read", lambda cells, tokens, *more: counted.append(len(tokens)) or whole(cells, tokens, *more)
    )
    again = lm.generate(PROMPT, method="plain", max_new_tokens=20)
    assert again.tokens == first.tokens
    assert sum(counted) <= len(again.tokens) + 1


@needs_llama
def test_a_text_ends_with_the_context(lm: LanguageModel) -> None:
    assert lm.target.context_length == 4096
    assert lm.target.vocab_size == 8192
    assert lm.target.eos == {0}
    ids = paceline.load(file_of(tokenizer=False), device="cpu")
    assert (ids.vocabulary, ids.target.eos) == (None, {0})
    prompt = text(4090).tolist()
    found = ids.generate(prompt, method="lookup", max_new_tokens=None, temperature=0.0)
    assert found.finish in ("context", "eos", "length")
    assert len(prompt) + len(found.tokens) <= 4096
    with pytest.raises(InputError, match="tokenizer"):
        ids.generate("a text")


@needs_llama
def test_the_tokenizer_is_that_of_the_file(lm: LanguageModel) -> None:
    _, expected = bundled("pocket")
    assert lm.vocabulary is not None
    assert lm.vocabulary.fingerprint == open_vocabulary(file_of()).fingerprint == expected.fingerprint
    for line in (*PROMPTS, "Кіт сидів  на\n\n\n вікні, 12345!", "a\tb  \n c <|end|> d", ""):
        ids = expected.encode(line)
        assert lm.vocabulary.encode(line).tolist() == ids.tolist()
        assert lm.vocabulary.text(ids) == expected.text(ids)
    assert lm.vocabulary.encode_all(["a b", "c"]) == expected.encode_all(["a b", "c"])


@needs_llama
def test_states_inside_are_not_offered(lm: LanguageModel, rows: GgufRows) -> None:
    target = target_of()
    for want in (Want(hidden=frozenset([1])), Want(early_exit=2)):
        with pytest.raises(InputError, match="shows no"):
            target.submit([Request.of_prompt(rows, text(3), want)])
    with pytest.raises(InputError, match="token ids below 8192, and the text has 9000"):
        target.submit([Request.of_prompt(rows, np.array([9000]))])
    bushy = DraftTree.build([*range(1, 300), 9001], [-1] * 300)
    with pytest.raises(InputError, match="token ids below 8192, and the text has 9001"):
        target.submit([Request.of_tree(rows, 5, bushy)])


@needs_llama
def test_no_head_is_trained_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("A boat is a boat.\n" * 20)
    given = ["--data", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "head"), "--device", "cpu"]
    assert main(["train", "redrafter", "--model", str(file_of()), *given]) == 2
    assert "is not computed by torch, so no head is trained for it; train for the original" in capsys.readouterr().err
    assert not (tmp_path / "head").exists()


@needs_llama
def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", str(file_of()), "--device", "cpu", "--max-new-tokens", "12", "--temperature", "0"]
    assert main(["generate", PROMPT, *given]) == 0
    written = capsys.readouterr().out
    assert main(["generate", PROMPT, *given, "--method", "plain"]) == 0
    assert capsys.readouterr().out == written


@needs_llama
def test_torch_is_not_loaded() -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\nimport paceline\n"
        f"lm = paceline.load({str(file_of())!r}, device='cpu')\n"
        f"print(lm.generate({PROMPT!r}, method='auto', max_new_tokens=12, seed=1).tokens)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]


@needs_llama
def test_threads_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert open_gguf(file_of(), device="cpu")[0].threads == 3
    with threads(2):
        target = open_gguf(file_of(), device="cpu")[0]
        assert (target.threads, target._settings().n_threads, target._settings().n_threads_batch) == (2, 2, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "none")
    assert 1 <= open_gguf(file_of(), device="cpu")[0].threads <= (os.cpu_count() or 1)


# --- files that cannot be used ------------------------------------------------------------------------------


def header(magic: bytes = b"GGUF", version: int = 3, tensors: int = 1, entries: int = 1) -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, entries)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"", DamagedFile, "ends after 0 bytes"),
        (header(b"PK\3\4") + b"x" * 99, InputError, "is no GGUF file"),
        (header(version=1), InputError, "its version is 1"),
        (header(version=3 << 24), InputError, "order of another processor"),
        (header(tensors=1 << 40), DamagedFile, "claims 1099511627776 tensors"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path: Path, content: bytes, kind: type, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(kind, match=said) as refused:
        paceline.load(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_and_a_folder_of_several(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such GGUF file"):
        paceline.load(tmp_path / "model.gguf")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="holds 2 GGUF files"):
        paceline.load(tmp_path)
    part = tmp_path / "c-00001-of-00002.gguf"
    part.write_bytes(header())
    with pytest.raises(InputError, match=r"c-00002-of-00002\.gguf cannot be read"):
        paceline.load(part)


def test_without_the_library_a_sentence_says_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setattr(contents, "find_spec", lambda package: None)
    library.library.cache_clear()
    (tmp_path / "model.gguf").write_bytes(header())
    with pytest.raises(MissingPackage, match=r"pip install 'paceline\[gguf\]'.*original model"):
        paceline.load(tmp_path)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(header() + bytes(4096))
    monkeypatch.setattr(file, "host_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"GB of memory and 0\.0 GB are free"):
        file.opened(path).must_fit()


def write_tensors(file: Path, kind: str, shapes: dict[str, tuple[int, ...]], **sizes: float) -> Path:
    """A file of tensors with random values."""
    import gguf

    random, writer = np.random.default_rng(0), gguf.GGUFWriter(file, kind)
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("none")
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@needs_llama
def test_a_model_that_only_embeds_texts_is_refused(tmp_path: Path) -> None:
    """llama.cpp computes it without complaint: its logits are zeros."""
    wide, matrices = 32, {"attn_q": 32, "attn_k": 32, "attn_v": 32, "attn_output": 32, "ffn_up": 64}
    shapes: dict[str, tuple[int, ...]] = {f"blk.0.{name}.weight": (rows, wide) for name, rows in matrices.items()}
    shapes |= {"blk.0.ffn_down.weight": (wide, 64), "token_embd.weight": (50, wide), "token_types.weight": (2, wide)}
    shapes["position_embd.weight"] = (64, wide)
    for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        shapes |= {f"{norm}.weight": (wide,), f"{norm}.bias": (wide,)}
    sizes = {"context_length": 64, "embedding_length": wide, "block_count": 1, "head_count": 2}
    more = {
        "feed_forward_length": 64,
        "layer_norm_eps": 1e-5,
        "causal_attention": False,
        "vocab_size": 50,
        "token_type_count": 2,
    }
    file = write_tensors(tmp_path / "bert.gguf", "bert", shapes, **sizes, **more)
    with pytest.raises(UnsupportedModel, match="writes no text from left to right"):
        open_gguf(file, device="cpu")


@needs_llama
@pytest.mark.parametrize("kind", ["clip", "llama"])
def test_a_part_of_a_model_is_not_called_damaged(kind: str, tmp_path: Path) -> None:
    file = write_tensors(tmp_path / "part.gguf", kind, {"blk.0.attn_q.weight.lora_a": (8, 32)})
    with pytest.raises(UnsupportedModel, match="holds no whole model"):
        open_gguf(file, device="cpu")


@needs_llama
def test_damage_behind_the_header(tmp_path: Path) -> None:
    whole = file_of("pocket-draft").read_bytes()
    for name, content in {
        "cut": whole[: len(whole) // 2],
        "short": whole[:2000],
        "odd": header() + b"\xff" * 999,
    }.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(InputError, match="damaged") as refused:
            paceline.load(path, device="cpu")
        assert "\n" not in str(refused.value)


@needs_llama
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"device": "cuda"}, "built without it"),
        ({"device": "tpu"}, "none of llama.cpp's"),
        ({"dtype": "bfloat16"}, "stay as they are, in float32; leave dtype=bfloat16 out"),
        ({"quantize": "int2"}, "leave quantize=int2 out"),
        ({"device_map": "auto"}, "leave device_map"),
    ],
)
def test_wishes_that_a_file_cannot_meet(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_model(file_of(), **how)


@needs_llama
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_our_integers_are_computed_here(quantize: str) -> None:
    """With llama.cpp installed, too. The weights of a file in floats are those of the original."""
    pytest.importorskip("accelerate")
    lm = paceline.load(file_of(), device="cpu", quantize=quantize)
    original = paceline.load("pocket", device="cpu", quantize=quantize)
    assert lm.target.dtype == quantize
    assert f"{quantize} is computed here and not by llama.cpp" in getattr(lm.target, "note", "")
    how: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_new_tokens": 24}
    expected = original.generate("The old house", method="plain", **how).tokens
    assert lm.generate("The old house", method="lookup", **how).tokens == expected


@needs_llama
def test_a_preferred_type_leaves_the_file_to_llama_cpp() -> None:
    """A draft model of a target in integers is such a case."""
    assert isinstance(open_model(file_of(), device="cpu", quantize="int8", strict=False)[0], GgufTarget)


@needs_llama
def test_an_architecture_that_transformers_does_not_read_is_left_to_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    path = tmp_path / "m.gguf"
    path.write_bytes(Path(file_of()).read_bytes().replace(b"llama", b"lluma"))
    with pytest.raises(UnsupportedModel, match=r"leave quantize=int8 out, so that llama\.cpp computes"):
        open_model(path, device="cpu", quantize="int8")


@needs_llama
@pytest.mark.parametrize("name", ["fp32", "torch.float32"])
def test_the_type_of_a_file_has_its_usual_names(name: str) -> None:
    assert open_gguf(file_of(), device="cpu", dtype=name)[0].dtype == "float32"


@needs_llama
def test_a_model_whose_rows_depend_on_others_is_refused_or_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of()
    assert opening._probed(target).trees
    rows_of = opening._rows

    def siblings_are_seen(target: Any, rows: Any, root: int, draft: DraftTree, child: int) -> Any:
        found = rows_of(target, rows, root, draft, child)
        return found if len(draft) == 1 else [2 * row for row in found]

    monkeypatch.setattr(opening, "_rows", siblings_are_seen)
    assert not opening._probed(target).trees
    monkeypatch.setattr(opening, "_rows", lambda *given: [np.zeros(8192, np.float32)] * 2)
    with pytest.raises(UnsupportedModel, match="drafts would change its text"):
        opening._probed(target)


@needs_llama
def test_more_texts_than_llama_cpp_keeps_are_refused() -> None:
    target = target_of()
    with ExitStack() as stack:
        for _ in range(len(target.cells._free)):
            stack.callback(target.open().close)
        with pytest.raises(OutOfMemory, match=f"llama.cpp keeps {target.cells.sequences} texts at most"):
            target.open()
    target.open().close()
