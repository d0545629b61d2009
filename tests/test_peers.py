"""Peers: other libraries write the same texts on the same weights, keep nothing between texts, and say why they cannot
take part."""

import gc
import itertools
import os
import re
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import families
import paceline
from clock import comes_true
from gguf_models import file_of, needs_llama
from paceline.context import Ints
from paceline.drafters.networks.assistant import DraftModel
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.targets.gguf.kinds import stored_type
from paceline.targets.hf.target import HFTarget
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.peers import PEERS, READERS, PeerWeights, check_peer, make_peer, open_reader
from paceline_lab.bench.peers import vllm as vllm_peer
from paceline_lab.bench.peers.openvino import properties
from paceline_lab.bench.peers.openvino_graph import rounded
from paceline_lab.bench.peers.weights import ordinary
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant, Written

NEEDED = ("transformers", "transformers-lookup", "transformers-assisted", "transformers-uag")
LLAMA = ("llama-cpp", "llama-cpp-lookup", "llama-cpp-assisted")
OPENVINO = ("openvino", "openvino-lookup", "openvino-assisted")
OPTIONAL = {"mlx-lm": "mlx_lm", "mlx-lm-assisted": "mlx_lm", **dict.fromkeys(LLAMA, "llama_cpp")}
OPTIONAL |= dict.fromkeys(OPENVINO, "openvino_genai")
"""Peer -> the package without which it is missing."""
GREEDY = ("transformers-uag", "openvino-assisted")
SAMPLING = [name for name in PEERS if name not in GREEDY and not name.startswith("vllm-")]
PLAIN = ("transformers", "mlx-lm", "llama-cpp", "openvino", "vllm")
VLLM = os.environ.get("PACELINE_VLLM", "")
UNINSTALLED = ("vllm-suffix",)
"""Peers whose library is not in the environment that ``PACELINE_VLLM`` names."""
EAGER = {"llama-cpp-assisted": "llama-cpp-assisted:p_min=0"}
"""Peer -> how it drafts even where its draft model is unsure."""
DRAFT = 3
TOKENS = 24
PROMPTS = ("The old man sat down by the fire and began to tell", "one two three four five six " * 4, "A")

Make = Callable[..., TextContestant]


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def draft(lm: paceline.LanguageModel) -> DraftModel:
    return DraftModel.load("pocket-draft", lm.target)


def every(names: Iterable[str]) -> Any:
    """Over peers by name. A vLLM takes half a minute to start."""
    reason = "PACELINE_VLLM names no Python with vLLM"
    there = [pytest.mark.slow, pytest.mark.skipif(not VLLM, reason=reason)]
    named = [name for name in names if name not in UNINSTALLED]
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=there if n.startswith("vllm") else ()) for n in named]
    )


@pytest.fixture(scope="module")
def make(lm: paceline.LanguageModel, draft: DraftModel) -> Iterator[Make]:
    """Makes peers that share their weights; those of packages that are not installed are skipped."""
    weights, kept = PeerWeights(lm.target, lm.vocabulary, draft), dict[str, TextContestant]()

    def made(spec: str, **settings: Any) -> TextContestant:
        if spec.startswith("vllm"):
            if spec not in kept:
                kept[spec] = make_peer(spec, weights, **{"draft_tokens": DRAFT, **settings})
            return kept[spec]
        if (package := OPTIONAL.get(spec.partition(":")[0])) is not None:
            pytest.importorskip(package)
        return make_peer(spec, weights, **{"draft_tokens": DRAFT, **settings})

    yield made
    for peer in kept.values():
        peer.close()


@pytest.fixture(scope="module")
def plain(lm: paceline.LanguageModel) -> dict[str, list[int]]:
    """Plain decoding's texts."""
    return {
        text: lm.generate(lm.encode(text), method="plain", max_new_tokens=TOKENS, ignore_eos=True).tokens
        for text in PROMPTS
    }


def job(prompt: Ints, **settings: Any) -> Job:
    return Job(**{"prompt": prompt, "sampling": Sampling(), "max_new_tokens": TOKENS, "eos": frozenset(), **settings})


def written(peer: TextContestant, what: Job) -> Written:
    peer.begin()
    return peer.write(what, time.perf_counter)


# --- texts --------------------------------------------------------------------------------------------------


@every(PEERS)
def test_a_peer_writes_plain_decodings_text_and_tells_when(
    name: str, make: Make, lm: paceline.LanguageModel, plain: dict[str, list[int]]
) -> None:
    peer = make(EAGER.get(name, name))
    for text in PROMPTS:
        prompt = lm.encode(text)
        before = prompt.copy()
        found = written(peer, job(prompt))
        assert found.tokens == plain[text]
        assert np.array_equal(prompt, before)
        counts, times = zip(*found.deliveries, strict=True)
        assert counts[-1] == TOKENS
        assert list(counts) == sorted(set(counts))
        assert list(times) == sorted(times)
        assert times[0] > 0
        assert found.finish == "length"
        assert found.forwards == len(found.deliveries)
        assert (found.forwards == TOKENS) == (name in PLAIN) or text != PROMPTS[1], "who drafts needs fewer"


@every(PEERS)
def test_a_text_ends_where_it_should(
    name: str, make: Make, lm: paceline.LanguageModel, plain: dict[str, list[int]]
) -> None:
    peer, text = make(name), PROMPTS[0]
    prompt, whole = lm.encode(text), plain[text]
    place = next(i for i in range(5, TOKENS) if whole[i] not in whole[:i])
    ended = written(peer, job(prompt, eos=frozenset({whole[place], lm.target.vocab_size - 1})))
    assert (ended.tokens, ended.finish) == (whole[: place + 1], "eos")
    for count in (1, 2, 7):
        short = written(peer, job(prompt, max_new_tokens=count))
        assert (short.tokens, short.deliveries[-1][0], short.finish) == (whole[:count], count, "length")
    assert written(peer, job(prompt)).tokens == whole


@pytest.mark.parametrize("name", ["transformers", "transformers-assisted"])
def test_a_text_ends_with_the_models_context(name: str, make: Make, lm: paceline.LanguageModel) -> None:
    limit = lm.target.context_length
    assert limit is not None
    prompt = np.resize(lm.encode("On and on they went, "), limit - 3)
    found = written(make(name), job(prompt))
    assert (len(found.tokens), found.finish) == (3, "context")


@every(SAMPLING)
def test_a_sampled_text_comes_again_under_its_seed_and_nobody_elses_coins_move(
    name: str, make: Make, lm: paceline.LanguageModel
) -> None:
    def sampled(seed: int) -> list[int]:
        sampling = Sampling(temperature=0.9, top_k=40, seed=seed)
        return written(make(name, sampling=sampling), job(prompt, sampling=sampling)).tokens

    prompt = lm.encode(PROMPTS[0])
    state = torch.random.get_rng_state()
    texts = [sampled(seed) for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_settings_of_sampling_are_all_handed_over(make: Make, lm: paceline.LanguageModel) -> None:
    """What leaves one token only leaves no choice, whatever the coins."""
    peer, prompt = make("transformers"), lm.encode(PROMPTS[0])
    greedy = written(peer, job(prompt)).tokens
    for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.999999}, {"temperature": 1e-4}):
        sampling = Sampling(**{"temperature": 1.0, "seed": 5, **narrow})  # type: ignore[arg-type]
        assert written(peer, job(prompt, sampling=sampling)).tokens == greedy
    adjusting: list[dict[str, Any]] = [
        {"logit_bias": {greedy[0]: -50.0}},
        {"banned": ((greedy[0],),)},
        {"repetition_penalty": 1.7},
    ]
    for how in adjusting:
        ours = lm.generate(prompt, method="plain", max_new_tokens=TOKENS, ignore_eos=True, **how).tokens
        assert written(peer, job(prompt, sampling=Sampling(**how))).tokens == ours != greedy


def test_a_checkpoints_own_settings_of_generation_stay_out(lm: paceline.LanguageModel) -> None:
    """Many a checkpoint says: sample at 0.6, penalise repetition. Our side does not read that."""
    target: Any = paceline.load("pocket", dtype="float32").target
    target.model.generation_config.update(do_sample=True, temperature=0.1, repetition_penalty=9.0, top_k=3)
    prompt = lm.encode(PROMPTS[1])
    greedy = lm.generate(prompt, method="plain", max_new_tokens=TOKENS, ignore_eos=True).tokens
    assert written(make_peer("transformers", PeerWeights(target)), job(prompt)).tokens == greedy


# --- drafts -------------------------------------------------------------------------------------------------


def test_drafts_are_as_long_as_asked_and_settings_of_one_peer_are_not_anothers(
    make: Make, lm: paceline.LanguageModel
) -> None:
    """Two peers share the draft model, which is where transformers keeps how long a draft is."""
    long, short = make("transformers-assisted", draft_tokens=8), make("transformers-assisted", draft_tokens=2)
    prompt = lm.encode("one two three four five six " * 8)
    longest = dict.fromkeys((long, short), 0)
    for peer in (long, short, long):
        counts = [0, *(count for count, _ in written(peer, job(prompt, max_new_tokens=40)).deliveries)]
        longest[peer] = max(after - before for before, after in itertools.pairwise(counts))
    assert longest[long] > longest[short] + 1
    assert longest[short] <= 3
    assert (long.facts()["draft_tokens"], short.facts()["draft_tokens"]) == (8, 2)


def test_nobody_says_how_long_drafts_are(make: Make) -> None:
    """Then they are as long as our methods' own."""
    for name, method in (("transformers-lookup", "lookup"), ("transformers-assisted", "assistant")):
        ours = paceline.drafters.make_drafter(method, None if method == "lookup" else "pocket-draft")
        assert make(name, draft_tokens=None).facts()["draft_tokens"] == ours.nodes


@pytest.mark.parametrize("drafting", [None, "pocket-draft", "mlx:pocket-draft"])
def test_mlx_lm_races_models_that_it_computes_here_too(drafting: str | None) -> None:
    """On the target's own folder, in the target's type; a draft model may be of either library."""
    pytest.importorskip("mlx_lm")
    lm = paceline.load("mlx:pocket", generation_config=False)
    draft = None if drafting is None else DraftModel.load(drafting, lm.target)
    weights = PeerWeights(lm.target, lm.vocabulary, draft)
    peer = make_peer("mlx-lm" if draft is None else "mlx-lm-assisted", weights, draft_tokens=DRAFT)
    prompt = lm.encode(PROMPTS[0])
    found = written(peer, job(prompt))
    assert found.tokens == lm.generate(prompt, method="plain", max_new_tokens=TOKENS, ignore_eos=True).tokens
    assert (len(found.deliveries) < TOKENS) == (draft is not None)
    assert (peer.facts()["model"], peer.facts()["dtype"]) == ("mlx:pocket", "float32")
    with pytest.raises(Missing, match="mlx:pocket is no model of transformers"):
        make_peer("transformers", weights)


def test_mlx_lm_takes_no_part_where_it_computes_something_else() -> None:
    pytest.importorskip("mlx_lm")
    model = families.build("phi3", vocab_size=320, sliding_window=8)
    weights = PeerWeights(HFTarget(model, name="tiny"), Vocabulary(families.byte_tokenizer()))
    with pytest.raises(Missing, match="mlx-lm's code for phi3 computes something else"):
        make_peer("mlx-lm", weights)


def test_peers_share_one_copy_of_each_model(lm: paceline.LanguageModel, draft: DraftModel) -> None:
    weights = PeerWeights(lm.target, lm.vocabulary, draft)
    peers = [make_peer(name, weights) for name in NEEDED]
    models = {id(peer.model) for peer in peers}  # type: ignore[attr-defined]
    assert models == {id(weights.model)}
    held = [weakref.ref(weights.model), weakref.ref(weights.draft_model)]
    del peers, weights
    gc.collect()
    assert [each() for each in held] == [None, None]


@pytest.mark.parametrize("name", ["mlx-lm", "llama-cpp", "openvino"])
def test_converted_copies_do_not_stay(name: str, lm: paceline.LanguageModel) -> None:
    pytest.importorskip(OPTIONAL[name])
    weights = PeerWeights(lm.target, lm.vocabulary)
    make_peer(name, weights).close()
    folder = weights.disk
    assert any(folder.iterdir())
    del weights
    gc.collect()
    assert not folder.exists()


@every(PEERS)
def test_a_peer_says_what_it_runs(name: str, make: Make) -> None:
    facts = make(name).facts()
    assert {"library", "version", "model", "dtype", "attention", "device", "threads"} <= set(facts)
    assert (facts["model"], facts["dtype"]) == ("pocket", "float32")
    if name not in ("mlx-lm", "mlx-lm-assisted"):  # which has no say in it
        assert facts["threads"] == torch.get_num_threads()
    drafts = "pocket-draft" if name.endswith("-assisted") else None
    assert facts["draft_model"] == ("pocket-foreign" if name == "transformers-uag" else drafts)
    assert (facts["draft_tokens"] is None) == (name in PLAIN)


# --- rounded weights ------------------------------------------------------------------------------------------


def test_8_bits_are_the_integers_of_our_own_models(draft: DraftModel) -> None:
    """The matrices of such a model are written without a change; those of another by half a step at most."""
    ours = ordinary(paceline.load("pocket", quantize="int8", generation_config=False).target).state_dict()
    for name, weight in ours.items():
        if name.endswith("proj.weight"):
            integers, scales = rounded(weight.numpy(), 8, weight.shape[1])
            assert np.array_equal((integers * scales)[:, 0], weight.numpy()), name
    weight = ordinary(draft.target).state_dict()["model.layers.0.self_attn.q_proj.weight"].numpy()
    weight[3] = 0.0
    for bits, block in ((8, weight.shape[1]), (4, 32)):
        integers, scales = rounded(weight, bits, block)
        assert np.abs(integers).max() == 2 ** (bits - 1) - 1
        assert (np.abs(integers * scales - weight.reshape(integers.shape)) <= 0.5001 * scales).all()


@pytest.mark.parametrize("kind", ["float32", "int8", "int4"])
def test_a_graph_on_pages_is_a_graph_with_states(kind: str, lm: paceline.LanguageModel) -> None:
    """The graph itself, without the change that attention over pages makes to it, and without drafts."""
    openvino, prompt = pytest.importorskip("openvino"), lm.encode(PROMPTS[0])
    weights = PeerWeights(lm.target)
    with closing(open_reader(f"openvino:type={kind}", weights, 64)) as reader:
        reader.read(prompt.tolist())
        model = openvino.compile_model(next(weights.disk.glob("*/*.xml")), "CPU", properties("float32"))
        request = model.create_infer_request()
        inputs = {"input_ids": prompt[None], "position_ids": np.arange(len(prompt))[None], "beam_idx": np.array([0])}
        for start, end in ((0, 5), (5, len(prompt))):
            rows = {name: array[:, start:end] if array.ndim == 2 else array for name, array in inputs.items()}
            found = request.infer({**rows, "attention_mask": np.ones((1, end), dtype=np.int64)})["logits"]
        assert distance(reader.logits(-1), found[0, -1]) < (1e-4 if kind == "float32" else 0.1)


def distance(logits: Any, own: Any) -> float:
    return float(np.sqrt(np.square(logits - own).mean()) / own.std())


ROUNDED = {"llama-cpp": ("F32", "Q8_0", "Q4_0"), "openvino": ("float32", "int8", "int4")}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_scores_rows_as_the_target_does(name: str, lm: paceline.LanguageModel) -> None:
    """The more bits, the nearer; another draft behind the same text changes nothing."""
    pytest.importorskip(OPTIONAL[name])
    weights, prompt, rows = PeerWeights(lm.target), lm.encode(PROMPTS[0]).tolist(), lm.encode("one two three").tolist()
    with torch.no_grad():
        own = ordinary(lm.target)(torch.tensor([[*prompt, *rows]])).logits[0, -len(rows) :].numpy()
    for kind, least, most in zip(ROUNDED[name], (0.0, 2e-3, 0.02), (1e-3, 0.05, 0.4), strict=True):
        with closing(open_reader(f"{name}:type={kind}", weights, 128)) as reader:
            reader.read(prompt)
            for draft in (rows, rows[::-1], rows):
                reader.rewind(len(prompt))
                reader.read(draft, scored=len(draft))
                apart = max(distance(reader.logits(place), own[place]) for place in range(-len(rows), 0))
                assert least <= apart < most or draft != rows, (kind, apart)


@pytest.mark.parametrize(
    "spec", ["llama-cpp:type=Q8_0", "llama-cpp:type=Q4_0", "openvino:type=int8", "openvino:type=int4"]
)
def test_rounded_weights_draft_as_well(spec: str, make: Make, lm: paceline.LanguageModel) -> None:
    """Rows of the draft model's MLP are no multiple of a block."""
    name, _, options = spec.partition(":")
    for way in ("", "-lookup", "-assisted"):
        peer = make(f"{name}{way}:{options}" + (",p_min=0" if name + way in EAGER else ""))
        found = written(peer, job(lm.encode(PROMPTS[1])))
        assert (len(found.tokens), found.finish, peer.facts()["dtype"]) == (TOKENS, "length", options[len("type=") :])
        assert found.forwards is not None
        assert (found.forwards == TOKENS) == (way == "")
        peer.close()


def test_rows_that_no_block_divides_stay_floats() -> None:
    rows = {"F32": 344, "Q8_0": 352, "Q4_0": 352, "F16": 344}
    assert {kind: stored_type((2, columns), kind) for kind, columns in rows.items()} == {k: k for k in rows}
    assert stored_type((2, 344), "Q4_0") == "F16"
    assert stored_type((344,), "Q4_0") == "F32"


@needs_llama
def test_a_target_that_is_a_gguf_file_is_loaded_as_it_is() -> None:
    lm = paceline.load(file_of(kind="Q8_0"), device="cpu")
    own = DraftModel.load(str(file_of("pocket-draft")), lm.target)
    weights = PeerWeights(lm.target, lm.vocabulary, own)
    for name in LLAMA:
        peer = make_peer(name, weights)
        found = written(peer, job(lm.encode(PROMPTS[0])))
        peer.close()
        assert (len(found.tokens), peer.facts()["dtype"]) == (TOKENS, "Q8_0")
    with pytest.raises(Missing, match=r"is a GGUF file, and stays in Q8_0; leave type out"):
        make_peer("llama-cpp:type=F16", weights)


# --- who cannot take part -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("transformer", "did you mean 'transformers'?"),
        ("sglang", "unknown peer 'sglang'; there are transformers, "),
        ("transformers:draft=x", "peer 'transformers' has no option 'draft'; it takes none"),
        ("transformers-uag:drft=x", "peer 'transformers-uag' has no option 'drft'; it takes draft"),
        ("transformers-uag:draft", "cannot read 'draft' in peer"),
        ("transformers-uag:", "cannot read '' in peer"),
    ],
)
def test_a_peer_that_does_not_exist_is_told(spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check_peer(spec)


def test_options_are_read(make: Make) -> None:
    assert check_peer(" transformers-uag:draft=my models/x ") == ("transformers-uag", {"draft": "my models/x"})
    assert make("transformers-lookup:ngram=5").facts()["max_ngram"] == 5
    with pytest.raises(ValueError, match="whole number from 1 to 128, not '0'"):
        make("transformers-lookup:ngram=0")


@pytest.mark.parametrize(
    ("spec", "settings", "said"),
    [
        ("transformers", {"sampling": Sampling(presence_penalty=1.0)}, "no presence_penalty"),
        ("transformers-uag", {"sampling": Sampling(temperature=0.7)}, "measure it at temperature 0"),
        ("transformers-uag", {"sampling": Sampling(repetition_penalty=2.0)}, "ids of another tokenizer"),
        ("transformers-uag:draft=no/such/folder", {}, "its draft model cannot be loaded: no model at"),
        ("mlx-lm", {"sampling": Sampling(temperature=0.7, top_p=0.9)}, "another law"),
        ("llama-cpp", {"sampling": Sampling(repetition_penalty=2.0)}, "another law"),
        ("vllm:python=x", {"sampling": Sampling(temperature=1.0, min_p=0.1)}, "another law"),
        ("vllm-ngram:python=x", {"sampling": Sampling(temperature=1.0)}, "choose --temperature 0"),
        ("vllm:python=no/python", {}, "^vLLM's Python no/python does not start: No such file or directory$"),
        (f"vllm:python={sys.executable}", {}, "^vLLM ended: ModuleNotFoundError: No module named 'vllm'$"),
    ],
)
def test_who_would_write_by_another_law_is_missing(spec: str, settings: dict[str, Any], said: str, make: Make) -> None:
    with pytest.raises(Missing, match=said):
        make(spec, **settings)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"min_p": 0.1}])
def test_llama_cpp_takes_no_part_where_it_would_leave_a_cut_out(
    temperature: float, cut: dict[str, float], lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at temperature 1, where the order would not matter: it is not handed over."""
    for package in ("gguf", "llama_cpp"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    sampling = Sampling(temperature=temperature, **cut)
    with pytest.raises(Missing, match="another law"):
        make_peer("llama-cpp", PeerWeights(lm.target), sampling=sampling)


@pytest.mark.parametrize(
    ("spec", "sampling", "error", "said"),
    [
        ("openvino", Sampling(temperature=1.0, min_p=0.1), Missing, "another law"),
        ("openvino-lookup", Sampling(repetition_penalty=2.0), Missing, "another law"),
        ("openvino-assisted", Sampling(temperature=1.0), Missing, "measure it at temperature 0$"),
        ("openvino:type=Q8_0", Sampling(), InputError, "'type' of openvino is one of float32, int8, int4, not 'Q8_0'$"),
        ("openvino-lookup:ngram=0", Sampling(), InputError, "'ngram' of openvino-lookup is a whole number from 1 to"),
    ],
)
def test_what_openvino_does_not_do_is_said_before_it_is_loaded(
    spec: str, sampling: Sampling, error: type[Exception], said: str, lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", types.ModuleType("openvino_genai"))
    with pytest.raises(error, match=said):
        make_peer(spec, PeerWeights(lm.target), sampling=sampling)


def test_weights_that_are_not_written_for_openvino_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", types.ModuleType("openvino_genai"))
    halves = paceline.load("pocket", dtype="bfloat16").target
    with pytest.raises(Missing, match=r"float32, int8, int4 here, not bfloat16; write type=int8 or type=float32$"):
        make_peer("openvino", PeerWeights(halves))


def test_forwards_are_timed_beside_some_peers_only(lm: paceline.LanguageModel) -> None:
    with pytest.raises(InputError, match=r"beside the peers llama-cpp and openvino only, not beside 'mlx-lm'$"):
        open_reader("mlx-lm", PeerWeights(lm.target), 64)


def test_nothing_is_left_out_of_the_law_that_was_not_asked_for(make: Make, lm: paceline.LanguageModel) -> None:
    """Left to itself `generate` samples among the 50 likeliest tokens."""
    peer, prompt = make("transformers"), lm.encode("The")
    hot = [Sampling(temperature=6.0, seed=seed) for seed in range(100)]
    found = {written(peer, job(prompt, sampling=sampling, max_new_tokens=1)).tokens[0] for sampling in hot}
    assert len(found) > 60


def test_a_draft_model_that_is_not_there_or_does_not_fit_is_told(lm: paceline.LanguageModel) -> None:
    with pytest.raises(Missing, match="needs a draft model with the target's tokenizer, and none is given"):
        make_peer("transformers-assisted", PeerWeights(lm.target, lm.vocabulary))
    foreign = DraftModel.load("pocket-foreign", lm.target)
    with pytest.raises(Missing, match="has a different tokenizer from pocket"):
        make_peer("transformers-assisted", PeerWeights(lm.target, lm.vocabulary, foreign))
    with pytest.raises(Missing, match="came without its tokenizer"):
        make_peer("transformers-uag", PeerWeights(lm.target))
    named_otherwise: Any = paceline.load("pocket", dtype="float32").target
    named_otherwise.name = "somebody/else"
    with pytest.raises(Missing, match="write transformers-uag:draft=NAME"):
        make_peer("transformers-uag", PeerWeights(named_otherwise, lm.vocabulary))


def test_a_target_that_is_no_model_of_transformers_stays_among_us() -> None:
    table = paceline.TableTarget(lambda _: [0.0] * 4, vocab_size=4)
    with pytest.raises(Missing, match="is no model of transformers"):
        make_peer("transformers", PeerWeights(table))


def test_vllm_is_found_by_a_variable(lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_VLLM", raising=False)
    with pytest.raises(Missing, match=r"name its Python: vllm:python=FILE, or PACELINE_VLLM=FILE$"):
        make_peer("vllm", PeerWeights(lm.target, lm.vocabulary))
    monkeypatch.setenv("PACELINE_VLLM", "no/python")
    with pytest.raises(Missing, match="no/python does not start"):
        make_peer("vllm", PeerWeights(lm.target, lm.vocabulary))
    for spec, said in (
        ("vllm-paceline:method=assistant", "method 'assistant' does not draft inside vLLM"),
        ("vllm-ngram:tokens=0", "option 'tokens' of vllm-ngram is a whole number from 1 to 128, not '0'"),
    ):
        with pytest.raises(InputError, match=said):
            make_peer(spec, PeerWeights(lm.target, lm.vocabulary))


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="PACELINE_VLLM names no Python with vLLM")
def test_what_vllm_publishes_of_a_text_is_in_its_record(make: Make, lm: paceline.LanguageModel) -> None:
    plain, ngram = make("vllm"), make("vllm-ngram:ngram=3")
    prompt = lm.encode(PROMPTS[1])
    found = written(ngram, job(prompt))
    assert found.drafted is not None
    assert found.accepted == found.metrics["vllm:spec_decode_num_accepted_tokens"] > 0
    assert found.drafted == found.metrics["vllm:spec_decode_num_draft_tokens"] >= found.accepted
    assert 0 < found.metrics["vllm:time_to_first_token_seconds"] <= found.metrics["vllm:e2e_request_latency_seconds"]
    alone = written(plain, job(prompt))
    assert (alone.drafted, alone.accepted) == (None, None)
    assert set(alone.metrics) == set(found.metrics)


@pytest.mark.parametrize(("says", "said"), [("sleep 60", "has said nothing for 0.3 s"), ("exit 3", "ended: ")])
def test_a_vllm_that_says_nothing_is_ended(
    says: str, said: str, tmp_path: Path, lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in its place that hangs, or ends while another process still holds its pipes."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path / 'child'}\n{says}\n")
    python.chmod(0o755)
    monkeypatch.setattr(vllm_peer, "PATIENCE", 0.3)
    monkeypatch.setattr(vllm_peer, "ENDING", 0.3)
    with pytest.raises(Missing, match=said if says == "sleep 60" else "vLLM "):
        make_peer(f"vllm:python={python}", PeerWeights(lm.target, lm.vocabulary))
    gc.collect()
    child = int((tmp_path / "child").read_text())
    assert comes_true(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_environment_of_vllm_sees_this_package_and_nothing_beside_it(
    tmp_path: Path, lm: paceline.LanguageModel
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nls $PYTHONPATH > {tmp_path / 'seen'}\ntest -f $PYTHONPATH/paceline/tree.py\n")
    python.chmod(0o755)
    with pytest.raises(Missing, match="vLLM ended: it said nothing"):
        make_peer(f"vllm:python={python}", PeerWeights(lm.target, lm.vocabulary))
    assert (tmp_path / "seen").read_text() == "paceline\n"


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="PACELINE_VLLM names no Python with vLLM")
def test_a_vllm_that_is_killed_is_one_sentence_and_leaves_nothing(lm: paceline.LanguageModel) -> None:
    peer: Any = make_peer("vllm", PeerWeights(lm.target, lm.vocabulary))
    process = peer._engine._process
    process.kill()
    with pytest.raises(RuntimeError, match=r"^vLLM ended: "):
        written(peer, job(lm.encode("A")))
    peer.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(("name", "package"), OPTIONAL.items())
def test_a_library_that_is_not_installed_is_told(
    name: str, package: str, lm: paceline.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(Missing, match="is not installed; 'pip install"):
        make_peer(name, PeerWeights(lm.target, lm.vocabulary))
