"""What other engines call our methods: every method has an answer, and what is printed is what they accept."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.dictionary import shipped
from paceline.drafters.indexing import build
from paceline.drafters.spec import BUILT_IN
from paceline.integrations.export import ANSWERS, FOREIGN, VERSIONS, Equivalent, equivalent, equivalents_of_run
from paceline.integrations.vllm.settings import CLASS, VLLMSettings
from paceline_lab.bench.peers.weights import ordinary
from paceline_lab.bench.run.directory import ABOUT, About, begin, read
from paceline_lab.commands import export
from test_cli import say

ENGINES = tuple(VERSIONS)
DICTIONARY = Path(shipped.__file__).with_name("pocket-en.dict")
MODEL = "my models/draft's"
"""A path that a shell would take apart."""
WITH_MODEL = {"assistant": MODEL}
COMPOSED = ("lookup,assistant", "assistant,lookup", "lookup+assistant", "lookup:max_ngram=2,lookup")
SHAPED = ("assistant:top=3", "assistant:beams=2,length=5", "assistant:confidence=0.3", "assistant:noise=none")


def asked(engine: str, spec: str, tokens: int | None = None) -> Equivalent:
    return equivalent(
        engine, spec, draft_model=MODEL if "assistant" in spec or spec == "mirror" else None, draft_tokens=tokens
    )


def flags(found: Equivalent) -> dict[str, str]:
    """Of the engine's own line, as a shell reads it."""
    line = found.lines[0]
    words = shlex.split(line)
    return dict(zip(words[::2], words[1::2], strict=True))


def test_every_engine_is_known_to_the_command() -> None:
    assert set(export.ENGINES) == set(ENGINES) == set(ANSWERS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", [*BUILT_IN, *COMPOSED, *SHAPED])
def test_every_method_has_an_answer(engine: str, spec: str, tmp_path: Path) -> None:
    if spec == "rest":
        build(tmp_path / "corpus.rest", [np.array([1, 2, 3, 1, 2])], "of no tokenizer")
        spec = f"rest:corpus='{tmp_path / 'corpus.rest'}'"
    found = asked(engine, spec)
    assert (found.engine, found.method) == (engine, spec)
    assert not any("another package" in note for note in found.notes)
    assert found.lines or found.notes
    if not found.lines:
        assert len(found.notes) == 1
        assert "has no equivalent" in found.notes[0] or spec == "plain"
    assert all(note and "\n" not in note for note in found.notes)
    assert json.loads(json.dumps(found.as_dict()))["settings"] == found.settings


# --- vLLM ---------------------------------------------------------------------------------------------------


def served(found: Equivalent) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The model, and the two settings, of the line that a shell is given."""
    line, *others = found.lines
    assert "\n" not in line
    assert all(other.startswith("# ") for other in others)
    vllm, serve, model, *words = shlex.split(line)
    assert (vllm, serve) == ("vllm", "serve")
    flags = dict(zip(words[::2], words[1::2], strict=True))
    return model, *(json.loads(flags.get(name, "{}")) for name in ("--speculative-config", "--additional-config"))


@pytest.mark.parametrize("spec", ["lookup", "suffix", "hybrid", "recycling", "foresight", "dictionary+suffix", "auto"])
def test_what_vllm_is_given_is_ours_first_and_whole(spec: str) -> None:
    found = equivalent("vllm", spec, draft_tokens=7, target="org/name")
    model, speculative, additional = served(found)
    assert model == "org/name"
    assert speculative == {"method": "custom_class", "model": CLASS, "num_speculative_tokens": 7}
    assert found.settings == {"speculative_config": speculative, "additional_config": additional}
    assert VLLMSettings.of(additional).drafter().name
    assert any("0.85 to 0.93 of plain vLLM" in note for note in found.notes)
    assert not any("in place of MODEL" in note for note in found.notes)
    assert served(equivalent("vllm", spec))[0] == "MODEL"


def test_auto_becomes_the_union_of_its_parts_that_serve() -> None:
    for spec in ("auto", "auto:noise=none", "auto:model=small", "auto:dictionary=none"):
        found = equivalent("vllm", spec)
        assert served(found)[2] == {"paceline": {"method": "suffix+foresight"}}
        assert any("no draft model, no head" in note for note in found.notes)
    named = equivalent("vllm", f"auto:dictionary='{DICTIONARY}'")
    assert served(named)[2]["paceline"]["method"] == f"suffix+foresight+dictionary:file='{DICTIONARY}'"
    assert not any("come with paceline" in note for note in named.notes)


def test_vllm_has_methods_of_its_own() -> None:
    lookup = asked("vllm", "lookup:max_ngram=5,min_ngram=2", tokens=7)
    assert json.loads(shlex.split(lookup.lines[-1])[-1]) == {
        "method": "ngram",
        "num_speculative_tokens": 7,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    suffix = asked("vllm", "suffix", tokens=12)
    assert json.loads(shlex.split(suffix.lines[-1])[-1]) == {"method": "suffix", "num_speculative_tokens": 12}
    assert any("arctic-inference" in note for note in suffix.notes)
    for found in (lookup, suffix):
        assert any("min_p" in note for note in found.notes)


def test_vllm_drafts_with_a_model() -> None:
    found = asked("vllm", "assistant", tokens=3)
    _, settings, additional = served(found)
    assert settings == found.settings == {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 3}
    assert additional == {}
    assert any("share no noise" in note for note in found.notes)
    assert any("use_heterogeneous_vocab" in note for note in found.notes)
    other = equivalent("vllm", "assistant", draft_model=FOREIGN)
    assert served(other)[1]["use_heterogeneous_vocab"] is True
    assert any("is bundled with paceline" in note for note in other.notes)


def test_files_are_named_as_they_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "it's here, isn't it"
    (folder / "model").mkdir(parents=True)
    plain = tmp_path / "plain"
    plain.mkdir()
    for place in (folder, plain):
        shutil.copy(DICTIONARY, place / "a.dict")
    build(plain / "corpus.rest", [np.array([1, 2, 3, 1, 2])], "of no tokenizer")
    monkeypatch.chdir(plain)

    def method(spec: str) -> str:
        return str(served(equivalent("vllm", spec))[2]["paceline"]["method"])

    assert method("dictionary:file=a.dict") == f"dictionary:file='{plain}/a.dict'"
    assert method("dictionary:branches=2,file=a.dict+lookup") == f"dictionary:branches=2,file='{plain}/a.dict'+lookup"
    assert method("hybrid:file='a.dict,a.dict'") == f"hybrid:file='{plain}/a.dict,{plain}/a.dict'"
    assert method("rest:corpus=corpus.rest") == f"rest:corpus='{plain}/corpus.rest'"
    assert method("suffix:remember=9,memory=new.memory") == f"suffix:remember=9,memory='{plain}/new.memory'"
    monkeypatch.chdir(folder)
    for target in ("model", "./model"):
        assert served(equivalent("vllm", "lookup", target=target))[0] == str(folder / "model")
    assert served(equivalent("vllm", "assistant", draft_model="model"))[1]["model"] == str(folder / "model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hybrid", "--dict", "nowhere.dict"], "cannot read the dictionary nowhere.dict"),
        (["auto", "--dict", "nowhere.dict"], "cannot read the dictionary nowhere.dict"),
        (["dictionary:file=nowhere.dict"], "cannot read the dictionary nowhere.dict"),
        (["rest:corpus=nowhere.rest"], "cannot read the datastore nowhere.rest"),
        (["suffix:remember=9,memory=nowhere/a"], "there is no folder nowhere"),
        (["lookup", "--model", "./nowhere"], "there is no folder ./nowhere of a model"),
        (["assistant", "-md", "./nowhere"], "there is no folder ./nowhere of a model"),
    ],
)
def test_files_that_are_not_there_are_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = say(["export", "vllm", *words], capsys)
    assert (code, out) == (2, "")
    assert said in error.replace(f"{tmp_path}/", "")


# --- llama.cpp ----------------------------------------------------------------------------------------------


def test_llama_cpp_looks_up_and_drafts() -> None:
    assert flags(asked("llama.cpp", "lookup:max_ngram=4", tokens=6)) == {
        "--spec-type": "ngram-simple",
        "--spec-ngram-simple-size-n": "4",
        "--spec-ngram-simple-size-m": "6",
    }
    drafts = {"--spec-draft-model": MODEL, "--spec-draft-n-max": "6"}
    assert flags(asked("llama.cpp", "assistant", tokens=6)) == {"--spec-type": "draft-simple", **drafts}
    assert flags(asked("llama.cpp", "assistant:confidence=0.3"))["--spec-draft-p-min"] == "0.3"
    assert not equivalent("llama.cpp", "assistant", draft_model=FOREIGN).lines


def test_llama_cpp_asks_n_grams_first() -> None:
    """Whatever the order in --spec-type, so only that order of ours carries over."""
    both = flags(asked("llama.cpp", "lookup,assistant"))
    assert both["--spec-type"] == "ngram-simple,draft-simple"
    assert (both["--spec-ngram-simple-size-m"], both["--spec-draft-n-max"]) == ("10", "10")
    assert not asked("llama.cpp", "assistant,lookup").lines
    assert not asked("llama.cpp", "lookup+assistant").lines


# --- what is lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_carry_over_is_said(engine: str) -> None:
    def said(spec: str, part: str) -> bool:
        return any(part in note for note in asked(engine, spec).notes)

    assert said("assistant:top=3", "scores no trees: in place of top=3 it drafts one chain of 4 tokens")
    assert said("assistant:beams=2,length=5", "in place of beams=2 it drafts one chain of 5 tokens")
    assert not said("assistant", "scores no trees")
    assert said("assistant", "share no noise")
    assert not said("assistant:noise=none", "share no noise")
    assert said("assistant:confidence=0.3", "unsure" if engine == "vllm" else "confidence")


# --- transformers, which is here ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def saved(lm: paceline.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled draft models as folders that transformers loads; one has a blank and a quote in its path."""
    folders = {}
    for name in ("pocket-draft", FOREIGN):
        folders[name] = tmp_path_factory.mktemp("models") / f"it's a {name}"
        small = paceline.load(name, dtype="float32")
        assert small.vocabulary is not None
        ordinary(small.target).save_pretrained(folders[name])
        small.vocabulary.tokenizer.save_pretrained(folders[name])
    return folders


@pytest.mark.parametrize(
    ("spec", "draft"),
    [
        ("plain", None),
        ("lookup", None),
        ("lookup:max_ngram=5", None),
        ("assistant", "pocket-draft"),
        ("assistant:confidence=0.3", "pocket-draft"),
        ("assistant:top=2", FOREIGN),
        ("lookup,assistant", "pocket-draft"),
        ("lookup+assistant", "pocket-draft"),
    ],
)
def test_the_python_that_is_printed_runs_and_writes_the_same(
    spec: str, draft: str | None, lm: paceline.LanguageModel, saved: dict[str, Path]
) -> None:
    assert lm.vocabulary is not None
    named = None if draft is None else draft if draft == FOREIGN else str(saved[draft])
    found = equivalent("transformers", spec, draft_model=named, draft_tokens=3)
    prompt, model = lm.encode("one two three one two three one"), ordinary(lm.target)
    ids = torch.from_numpy(prompt)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}
    names: dict[str, Any] = {
        "model": model,
        "inputs": inputs,
        "tokenizer": lm.vocabulary.tokenizer,
        "paceline": paceline,
        "AutoModelForCausalLM": AutoModelForCausalLM,
        "AutoTokenizer": AutoTokenizer,
    }
    plain = lm.generate(prompt, method="plain", max_new_tokens=20, ignore_eos=True).tokens
    written = 0
    for line in found.lines:
        if draft == FOREIGN:  # which is written by its bundled name, to be replaced by that of a folder
            if "custom_generate" in line:
                continue  # our own assistant wants the target's tokenizer
            line = line.replace(repr(FOREIGN), repr(str(saved[FOREIGN])))
        if line.startswith("model.generate("):
            assert eval(line, names)[0, len(prompt) :].tolist() == plain
            written += 1
        else:
            exec(line, names)
    assert written == (1 if spec == "plain" or draft == FOREIGN or not found.settings else 2)
    if draft is not None and found.settings:
        config = names["draft"].generation_config
        assert (config.num_assistant_tokens, config.num_assistant_tokens_schedule) == (
            2 if "top=2" in spec else 3,
            "constant",
        )


def test_a_lookup_there_is_as_long_as_it_says(lm: paceline.LanguageModel) -> None:
    model, rows = ordinary(lm.target), list[int]()

    def saw(_: torch.nn.Module, __: Any, given: dict[str, Any]) -> None:
        rows.append(given["input_ids"].shape[1])

    model.register_forward_pre_hook(saw, with_kwargs=True)
    ids = torch.from_numpy(lm.encode("one two three four five six " * 6))[None]
    generate: Any = model.generate
    generate(ids, max_new_tokens=20, do_sample=False, **asked("transformers", "lookup", tokens=4).settings)
    assert max(rows[1:]) == 4 + 1


# --- the command --------------------------------------------------------------------------------------------


def entry(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "ours": True, "library": "paceline", "draft_model": None, **facts}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    entries = [
        entry("plain", planner="fixed:10"),
        entry("lookup", planner="fixed:6"),
        entry("assistant", planner="fixed:5", draft_model=MODEL),
        entry("assistant:model=other", planner="fixed:2", draft_model="other"),
        {**entry("transformers"), "ours": False},
    ]
    path = tmp_path / "run"
    begin(path, About(recipe={}, model={}, entries=entries, workload={}))
    return path


def of_run(engine: str, directory: Path) -> list[Equivalent]:
    return equivalents_of_run(engine, read(directory).about.entries, directory / ABOUT)


def test_a_run_says_itself_how_its_methods_drafted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = of_run("vllm", directory)
    assert [each.method for each in found] == ["plain", "lookup", "assistant", "assistant:model=other"]
    settings = [served(each)[1] for each in found]
    assert [each.get("num_speculative_tokens") for each in settings] == [None, 6, 5, 2]
    assert [each.get("model") for each in settings] == [None, CLASS, MODEL, "other"]
    code, out, _ = say(["export", "vllm", "--run", str(directory), "--json"], capsys)
    last = json.loads(out.splitlines()[-1])
    assert code == 0
    assert (last["engine"], last["version"]) == ("vllm", VERSIONS["vllm"])
    assert [each["settings"] for each in last["methods"]] == [each.settings for each in found]
    for each in found:
        assert f"# {each.method} in {VERSIONS['vllm']}" in out
        assert all(line in out for line in each.lines)
    assert out.startswith("vllm serve MODEL\n# plain in vLLM")
    code, out, _ = say(["export", "vllm", "--run", str(directory), "--model", "org/name"], capsys)
    assert out.startswith("vllm serve org/name\n")


def test_what_a_planner_sized_is_said(tmp_path: Path) -> None:
    entries = [entry("lookup", planner="adaptive"), entry("suffix@calibrated", method="suffix", planner="calibrated")]
    begin(tmp_path / "run", About(recipe={}, model={}, entries=entries, workload={}))
    lookup, _ = of_run("llama.cpp", tmp_path / "run")
    assert any("the adaptive planner chose the size" in note for note in lookup.notes)
    assert not any("planner" in note for found in of_run("vllm", tmp_path / "run") for note in found.notes)
    lookup, suffix = of_run("transformers", tmp_path / "run")
    assert lookup.lines[-1].endswith("custom_generate('lookup', planner=\"adaptive\"))")
    assert suffix.lines[-1].endswith("custom_generate('suffix', planner=\"calibrated\"))")


@pytest.mark.parametrize("engine", ENGINES)
def test_options_of_lookup_that_do_not_carry_over(engine: str) -> None:
    assert any("no equivalent of chain and next" in note for note in asked(engine, "lookup:chain=true,next=2").notes)
    assert not any("no equivalent of" in note for note in asked(engine, "lookup").notes)


def test_what_is_printed_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but the flags is a comment, in a shell and in Python."""
    for engine in ENGINES:
        code, out, error = say(["export", engine, "assistant", "-md", MODEL, "--num-draft-tokens", "3"], capsys)
        assert (code, error) == (0, "")
        bare = [line for line in out.splitlines() if not line.startswith("#")]
        assert out.startswith(bare[0] + "\n"), "what is to be pasted comes first"
        assert bare == [line for line in asked(engine, "assistant", 3).lines if not line.startswith("#")]
    compile(out, "printed", "exec")
    _, out, _ = say(["export", "vllm", "suffix"], capsys)
    assert sum(not line.startswith("#") for line in out.splitlines()) == 1, "one command and no other"
