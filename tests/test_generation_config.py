"""The settings that a model brings along are the defaults of its texts, as in transformers; seeds and lengths."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig

import families
import paceline
import paceline.api.model
import paceline.api.settings
from engine import tabled
from paceline.api.model import LanguageModel
from paceline.api.settings import new_seed
from paceline.context import AHEAD, Context, Ending, Ints, enlarged
from paceline.law import Law, Sampling
from paceline.targets.base import SPARE_ROWS
from paceline.targets.cache import CacheRows
from paceline.targets.hf.generation import settings_of
from paceline.targets.hf.target import HFTarget

GENERATION = "generation_config.json"
PROMPT = [5, 9, 2, 5, 31, 7]


def llama_that(**fields: Any) -> Any:
    """A tiny model with these settings."""
    model = families.build("llama")
    model.generation_config = GenerationConfig(**fields)
    return model


def folder_with(folder: Path, **fields: Any) -> Path:
    """The folder of a tiny model whose settings are these as well."""
    families.save("llama", folder)
    before = json.loads((folder / GENERATION).read_text())
    (folder / GENERATION).write_text(json.dumps(before | fields))
    return folder


# --- as transformers reads them -----------------------------------------------------------------------------

FILES: dict[str, dict[str, Any]] = {
    "empty": {},
    "only that it samples": {"do_sample": True},
    "instruct": {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "min-p": {"do_sample": True, "min_p": 0.01, "top_k": 0},
    "penalty": {"do_sample": True, "temperature": 1.3, "repetition_penalty": 1.4},
    "greedy": {"do_sample": False, "repetition_penalty": 1.7},
    "a temperature for nothing": {"temperature": 0.5, "top_p": 0.3},
    "suppressed": {"do_sample": True, "suppress_tokens": [1, 2, 3, 4]},
    "bad words": {"bad_words_ids": [[8], [7, 9], [7, 12]], "eos_token_id": 8},
    "bad words, sampled": {"do_sample": True, "bad_words_ids": [[3], [31, 7, 4]], "suppress_tokens": [5]},
}


@pytest.mark.parametrize("fields", FILES.values(), ids=FILES)
def test_a_text_has_the_law_that_transformers_gives_it(fields: dict[str, Any]) -> None:
    model = llama_that(**fields)
    theirs = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=1,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    lm = LanguageModel(target := HFTarget(model), defaults=target.generation.defaults)
    _, sampling = lm.settings_for(PROMPT, {})
    ours = Law(sampling, len(PROMPT)).distribution(theirs.logits[0][0], np.asarray(PROMPT))
    expected = theirs.scores[0][0].softmax(-1).double().numpy()
    if not fields.get("do_sample"):
        expected = np.eye(len(expected))[expected.argmax()]
    np.testing.assert_allclose(dense(ours, len(expected)), expected, atol=1e-6)


def dense(law: Any, size: int) -> NDArray[np.float64]:
    found = np.zeros(size)
    found[law.ids] = law.weights / law.weights.sum()
    return found


def test_any_of_several_tokens_ends_a_text(tmp_path: Path) -> None:
    free = paceline.load(folder_with(tmp_path)).generate(PROMPT, max_new_tokens=30, ignore_eos=True).tokens
    ends = [free[9], free[4]]
    lm = paceline.load(folder_with(tmp_path, eos_token_id=ends))
    written = lm.generate(PROMPT, max_new_tokens=30)
    first = min(free.index(end) for end in ends)
    assert (written.tokens, written.finish) == (free[: first + 1], "eos")


OWN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "suppress_tokens": [3], "max_new_tokens": 7}


def test_a_setting_that_is_given_goes_before_the_models_own(tmp_path: Path) -> None:
    lm = paceline.load(folder_with(tmp_path, **OWN))
    own = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "banned": ((3,),), "max_new_tokens": 7}
    assert lm.defaults == own
    for given in ({}, {"temperature": 0}, {"top_k": 0, "seed": 4}, {"banned": [[4]]}, {"max_new_tokens": 5}):
        how, sampling = lm.settings_for("x", given)
        said, asked = vars(how) | vars(sampling), own | given
        assert {name: said[name] for name in asked} == asked
    greedy = paceline.load(folder_with(tmp_path / "plain"))
    found = lm.generate(PROMPT, temperature=0, banned=(), max_new_tokens=30)
    assert found.tokens == greedy.generate(PROMPT, max_new_tokens=30).tokens
    assert len(lm.generate(PROMPT, ignore_eos=True).tokens) == 7
    bare = paceline.load(tmp_path, generation_config=False)
    assert (bare.defaults, bare.target.eos) == ({}, lm.target.eos)
    lm.defaults = {"max_new_tokens": 3}
    assert len(lm.generate(PROMPT, ignore_eos=True).tokens) == 3


# --- what cannot be followed --------------------------------------------------------------------------------

LEFT_OUT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "beams": ({"num_beams": 4}, ["num_beams=4 (drafting does not serve it)"]),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, ["penalty_alpha=0.6 (drafting"]),
    "several": ({"no_repeat_ngram_size": 2, "typical_p": 0.9}, ["no_repeat_ngram_size=2", "typical_p=0.9"]),
    "stop strings": ({"stop_strings": ["x"]}, ['stop_strings=["x"]']),
    "a word": ({"do_sample": True, "temperature": "hot"}, ["temperature=\"hot\" (temperature is a number, not 'hot')"]),
    "below zero": ({"do_sample": True, "temperature": -1}, ["temperature=-1 (temperature is -1: use 0"]),
    "no number": ({"do_sample": True, "temperature": math.nan}, ["temperature=NaN (temperature is nan"]),
    "no end": ({"repetition_penalty": math.inf}, ["repetition_penalty=Infinity"]),
    "zero": ({"repetition_penalty": 0}, ["repetition_penalty=0 (repetition_penalty is 0: use a positive"]),
    "huge": ({"do_sample": True, "temperature": 10**400}, ["too many digits"]),
    "a list": ({"top_p": [0.9]}, ["top_p=[0.9] (top_p is a number"]),
    "a share of five": ({"top_p": 5}, ["top_p=5 (top_p is 5: use a mass"]),
    "off as elsewhere": ({"top_k": -1}, ["top_k=-1 (top_k is -1: use a number of tokens, or 0"]),
    "a switch": ({"do_sample": "yes"}, ['do_sample="yes" (do_sample is true or false)']),
    "half a token": ({"max_new_tokens": 2.5}, ["max_new_tokens=2.5 (max_new_tokens is a whole number"]),
    "texts": ({"suppress_tokens": ["x"]}, ['suppress_tokens=["x"] (it is a list of token ids']),
    "a number": ({"bad_words_ids": 5}, ["bad_words_ids=5 (it is a list of token ids"]),
    "an empty phrase": ({"bad_words_ids": [[]]}, ["bad_words_ids=[[]]"]),
    "below the first token": ({"suppress_tokens": [-4]}, ["suppress_tokens=[-4]"]),
    "an object": ({"guidance_scale": {"a": 1}}, ['guidance_scale={"a": 1}']),
}


@pytest.mark.parametrize(("fields", "said"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_cannot_be_followed_is_left_out_with_one_note(
    fields: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="settings of its generation_config.json are left out: ") as told:
        lm = paceline.load(folder_with(tmp_path, **fields))
    assert len(told) == 1
    assert all(one in str(told[0].message) for one in said), str(told[0].message)
    assert "\n" not in str(told[0].message)
    assert len(lm.generate(PROMPT, max_new_tokens=3, ignore_eos=True, seed=1).tokens) == 3
    paceline.load(tmp_path, generation_config=False)  # without a note: nothing is followed


def test_tokens_that_the_model_has_not_are_banned_already(tmp_path: Path) -> None:
    lm = paceline.load(folder_with(tmp_path, suppress_tokens=[3, 10**12, 3], bad_words_ids=[[4, 10**9], [6]]))
    assert lm.defaults["banned"] == ((6,), (3,))
    lm.generate(PROMPT, max_new_tokens=3)


def test_a_model_without_settings_has_none() -> None:
    bare = SimpleNamespace(config=families.build("llama").config)
    assert (settings_of(bare, 320).defaults, settings_of(bare, 320).left_out) == ({}, ())
    nothing = SimpleNamespace(config=bare.config, generation_config=SimpleNamespace())
    assert settings_of(nothing, 320).defaults == {}


# --- the bundled models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pocket", "pocket-draft", "pocket-foreign", "pocket-draft+ballast:4M"])
def test_bundled_models_sample(name: str) -> None:
    lm = paceline.load(name)
    assert lm.defaults == {"temperature": 0.8, "top_k": 0}
    written = lm.generate("Once upon a time", max_new_tokens=8)
    assert written.sampling == Sampling(temperature=0.8, seed=written.seed)
    assert lm.target.model.generation_config.do_sample is True, "so it does inside transformers"


# --- seeds and lengths --------------------------------------------------------------------------------------


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """New seeds are 100, 101, ..."""
    drawn = itertools.count(100)
    for module in (paceline.api.settings, paceline.api.model):
        monkeypatch.setattr(module, "new_seed", lambda: next(drawn))


def test_new_seeds_differ_and_can_be_typed_again() -> None:
    found = {new_seed() for _ in range(50)}
    assert len(found) == 50
    assert all(0 <= seed < 2**32 for seed in found)


@pytest.mark.usefixtures("seeds")
def test_a_text_without_a_seed_gets_a_new_one_and_names_it() -> None:
    lm = LanguageModel(tabled())
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20}
    first, second = lm.generate([1, 2], **how), lm.generate([1, 2], seed=None, **how)
    assert (first.seed, second.seed) == (100, 101)
    assert first.tokens != second.tokens
    assert lm.generate([1, 2], seed=100, **how).tokens == first.tokens == lm.generate([1, 2], seed=100, **how).tokens
    assert first.as_dict()["seed"] == 100
    assert [text.seed for text in lm.sample([1, 2], n=3, **how)] == [102] * 3
    together = lm.generate_batch([[1, 2], [1, 2], [1, 2]], n=2, each=[{}, {}, {"seed": 7}], **how)
    assert [[text.seed for text in texts] for texts in together] == [[103, 103], [104, 104], [7, 7]]
    greedy = lm.generate([1, 2], max_new_tokens=3)
    assert (greedy.seed, lm.generate([1, 2], **how).seed) == (0, 105), "a greedy text draws none"


def test_a_reply_has_no_limit_but_the_context(tmp_path: Path) -> None:
    families.save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 180}))
    lm = paceline.load(tmp_path)
    texts = {
        "text": lm.generate("Hi", ignore_eos=True),
        "text without a limit": lm.generate("Hi", ignore_eos=True, max_new_tokens=None),
        "messages": lm.generate([{"role": "user", "content": "Hi"}], ignore_eos=True),
        "chat": lm.chat("Hi", ignore_eos=True),
        "turn": lm.conversation(ignore_eos=True).say("Hi"),
        "short turn": lm.conversation(ignore_eos=True, max_new_tokens=9).say("Hi"),
    }
    ends = {name: text.finish for name, text in texts.items()}
    assert ends == dict.fromkeys(texts, "context") | {"text": "length", "short turn": "length"}
    assert len(texts["text"].tokens) == 128
    endless = LanguageModel(tabled()).generate([1, 2], ignore_eos=True, max_new_tokens=None)
    assert (endless.finish, len(endless.tokens)) == ("length", 4096), "a context without an end"


def test_a_text_without_a_limit_takes_no_memory_for_its_whole_context() -> None:
    text = Context([1, 2], Sampling(), Ending(max_new_tokens=10**6))
    assert text.reserve == 2 + AHEAD
    assert Context([1, 2], Sampling(), Ending(max_new_tokens=10)).reserve == 12


def test_memory_grows_with_a_text_and_copies_no_token_often(monkeypatch: pytest.MonkeyPatch) -> None:
    text, copied, count = Context([1, 2], Sampling(), Ending(max_new_tokens=10**15)), list[int](), 5000

    def counted(tokens: Ints, length: int) -> Ints:
        copied.append(len(tokens))
        return enlarged(tokens, length)

    monkeypatch.setattr("paceline.context.enlarged", counted)
    early = text.tokens
    ahead = text.extended([7])
    for token in range(count):
        text.commit(token)
    assert text.emitted.tolist() == list(range(count))
    assert sum(copied) <= 2 * count
    assert (early.tolist(), ahead.tokens.tolist()) == ([1, 2], [1, 2, 7]), "views of before stay as they were"
    assert len(text._buffer) <= 2 * count


@pytest.mark.parametrize("method", ["plain", "lookup"])
def test_rows_grow_with_a_text(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are asked for by steps; how many beforehand changes no token."""
    texts = list[list[int]]()
    for ahead in (AHEAD, 1):
        monkeypatch.setattr("paceline.context.AHEAD", ahead)
        lm = paceline.load(families.build("llama"))
        texts.append(lm.generate([1, 2, 3], method=method, temperature=0.8, seed=1, max_new_tokens=300).tokens)
        (kept,) = lm.kept._spare
        assert isinstance(kept, CacheRows)
        capacities = {layer.capacity for layer in kept.layers.values()}
        assert capacities == {303 + SPARE_ROWS if ahead == AHEAD else 8 * (4 + SPARE_ROWS)}
    assert texts[0] == texts[1]
