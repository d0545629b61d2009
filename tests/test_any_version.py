"""What a new user does first, with whichever transformers and torch are installed.

The pinned versions of `constraints.txt` hide what a new release breaks. `make newest` runs this file on the newest
versions that the package admits, `make oldest` on the oldest transformers.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, pipeline

import families
import paceline
from paceline.cli import main
from paceline.targets.hf.own import CACHE_NAMES, cache_name

FAMILIES = ("llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "qwen3")))
PROMPT = "the rider in front breaks the wind and the"
LENGTH = 24


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("models") / request.param
    families.save(request.param, made)
    return made


def written_by_transformers(folder: Path, **settings: Any) -> list[int]:
    """A text from transformers alone, as a user would ask for it."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    whole = model.generate(ids, max_new_tokens=LENGTH, do_sample=False, pad_token_id=0, **settings)
    tokens: list[int] = whole[0, ids.shape[1] :].tolist()
    return tokens


@pytest.mark.parametrize("method", ["plain", "auto", "lookup"])
def test_a_folder_writes_what_transformers_writes(folder: Path, method: str) -> None:
    text = paceline.load(folder).generate(PROMPT, max_new_tokens=LENGTH, temperature=0, method=method)
    assert list(text.tokens) == written_by_transformers(folder)


def test_sampled_texts_do_not_depend_on_the_method(folder: Path) -> None:
    lm = paceline.load(folder)
    texts = [
        lm.generate(PROMPT, max_new_tokens=LENGTH, temperature=0.8, seed=3, method=method).tokens
        for method in ("plain", "auto", "suffix+lookup")
    ]
    assert texts[0] == texts[1] == texts[2]


def test_inside_generate(folder: Path) -> None:
    drafted = written_by_transformers(folder, custom_generate=paceline.custom_generate("auto"))
    assert drafted == written_by_transformers(folder)


def test_inside_a_pipeline(folder: Path) -> None:
    settings = {"max_new_tokens": LENGTH, "do_sample": False, "return_full_text": False}
    write = pipeline("text-generation", model=str(folder), device="cpu")
    plain, drafted = (
        write(PROMPT, **settings, **more) for more in ({}, {"custom_generate": paceline.custom_generate()})
    )
    assert drafted == plain


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_quantised_texts_do_not_depend_on_the_method(name: str, tmp_path: Path) -> None:
    families.save(name, tmp_path)
    lm = paceline.load(tmp_path, quantize="int8")
    plain, drafted = (
        lm.generate(PROMPT, max_new_tokens=LENGTH, temperature=0, method=method).tokens for method in ("plain", "auto")
    )
    assert plain == drafted


def test_the_check_finds_no_bug(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(folder), "--method", "auto", "--sizes", "4", "-n", "8"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("auto ", "(rows"))]
    assert len(rows) == 2
    assert {row[-1] for row in rows} == {"0"}


def renamed(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """The model with a forward whose cache argument has this name."""
    forward, theirs = model.forward, cache_name(model)
    assert theirs is not None

    def call(**given: Any) -> Any:
        return forward(**{theirs if key == name else key: value for key, value in given.items()})

    signature = inspect.signature(forward)
    parameters = [each.replace(name=name) if each.name == theirs else each for each in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    model.forward = call
    return model


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_the_cache_goes_by_either_name(name: str) -> None:
    model = renamed(families.build("llama"), name)
    prompt = list(range(1, 9))
    with torch.no_grad():
        cache, given, expected = DynamicCache(), prompt, []
        for _ in range(LENGTH):
            logits = model(input_ids=torch.tensor([given]), use_cache=True, **{name: cache}).logits
            given = [int(logits[0, -1].argmax())]
            expected += given
    text = paceline.load(model).generate(prompt, max_new_tokens=LENGTH, temperature=0, method="lookup")
    assert list(text.tokens) == expected
