"""Models of mlx-lm as targets: every row is the model's own, and every method writes the text that mlx-lm writes."""

import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import paceline

mx = pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'paceline[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install 'paceline[mlx]'")

from engine import write
from mlx_models import CHAINS, OWN_CACHES, STACK, TREES, WINDOW, alone, opened, own_text, written
from paceline.drafters import Drafter, make_drafter
from paceline.errors import InputError, MissingPackage
from paceline.targets.base import Reach, Request, Rows, Target, Want
from paceline.targets.load import open_model
from paceline.targets.mlx import forward
from paceline.targets.mlx.chained import ChainedRows
from paceline.targets.mlx.probe import prepare
from paceline.targets.mlx.rows import LayerBuffers, MLXRows
from paceline.targets.mlx.target import MLXTarget
from paceline.targets.replay import open_vocabulary
from paceline.tree import EMPTY, DraftTree, Ints
from paceline_lab.bench.peers.mlx_lm import MlxLm
from paceline_lab.bench.run.contestant import Missing
from scoring import Knowing, leaves, random_tree, tokens

CLOSE, SEEN = 1e-4, 1e-2
"""What rounding may change of logits, in their deviations, and what a mistake must change."""
PROMPT = "The ship had left the harbour before the"
TEXTS = (PROMPT, "Once upon a time", "It was a dark night, and the old man who lived by the sea said:")
HEADS = ("redrafter", "eagle", "medusa")
"""Methods whose heads for `pocket` come with the package."""
FAMILIES = TREES | CHAINS | OWN_CACHES


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("mlx:pocket")


@pytest.fixture(scope="module")
def twin() -> paceline.LanguageModel:
    """The same weights by transformers."""
    return paceline.load("pocket", dtype="float32")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MLXTarget]:
    known: dict[str, MLXTarget] = {}

    def make(name: str) -> MLXTarget:
        if name not in known:
            known[name] = opened(tmp_path_factory.mktemp(name), name, FAMILIES[name])
        return known[name]

    return make


def filled(target: Target, text: Ints) -> Rows:
    rows = target.open()
    target.score([Request.of_prompt(rows, text)])
    rows.keep(range(len(text)))
    return rows


def apart(one: Any, other: Any) -> float:
    """The largest difference, in deviations of the logits."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.abs(one - other).max() / other.std())


def tree_gap(target: MLXTarget, seed: int) -> float:
    """How far the rows of a random tree are from those of its paths, and the rows behind a kept path from those of the
    text that it leads to."""
    text, tree = tokens(11, seed), random_tree(seed)
    rows = filled(target, text[:-1])
    found = target.score([Request.of_tree(rows, int(text[-1]), tree)])[0].logits
    worst = 0.0
    for leaf in leaves(tree):
        path = [0, *(node + 1 for node in tree.path(leaf))]
        line = alone(target, np.concatenate([text, tree.tokens[tree.path(leaf)]]))[len(text) - 1 :]
        worst = max(worst, apart(found[path], line))
    rows.keep(path)
    rows.check()
    behind = np.concatenate([text, tree.tokens[tree.path(leaf)], [5]])
    later = target.score([Request.of_tree(rows, 5, DraftTree.chain([]))])[0].logits
    return max(worst, apart(later, alone(target, behind)[-1:]))


# --- the bundled model ---


def test_rows_are_those_of_transformers(lm: paceline.LanguageModel, twin: paceline.LanguageModel) -> None:
    text, tree = lm.encode(PROMPT), random_tree(3, 12)
    found, expected = (
        each.score([Request.of_tree(filled(each, text[:-1]), int(text[-1]), tree)])[0]
        for each in (lm.target, twin.target)
    )
    assert isinstance(found.logits, np.ndarray)
    assert found.logits.dtype == np.float32
    assert np.abs(found.logits - np.asarray(expected.logits)).max() < 1e-4
    assert lm.target.fingerprint() == twin.target.fingerprint()
    assert (lm.target.vocab_size, lm.target.eos, lm.target.context_length, lm.defaults) == (
        twin.target.vocab_size,
        twin.target.eos,
        twin.target.context_length,
        twin.defaults,
    )


def test_states_are_those_of_transformers(lm: paceline.LanguageModel, twin: paceline.LanguageModel) -> None:
    import torch

    text, tree, layers = lm.encode(PROMPT), random_tree(4, 9), lm.target.layers
    assert layers == twin.target.layers
    heard: list[list[Any]] = [[], []]
    want = Want(hidden=frozenset({0, 1, layers - 1, layers}), early_exit=layers // 2)
    ours, theirs = (
        each.score([Request.of_tree(filled(each, text), 7, tree, want, on_early=heard[number].append)])[0]
        for number, each in enumerate((lm.target, twin.target))
    )
    for layer in want.hidden:
        assert apart(ours.hidden(layer), theirs.hidden(layer)) < CLOSE, f"state {layer}"
    assert apart(ours.early, theirs.early) < CLOSE
    assert apart(heard[0][0], ours.early) == 0
    assert len(heard[0]) == len(heard[1]) == 1
    assert apart(lm.target.unembed(ours.hidden(layers)), ours.logits) < CLOSE
    ids = torch.tensor([[3, 5]])
    assert torch.allclose(lm.target.embed(ids), twin.target.embed(ids), atol=1e-6)


def test_greedy_text_is_mlx_lms_own(lm: paceline.LanguageModel) -> None:
    assert isinstance(lm.target, MLXTarget)
    want = own_text(lm.target, lm.encode(PROMPT), 24)
    for method in ("plain", "lookup+suffix"):
        found = lm.generate(PROMPT, method=method, max_new_tokens=24, temperature=0.0)
        assert found.tokens == want[: len(found.tokens)]
        assert len(found.tokens) > 20


@pytest.mark.parametrize(
    ("method", "draft_model"),
    [("lookup", None), ("suffix", None), ("auto", "pocket-draft")]
    + [(name, None) for name in HEADS]
    + [("assistant", name) for name in ("pocket-draft", "mlx:pocket-draft", "pocket-foreign")],
)
def test_same_seed_same_text(
    lm: paceline.LanguageModel, twin: paceline.LanguageModel, method: str, draft_model: str | None
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "seed": 4, "temperature": 0.8}
    found = lm.generate(PROMPT, method=method, draft_model=draft_model, planner="fixed:6", **options)
    assert found.text == twin.generate(PROMPT, method="plain", **options).text
    if draft_model is not None or method in HEADS:
        assert found.totals.rounds < len(found.tokens)


@pytest.mark.parametrize("method", HEADS)
def test_heads_draft_for_models_in_half_precision(method: str) -> None:
    """States come in float32 even so."""
    half = paceline.load("mlx:pocket", dtype="bfloat16")
    found = half.generate(PROMPT, method=method, planner="fixed:6", max_new_tokens=12, temperature=0.0)
    assert found.totals.rounds < len(found.tokens)


def test_batches_write_the_same_texts(lm: paceline.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 2, "temperature": 0.8}
    single = [lm.generate(text, method="plain", **options).text for text in TEXTS]
    together = lm.generate_batch(TEXTS, method="suffix+redrafter", planner="fixed:6", **options)
    assert [text.text for (text,) in together] == single


def test_a_text_that_begins_alike_reads_only_what_is_new(lm: paceline.LanguageModel) -> None:
    begun = lm.generate(PROMPT, method="suffix", max_new_tokens=12, temperature=0.0)
    longer = PROMPT + begun.text + " And then"
    fresh = paceline.load("mlx:pocket").generate(longer, method="plain", max_new_tokens=12, temperature=0.0)
    again = lm.generate(longer, method="suffix", max_new_tokens=12, temperature=0.0)
    assert again.text == fresh.text
    assert again.cached_tokens > len(lm.encode(PROMPT)) - 2


def test_other_threads_write_too(lm: paceline.LanguageModel) -> None:
    options: dict[str, Any] = {"method": "suffix", "planner": "fixed:6", "max_new_tokens": 12, "temperature": 0.0}
    found: list[str] = []
    writing = threading.Thread(target=lambda: found.append(lm.generate(PROMPT, **options).text))
    writing.start()
    writing.join()
    assert found == [lm.generate(PROMPT, **options).text]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
def test_a_fork_is_told_that_it_cannot_compute(lm: paceline.LanguageModel) -> None:
    """mlx computes in a thread of its own, which a fork does not have."""
    filled(lm.target, tokens(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fork itself
        child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            filled(lm.target, tokens(3))
        except InputError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_round_is_computed_by_one_call(lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    compute = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: (calls.append(1), compute(*arrays)))
    rows = filled(lm.target, tokens(20))
    lm.target.score([Request.of_tree(rows, 3, random_tree(1), Want(hidden=frozenset({1})))])
    rows.keep([0])
    lm.target.score([Request.of_tree(rows, 4, random_tree(2))])
    assert len(calls) == 3


@pytest.mark.parametrize("name", ["llama", "gpt2", "mamba"])
def test_a_text_takes_one_call_a_round(
    name: str, made: Callable[[str], MLXTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind refused drafts: what is moved, forgotten or read again is computed with the next rows."""
    target, prompt, calls = made(name), tokens(20, 7), list[int]()
    want = own_text(target, prompt, 24)
    wrong = [token if number % 5 else (token + 1) % target.vocab_size for number, token in enumerate(want)]
    target.eos = frozenset()
    compute = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: (calls.append(1), compute(*arrays)))
    session = write(target, prompt.tolist(), Knowing(np.concatenate([prompt, wrong])), max_new_tokens=24, nodes=5)
    assert session.context.emitted.tolist() == want
    assert any(each.drafted > each.accepted for each in session.rounds)
    assert len(calls) <= len(session.rounds) + 1  # one for the prompt


def test_no_value_is_fetched_alone() -> None:
    """Each fetch waits for the device."""
    files = sorted(Path(forward.__file__).parent.glob("*.py"))
    assert len(files) > 9
    assert [file.name for file in files if re.search(r"\.item\(", file.read_text(encoding="utf8"))] == []


# --- rows of every family ---


@pytest.mark.parametrize("name", TREES)
def test_trees_are_scored_as_their_paths(name: str, made: Callable[[str], MLXTarget]) -> None:
    target = made(name)
    assert not target.chained
    assert target.limits == Reach()
    for seed in range(20 if name == "llama" else 3):
        assert tree_gap(target, seed) < CLOSE, f"tree {seed}"


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_are_mlx_lms_own(name: str, made: Callable[[str], MLXTarget]) -> None:
    target = made(name)
    prompt = tokens(WINDOW + 5, 7)
    want = own_text(target, prompt, 24)
    target.eos = frozenset()
    drafter = Knowing(np.concatenate([prompt, want]))
    session = write(target, prompt.tolist(), drafter, max_new_tokens=24, nodes=5)
    assert session.context.emitted.tolist() == want
    assert len(session.rounds) < 24


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "mamba"])
def test_texts_of_a_batch_are_scored_as_if_alone(name: str, made: Callable[[str], MLXTarget]) -> None:
    target = made(name)
    prefixes = [tokens(count, count) for count in (3, WINDOW + 4, 21)]
    drafts = [
        random_tree(seed) if target.limits.trees else DraftTree.chain(tokens(seed + 2, seed)) for seed in range(3)
    ]

    def requests(chosen: Sequence[int]) -> list[Request]:
        return [Request.of_tree(filled(target, prefixes[i]), 1 + i, drafts[i]) for i in chosen]

    together = target.score(requests(range(3)))
    for number, scores in enumerate(together):
        assert apart(scores.logits, target.score(requests([number]))[0].logits) < CLOSE


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_rows_are_taken_over_and_taken_back(name: str, made: Callable[[str], MLXTarget]) -> None:
    target, text = made(name), tokens(30, 3)
    rows, other = filled(target, text), target.open()
    other.adopt(rows, 18)
    assert other.committed == (18 if name == "llama" else 0)
    reached = rows.rewind(12)
    for each in (other, rows):
        rest = text[each.committed : 25]
        found = target.score([Request.of_prompt(each, rest, ends_prompt=True)])[0].logits
        assert apart(found, alone(target, text[:25])[-1:]) < CLOSE
    assert reached == (12 if name == "llama" else 0)


def test_an_interruption_while_rows_move_leaves_no_wrong_ones(
    made: Callable[[str], MLXTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, text, gather, layers = made("llama"), tokens(12, 3), LayerBuffers.gather, list[LayerBuffers]()
    rows = filled(target, text)
    target.score([Request.of_tree(rows, 4, DraftTree.build([5, 6, 7, 8, 9, 10], [-1, -1, 0, 1, 2, 3]))])
    rows.keep([0, 2, 4, 6])

    def interrupted(layer: LayerBuffers, *given: Any) -> None:
        gather(layer, *given)
        layers.append(layer)
        if len(layers) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(LayerBuffers, "gather", interrupted)
    with pytest.raises(KeyboardInterrupt):
        target.score([Request.of_tree(rows, 3, EMPTY)])
    monkeypatch.undo()
    assert rows.tokens.tolist() == [*text, 4], "what did not move"
    found = target.score([Request.of_prompt(rows, np.array([6, 8, 10, 3]), ends_prompt=True)])[0].logits
    assert apart(found, alone(target, np.array([*text, 4, 6, 8, 10, 3]))[-1:]) < CLOSE


def interrupt(target: MLXTarget, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that ends before its last layer."""
    *_, last = target.anatomy.layers
    forward_of = type(last).__call__

    def ended(layer: Any, *given: Any, **more: Any) -> Any:
        if layer is last:
            raise KeyboardInterrupt
        return forward_of(layer, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(last), "__call__", ended)
        with pytest.raises(KeyboardInterrupt):
            target.score([Request.of_tree(rows, 9, EMPTY)])


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_an_interrupted_forward_leaves_no_layer_ahead_of_the_others(
    name: str, made: Callable[[str], MLXTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In caches of mlx-lm, those that can be trimmed and those that cannot, before and behind a refused draft."""
    target, text = made(name), tokens(12, 3)
    monkeypatch.setattr(target, "chained", True)
    for draft in (EMPTY, DraftTree.chain([5, 6, 7])):
        rows = filled(target, text)
        target.score([Request.of_tree(rows, 4, draft)])
        rows.keep([0])
        interrupt(target, rows, monkeypatch)
        found = target.score([Request.of_tree(rows, 3, EMPTY)])[0].logits
        assert apart(found, alone(target, np.array([*text, 4, 3]))[-1:]) < CLOSE
        rows.check()


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_rows_go_on_in_another_thread(
    name: str, stop: bool, made: Callable[[str], MLXTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a refused draft, and behind a forward that was interrupted."""
    target, text, rows = made(name), tokens(14, 3), made(name).open()

    def draft(kept: int) -> None:
        target.score([Request.of_tree(rows, int(text[rows.committed]), DraftTree.chain([text[10], 5, 6]))])
        rows.keep(range(kept))

    def prompt(tokens: Ints, ends: bool) -> Any:
        scores = target.score([Request.of_prompt(rows, tokens, ends_prompt=ends)])[0]
        if not ends:
            rows.keep(range(len(tokens)))
        return scores.logits if ends else None

    steps = [
        partial(prompt, text[:9], False),
        partial(draft, 2),
        *([partial(interrupt, target, rows, monkeypatch)] if stop else []),
        partial(draft, 1),
    ]
    for step in steps:
        in_a_thread(step)
    other = target.open()
    in_a_thread(lambda: other.adopt(rows, 12))
    found = in_a_thread(lambda: prompt(text[12:], True))
    assert apart(found, alone(target, text)[-1:]) < CLOSE


def in_a_thread(step: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result()


def test_families_that_cannot_have_siblings_are_told_apart(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="cannot score sibling drafts, so drafts are clipped to chains"):
        target, _ = open_model(written(tmp_path / "gpt2", "gpt2", CHAINS["gpt2"]), with_tokenizer=False)
    assert isinstance(target.open(), MLXRows)
    with pytest.warns(UserWarning, match="needs mlx-lm's own cache, so drafts are clipped to chains"):
        target, _ = open_model(written(tmp_path / "mamba", "mamba", OWN_CACHES["mamba"]), with_tokenizer=False)
    assert isinstance(target.open(), ChainedRows)


# --- mistakes are seen ---


def _siblings_seen(patch: pytest.MonkeyPatch) -> None:
    def seen(request: Request, window: int | None) -> Any:
        return np.tril(np.ones((len(request.tokens), request.end), bool), request.start + request.held)

    patch.setattr(forward, "_seen", seen)


def _positions_by_row(patch: pytest.MonkeyPatch) -> None:
    right = forward.RowOffset.of

    def of(positions: Ints) -> forward.RowOffset:
        return right(positions[0] + np.arange(len(positions)))

    patch.setattr(forward.RowOffset, "of", of)


def _rows_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MLXRows, "settle", lambda rows: None)


@pytest.mark.parametrize("mistake", [_siblings_seen, _positions_by_row, _rows_not_moved])
def test_mistakes_are_seen(
    mistake: Callable[[pytest.MonkeyPatch], None], made: Callable[[str], MLXTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made("llama")
    mistake(monkeypatch)
    assert max(tree_gap(target, seed) for seed in range(5)) > SEEN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert not prepare(target).limits.trees, "the probe sees it, too"
    monkeypatch.undo()
    assert prepare(target).limits.trees


def test_states_that_are_not_restored_are_seen(
    made: Callable[[str], MLXTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made("mamba")
    monkeypatch.setattr("paceline.targets.mlx.chained._copies", lambda caches: caches)
    with pytest.raises(InputError, match="cannot be drafted for without changing its text"):
        prepare(target)


# --- few bits ---


@pytest.mark.parametrize("bits", [4, 8])
def test_models_in_few_bits_write_one_text(bits: int, tmp_path: Path) -> None:
    target = opened(tmp_path, "llama", STACK, bits=bits)
    assert target.limits.trees
    assert target.note == f"stored in {bits} bits"
    target.eos = frozenset()
    prompt = tokens(12, 1)
    want = own_text(target, prompt, 32)
    drafters: list[Drafter] = [make_drafter("lookup"), make_drafter("suffix"), Knowing(np.concatenate([prompt, want]))]
    for drafter in drafters:
        assert write(target, prompt.tolist(), drafter, max_new_tokens=32).context.emitted.tolist() == want


# --- opening ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path, "llama", STACK)
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "No safetensors found"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "unheard"}'), "unheard not supported"),
        (lambda folder: (folder / "config.json").write_text("{"), "Expecting property name"),
        (lambda folder: (folder / "config.json").unlink(), "No such file"),
        (lambda folder: (folder / "config.json").write_text("{}"), "KeyError 'model_type'"),
    ],
)
def test_folders_that_mlx_lm_cannot_load(damage: Callable[[Path], Any], message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(InputError, match=message) as raised:
        paceline.load(f"mlx:{folder}")
    assert str(raised.value).startswith(f"mlx-lm cannot load mlx:{folder}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("mlx:/not/here", {}, "no model at 'mlx:/not/here': give a folder"),
        ("mlx:", {}, "no model at 'mlx:'"),
        ("mlx:pocket+ballast:500M", {}, "made by torch"),
        ("mlx:pocket", {"quantize": "int8"}, "export mlx --bits 4"),
        ("mlx:pocket", {"dtype": "float64"}, "mlx computes in float32, bfloat16, float16, not in float64"),
        ("mlx:pocket", {"device": "cuda"}, "mlx computes on the (cpu|gpu) here, not on cuda"),
        ("mlx:pocket", {"fixed_shapes": True}, "leave device_map and fixed_shapes out"),
    ],
)
def test_options_that_mlx_does_not_have(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        paceline.load(model, **options)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.targets.mlx.load._place", lambda: "cpu")
    monkeypatch.setattr("paceline.targets.mlx.load.host_memory", lambda: 1000)
    monkeypatch.setattr("paceline.targets.mlx.load.read_model", None)
    with pytest.raises(InputError, match=r"mlx:.* needs 0\.0 GB of memory and 0\.0 GB are free"):
        paceline.load(f"mlx:{folder}")


def test_code_of_a_model_is_not_run_unasked(folder: Path) -> None:
    written(folder, "llama", STACK | {"model_file": "evil.py"})
    (folder / "evil.py").write_text("raise SystemExit('run')")
    with pytest.raises(InputError, match="brings its own Python code, which is not run unless you say so"):
        paceline.load(f"mlx:{folder}")


def test_a_peer_runs_no_code_of_a_folder_either(folder: Path) -> None:
    written(folder, "llama", STACK | {"model_file": "evil.py"})
    (folder / "evil.py").write_text("raise SystemExit('run')")
    peer = MlxLm.__new__(MlxLm)
    with pytest.raises(Missing, match="brings its own Python code, which is not run unless you say so"):
        peer._load(cast("Target", SimpleNamespace(name=f"mlx:{folder}", dtype="float32")), "mlx")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.errors.find_spec", lambda package: None)
    with pytest.raises(MissingPackage, match=r"needs mlx_lm: pip install 'paceline\[mlx\]'"):
        paceline.load("mlx:pocket")


def test_weights_are_converted_on_request() -> None:
    assert paceline.load("mlx:pocket", dtype="bf16").target.dtype == "bfloat16"
    assert open_vocabulary("mlx:pocket").fingerprint == open_vocabulary("pocket").fingerprint


def test_torch_is_not_loaded() -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\nimport paceline\nlm = paceline.load('mlx:pocket')\n"
        "print(lm.generate('Once upon a time', method='lookup+suffix', max_new_tokens=6, temperature=0.0).text)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout) > 6
