"""Settings: what a type checker knows of them is what they are, and a wrong type is told with the mend."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, MaxLengthCriteria, PreTrainedModel, SuppressTokensLogitsProcessor

import paceline
from engine import PROMPT, tabled
from paceline.api.model import ARGUMENTS, LanguageModel
from paceline.api.settings import ELSEWHERE, Options, Settings
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.law import settings as law
from paceline.targets.place import named_dtype
from thinning import thinned

ROOT = Path(__file__).resolve().parent.parent

GOOD = """
import numpy as np
import torch

import paceline
from paceline import Options

lm = paceline.load("pocket", dtype=torch.float32, device=torch.device("cpu"))
lm = paceline.load("pocket", dtype="float32", device="auto")
chat = [{"role": "user", "content": "Hello"}]
lm.generate("x", max_new_tokens=3, stop=["a"], temperature=1, eos=[1, 2], logit_bias={3: -1.0}, banned=[[1], (2, 3)])
lm.generate([1, 2], method="lookup", draft_model="pocket-draft", planner="fixed:4", criteria=[lambda tokens: True])
lm.generate(torch.tensor([1, 2]), stop="a", logprobs=None, seed=2)
lm.generate(np.array([1, 2]), rule="rejection", processors=[lambda ids, scores: scores])
lm.generate(chat, top_k=3)
lm.sample("x", n=3, top_p=0.9)
texts = lm.generate_batch(["x", [1, 2], chat], each=[{"seed": 1}, {"stop": "x"}, {}], n=2, min_p=0.1)
print(texts[0][0].text)
lm.chat(chat, temperature=0.8)
lm.chat("Hello", ignore_eos=True)
talk = lm.conversation(system="Be brief.", seed=3)
paceline.Conversation(lm, frequency_penalty=0.5)
talk.say("Hello", temperature=1.0)
for piece in talk.stream("Hello", max_new_tokens=3):
    print(piece.text)
for piece in lm.stream("x", presence_penalty=0.5):
    print(piece.token)
lm.write("x", repetition_penalty=1.1).cancel()
with lm.batch() as batch:
    batch.add("x", sample=2, max_new_tokens=5)


async def main() -> None:
    async for piece in lm.astream("x", temperature=0.5):
        print(piece.text)


def passed_on(**settings: object) -> None: ...


how: Options = {"temperature": 0.8, "max_new_tokens": 20}
lm.generate("x", **how)
"""
CALLS = {
    "generate": "lm.generate('x', {})",
    "sample": "lm.sample('x', n=1, {})",
    "stream": "lm.stream('x', {})",
    "astream": "lm.astream('x', {})",
    "write": "lm.write('x', {})",
    "generate_batch": "lm.generate_batch(['x'], {})",
    "each": "lm.generate_batch(['x'], each=[dict({})])",
    "add": "lm.batch().add('x', {})",
    "chat": "lm.chat('x', {})",
    "conversation": "lm.conversation({})",
    "Conversation": "paceline.Conversation(lm, {})",
}
MISTAKES = {
    "max_tokens=3": "name",
    "temprature=1.0": "name",
    "max_new_tokens=10.0": "type",
    "stop=3": "type",
    "temperature='hot'": "type",
    "seed=0.5": "type",
    "criteria=3": "type",
    "method=3": "type",
}
"""A wrong setting -> what is wrong with it."""
OTHERS = (
    "lm.generate(['one', 'two'])",
    "lm.generate(None)",
    "lm.generate('x', n=3)",
    "lm.chat(7)",
    "paceline.load('pocket', dtype=3)",
    "paceline.load('pocket', device=1.5)",
    "paceline.load('pocket', torch_dtype='float32')",
    "talk.say('x', max_tokens=3)",
    "paceline.load(3)",
)


def bad_lines() -> list[str]:
    """Calls that are wrong, one in a line: every mistake in one call, and one mistake in every call."""
    first = [f"lm.generate('x', {mistake})" for mistake in MISTAKES]
    return [*first, *(call.format("temprature=1.0") for call in CALLS.values()), *OTHERS]


def checkers() -> dict[str, Callable[[Path], list[str]]]:
    return {
        "mypy": lambda file: said("mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)),
        "pyright": lambda file: said("basedpyright", "--pythonpath", sys.executable, "--project", str(file.parent)),
    }


def said(*command: str) -> list[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True, cwd=ROOT)
    return [line for line in done.stdout.splitlines() if re.search(r"py:\d+.* error:", line)]


@pytest.mark.slow
@pytest.mark.parametrize("checker", thinned(["mypy", "pyright"]))
def test_a_type_checker_takes_good_calls_and_marks_bad_ones(checker: str, tmp_path: Path) -> None:
    config = f'{{"extraPaths": ["{ROOT / "src"}"], "typeCheckingMode": "standard", "pythonVersion": "3.11"}}'
    (tmp_path / "pyrightconfig.json").write_text(config, encoding="utf8")
    file, lines = tmp_path / "calls.py", bad_lines()
    file.write_text(GOOD + "\n".join(lines) + "\n", encoding="utf8")
    first, said_ = GOOD.count("\n") + 1, checkers()[checker](file)
    marked = {int(found.group(1)) - first for line in said_ if (found := re.search(r"py:(\d+)", line))}
    assert [number for number in marked if number < 0] == [], "a good call"
    assert [line for number, line in enumerate(lines) if number not in marked] == []


def test_what_editors_complete_is_what_there_is() -> None:
    names = {**vars(law), "torch": torch, "PreTrainedModel": PreTrainedModel}
    own, sampling = (get_type_hints(kind, localns=names) for kind in (Settings, Sampling))
    known = {f.name for kind in (Settings, Sampling) for f in fields(kind)}
    expected = {name: (own | sampling)[name] for name in known} | {"seed": int | None}
    assert get_type_hints(Options, localns=names) == expected
    assert not set(ELSEWHERE) & known


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stop": 3}, "stop is a text or a list of texts, not 3; tokens go to eos"),
    ({"stop": [3]}, "stop is a text or a list of texts; it holds 3; tokens go to eos"),
    ({"n": 3}, "unknown setting 'n'; write sample(prompt, n=N)"),
    ({"system": "x"}, "write conversation(system=...)"),
    ({"temperature": "hot"}, "temperature is a number, not 'hot'"),
    ({"temperature": "0.8"}, "temperature is a number, not '0.8'; write 0.8"),
    ({"temperature": None}, "temperature is a number, not None; leave it out for the default"),
    ({"seed": 0.5}, "seed is a whole number, not 0.5"),
    ({"temperature": 10**400}, "temperature has too many digits: use a number of at most 1.8e308"),
    ({"max_new_tokens": -1}, "max_new_tokens must be at least 1, not -1; for no limit but the context write None"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs is a dict of names and values, not 3"),
    ({"chat_template_kwargs": {3: 4}}, "chat_template_kwargs is a dict of names and values, not a dict"),
    (
        {"chat_template_kwargs": {"a": 4}},
        "chat_template_kwargs are for the messages of a chat",
    ),
    ({"seed": "7"}, "seed is a whole number, not '7'; write 7"),
    ({"max_new_tokens": 10.0}, "max_new_tokens is a whole number, not 10.0; write 10"),
    ({"max_new_tokens": 10.5}, "max_new_tokens is a whole number, not 10.5"),
    ({"max_new_tokens": float("inf")}, "max_new_tokens is a whole number, not inf"),
    ({"criteria": 3}, "criteria is a list of functions, not 3"),
    ({"criteria": [3]}, "criteria is a list of functions; it holds 3"),
    ({"criteria": None}, "criteria is a list of functions, not None; leave it out"),
    ({"criteria": len}, "criteria is a list: put the one criterion into a list"),
    ({"criteria": [MaxLengthCriteria(3)]}, "so far, and MaxLengthCriteria takes (input_ids, scores)"),
    ({"observer": 3}, "observer is a function, not 3"),
    ({"observer": lambda a, b: None}, "observer is called with an Observed, one round of the text, and "),
    ({"processors": len}, "processors is a list: put the one processor into a list"),
    ({"processors": [lambda ids: ids]}, "a processor is called with the token ids and the scores, and "),
    ({"min_tokens": 3}, "write processors=[...] with a MinNewTokensLengthLogitsProcessor of transformers"),
    ({"processors": 3}, "processors is a list of functions, not 3"),
    ({"processors": ["x"]}, "processors is a list of functions; it holds 'x'"),
    ({"processors": "x"}, "processors is a list of functions, not 'x'"),
    ({"eos": 0.5}, "eos is a whole number, not 0.5"),
    ({"eos": {"a": 1}}, "eos is a whole number, not {'a': 1}"),
    ({"ignore_eos": "no"}, "ignore_eos is True or False, not 'no'"),
    ({"logit_bias": [1]}, "logit_bias is a dict of token ids and numbers, such as {7: -2.5}, not [1]"),
    ({"logit_bias": {"1": 2.0}}, "a token of logit_bias is a whole number, not '1'; write 1"),
    ({"logit_bias": {1: "x"}}, "logit_bias of token 1 is a number, not 'x'"),
    ({"banned": [5]}, "banned is a list of token sequences, such as [[7], [3, 5]]; it holds 5"),
    ({"banned": "bad"}, "banned is a list of token sequences, such as [[7], [3, 5]], not 'bad'"),
    ({"banned": [["a"]]}, "a token of banned is a whole number, not 'a'"),
    ({"rule": 3}, "unknown rule 3; choose coupled or rejection"),
    ({"draft_model": 3}, "a draft model is a name, a folder or a loaded model, not 3"),
]


@pytest.mark.parametrize(("settings", "told"), WRONG)
def test_a_wrong_type_is_told_with_the_mend(settings: dict[str, Any], told: str) -> None:
    lm = LanguageModel(tabled())
    for call in (lm.generate, lm.stream, lambda prompt, **how: lm.generate_batch([prompt], each=[how])):
        with pytest.raises(InputError, match=re.escape(told)) as caught:
            call(PROMPT, **settings)
        assert "\n" not in str(caught.value)


def test_lists_and_tuples_are_one() -> None:
    lm = LanguageModel(tabled())
    how: list[dict[str, Any]] = [
        {"banned": kind([kind([1]), kind([2, 3])]), "criteria": kind([lambda tokens: len(tokens) > 12]), "stop": kind()}
        for kind in (list, tuple)
    ]
    texts = [lm.generate(PROMPT, max_new_tokens=9, **each) for each in how]
    assert (
        texts[0].tokens
        == texts[1].tokens
        == lm.generate(
            PROMPT, max_new_tokens=9, banned=[np.array([1]), np.array([2, 3])], criteria=how[0]["criteria"], stop=set()
        ).tokens
    )
    assert texts[0].finish == "criterion"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda lm: lm.generate_batch([PROMPT], each=[3]), "'each' is a list of dicts"),
        (lambda lm: lm.generate_batch([PROMPT], progress=3), "progress is a function of two numbers, not 3"),
        (lambda lm: lm.sample(PROMPT, n="3"), "n is a whole number, not '3'; write 3"),
        (lambda lm: lm.batch(at_once=None), "at_once is a whole number, not None"),
        (lambda lm: paceline.load(3), "a model is a name, a folder or a loaded transformers model, not 3"),
        (lambda lm: paceline.load(""), "a model is a name or a folder, not ''"),
        (lambda lm: paceline.load("pocket", device="meta"), "device 'meta' holds no values"),
        (lambda lm: paceline.load("pocket", dtype=3), "unknown dtype '3'; choose one of float64"),
        (lambda lm: paceline.load("pocket", dtype=torch.int8), "write quantize='int8'"),
        (lambda lm: paceline.load("pocket", device=3.5), "device '3.5' is not available here"),
        (lambda lm: paceline.load("pocket", device="gpu"), "device 'gpu' is not available here; choose cpu, auto"),
    ],
)
def test_wrong_arguments_of_calls_are_told(call: Any, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        call(LanguageModel(tabled()))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torch_dtype", "write dtype"),
        ("load_in_8bit", "write quantize='int8'"),
        ("quantization_config", "load the model with transformers"),
        ("revision", "download that revision, and give its folder"),
        ("draft_model", "draft_model is a setting of generate"),
        ("max_length", "give max_new_tokens to generate"),
        ("devise", "did you mean 'device'?"),
        ("cache_dir", "it takes a model, tokenizer, dtype, quantize, device, device_map, fixed_shapes, "),
    ],
)
def test_an_argument_that_load_does_not_have_is_told(name: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"unknown argument {name!r} of load; {told}")):
        paceline.load("pocket", **{name: 1})  # type: ignore[arg-type]


def test_what_load_takes_is_listed() -> None:
    assert list(inspect.signature(paceline.load).parameters) == ["model", *ARGUMENTS, "misplaced"]


def test_a_list_of_processors_may_be_callable_itself() -> None:
    how: Any = {"max_new_tokens": 4, "ignore_eos": True}
    processors = LogitsProcessorList([SuppressTokensLogitsProcessor([1])])
    text = LanguageModel(tabled()).generate(PROMPT, processors=processors, **how)
    assert text.tokens == LanguageModel(tabled()).generate(PROMPT, banned=[[1]], **how).tokens


def test_equal_samples_are_warned_of_once() -> None:
    lm, how = LanguageModel(tabled()), Options(max_new_tokens=3)
    with pytest.warns(UserWarning, match="a temperature above 0") as warned:
        lm.sample(PROMPT, n=3, **how)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="a temperature above 0") as warned:
        lm.generate_batch([PROMPT, PROMPT], n=2, **how)
    assert len(warned) == 1
    lm.sample(PROMPT, n=1, **how)
    lm.sample(PROMPT, n=2, temperature=1.0, **how)


def test_a_repr_says_what_was_set() -> None:
    assert repr(Sampling()) == "Sampling()"
    assert repr(Sampling(temperature=0.8, seed=3)) == "Sampling(temperature=0.8, seed=3)"
    assert repr(Settings(method="lookup", max_new_tokens=5)) == "Settings(method='lookup', max_new_tokens=5)"
    assert eval(repr(Sampling(logit_bias={3: 1.0}, top_k=2))) == Sampling(logit_bias={3: 1.0}, top_k=2)


# --- types of weights and devices ---------------------------------------------------------------------------


def test_short_names_of_dtypes() -> None:
    short = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "half": torch.float16}
    assert {name: named_dtype(name) for name in short} == short


@pytest.mark.parametrize("dtype", ["float64", "torch.float64", torch.float64])
def test_a_dtype_may_be_torchs_own(dtype: Any) -> None:
    lm = paceline.load("pocket-draft", dtype=dtype, device=torch.device("cpu"))
    assert lm.target.dtype == "float64"


def test_auto_loads_here(model: str) -> None:
    lm = paceline.load(model, dtype="auto", device="auto")
    assert lm.target.dtype == "float32"
    assert lm.generate("Hello", max_new_tokens=2).tokens
