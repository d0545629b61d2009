"""Model folders that are damaged, incomplete, or bring code: one sentence for each, and no text that means nothing."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import families
import paceline
from paceline.cli import main
from paceline.targets.hf.load import load_target
from paceline.targets.trust import trusts_all
from paceline_lab.bench.times.forwards import bytes_of_token
from paceline_lab.check.tiny import build as tiny_model
from paceline_lab.check.tiny import configuration
from thinning import thinned

Damage = Callable[[Path], object]

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TEXTS = (CONFIG, GENERATION, TOKENIZER, SETTINGS, "special_tokens_map.json", "added_tokens.json")
HUGE = 10**12

CONTENTS: dict[str, str | bytes] = {
    "null": "null",
    "a list": "[]",
    "a number": "7",
    "cut": '{"model_type": "lla',
    "empty": "",
    "no text": b"\xff\xfe\x00",
    "too deep": "[" * 100_000,
}
FIELDS: dict[str, dict[str, list[Any]]] = {
    CONFIG: {
        "hidden_size": ["64", -64, 0, 63, 64.5, [64], None, HUGE],
        "num_attention_heads": [0, -4, "4", 3],
        "num_key_value_heads": [0, "2"],
        "num_hidden_layers": [0, -1, "3", None, HUGE],
        "vocab_size": [0, -1, "x", HUGE],
        "intermediate_size": ["x", HUGE],
        "head_dim": [0, 15, "16"],
        "max_position_embeddings": [0, "x"],
        "rope_parameters": ["x", {"rope_type": "nonsense"}, {"rope_type": "yarn"}],
        "hidden_act": ["nonsense", 5],
        "eos_token_id": ["x", [[1]]],
        "pad_token_id": [10**6],
        "tie_word_embeddings": ["maybe"],
        "dtype": ["float7", 5],
        "layer_types": [["nonsense"], 5],
        "per_layer_config": [{"0": {"intermediate_size": 32}}, {"0": {"num_hidden_layers": 1}}, 5],
        "id2label": [5],
        "n_layer": [HUGE],
        "text_config": [5, {"num_hidden_layers": HUGE}],
        "model_type": ["nonsense", None],
    },
    GENERATION: {"eos_token_id": ["x", [[1]], {"a": 1}], "watermarking_config": [5]},
    SETTINGS: {
        "tokenizer_class": [5],
        "auto_map": [5, [], {"AutoTokenizer": 5}],
        "eos_token": [5, {"content": 5}],
        "model_max_length": ["x"],
        "added_tokens_decoder": [5],
        "chat_template": [["x"]],
    },
    TOKENIZER: {"model": [None, {"type": "Nonsense"}], "added_tokens": [5]},
}
TENSORS = {
    "cut": lambda whole: whole[:5000],
    "cut in its header": lambda whole: whole[:100],
    "empty": lambda whole: b"",
    "noise": lambda whole: b"\x07" * 999,
    "with a huge header": lambda whole: struct.pack("<Q", 2**62) + whole[8:],
    "with a list for a header": lambda whole: struct.pack("<Q", 2) + b"[]",
}
INDEXES: dict[str, Any] = {
    "no metadata": {"weight_map": {"lm_head.weight": WEIGHTS}},
    "no map": {"metadata": {}},
    "a list for a map": {"metadata": {}, "weight_map": [1]},
    "numbers for files": {"metadata": {}, "weight_map": {"lm_head.weight": 5}},
    "a file that is not there": {"metadata": {}, "weight_map": {"lm_head.weight": "part-2.safetensors"}},
}


def put(file: str, content: str | bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())


def change(file: str, **fields: Any) -> Damage:
    return lambda folder: put(file, json.dumps(json.loads((folder / file).read_text()) | fields))(folder)


def without(file: str) -> Damage:
    return lambda folder: (folder / file).unlink(missing_ok=True)


def instead(file: str, make: Callable[[Path], object]) -> Damage:
    return both(without(file), lambda folder: make(folder / file))


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def damages() -> Iterator[tuple[str, Damage, str, str]]:
    """What is wrong, how to bring it about, and two things that the sentence says."""
    for file in TEXTS:
        for what, content in CONTENTS.items():
            yield f"{file} {what}", put(file, content), file, ""
    for file in (*TEXTS, TEMPLATE, WEIGHTS):
        yield f"{file} a directory", instead(file, Path.mkdir), file, ""
        yield f"{file} a link to itself", instead(file, lambda path: path.symlink_to(path)), file, ""
    for file, fields in FIELDS.items():
        for field, values in fields.items():
            for value in values:
                known = "" if file == TOKENIZER else field
                yield f"{file} {field}={value}", change(file, **{field: value}), file, known.removesuffix("_type")
    for what, cut in TENSORS.items():
        yield f"weights {what}", lambda to, cut=cut: put(WEIGHTS, cut((to / WEIGHTS).read_bytes()))(to), WEIGHTS, ""
    for what, index in (INDEXES | {"a list": [1]}).items():
        yield f"index {what}", both(without(WEIGHTS), put(INDEX, json.dumps(index))), INDEX, ""
    for what, content in (("noise", b"\x80\x02x"), ("empty", b"")):
        yield f"pickle {what}", both(without(WEIGHTS), put("pytorch_model.bin", content)), "pytorch_model.bin", ""
    yield "no weights", without(WEIGHTS), WEIGHTS, ""
    yield "no config.json", without(CONFIG), CONFIG, "it has none"
    yield "no tokenizer.json", without(TOKENIZER), TOKENIZER, ""
    yield "a template that is no text", put(TEMPLATE, b"\xff{{"), TEMPLATE, ""
    yield "vocab.json", both(without(TOKENIZER), put("vocab.json", "{"), put("merges.txt", "")), "vocab.json", ""
    yield "no token", change(TOKENIZER, model={"type": "BPE", "vocab": {}, "merges": []}), "tokenizer", "no tokens"
    yield "an empty folder", lambda folder: [path.unlink() for path in folder.iterdir()], CONFIG, "it has none"
    yield "a file", lambda folder: (shutil.rmtree(folder), folder.write_text("x")), CONFIG, "not a file"


DAMAGES = {what: rest for what, *rest in damages()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    families.save("llama", folder := tmp_path_factory.mktemp("model") / "whole")
    return folder


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def refused(capsys: pytest.CaptureFixture[str], *command: str | Path) -> str:
    """The one sentence with which a command ends; nothing else is said."""
    assert main([str(word) for word in command]) == 2
    said, error = capsys.readouterr()
    told = [line for line in error.splitlines() if line.startswith("paceline")]
    assert (said, len(told)) == ("", 1)
    return told[0].partition(": error: ")[2]


@pytest.mark.parametrize("what", thinned(DAMAGES))
def test_a_damaged_folder_is_one_sentence_that_names_the_file_and_the_field(
    what: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, file, field = DAMAGES[what]
    damage(model)
    error = refused(capsys, "generate", "ab", "--model", model, "--max-new-tokens", "1", "--json")
    assert str(model) in error
    assert file in error
    assert field in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", [CONFIG, SETTINGS, TOKENIZER, WEIGHTS])
def test_a_file_that_may_not_be_read(file: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / file).chmod(0)
    assert file in refused(capsys, "generate", "ab", "--model", model)


@pytest.mark.parametrize("damage", [put(TEMPLATE, "{% if %}"), change(SETTINGS, chat_template="{% if %}")])
def test_a_template_that_does_not_parse(damage: Damage, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(model)
    error = refused(capsys, "chat", "--model", model, "--json")
    assert error.startswith(f"the chat template of {model} (chat_template.jinja, or chat_template in tokenizer_config")


# --- layers that differ ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 4, whose full layers have other heads than the rest: the configuration names no size for all."""
    config = configuration("gemma4_text", "small")
    assert config is not None
    tiny_model(config).save_pretrained(folder := tmp_path_factory.mktemp("model") / "uneven")
    assert {"head_dim": 512} in json.loads((folder / CONFIG).read_text())["per_layer_config"].values()
    return folder


def test_a_model_whose_layers_differ_opens(uneven: Path) -> None:
    target = load_target(uneven)
    heads = [layer.self_attn for layer in target.model.model.layers]
    keys = [len(one.k_proj.weight) for one in heads if hasattr(one, "k_proj")]
    assert sorted(set(keys)) == [2 * 16, 2 * 512]
    assert bytes_of_token(target, 8) - bytes_of_token(target, 0) == 8 * 4 * sum(2 * width for width in keys)
    assert bytes_of_token(target, 8, sequences=3) == bytes_of_token(target, 24)


UNEVEN: dict[str, tuple[dict[str, Any], str]] = {
    "no width": ({"head_dim": 0}, "head_dim is 0, and must be at least 1"),
    "windows": ({"head_dim": 512, "sliding_window": 4}, "has layers that differ in sliding_window, which is not"),
}


@pytest.mark.parametrize("what", UNEVEN)
def test_layers_that_differ_in_what_cannot_be_are_refused(what: str, uneven: Path, tmp_path: Path) -> None:
    layer, sentence = UNEVEN[what]
    model = Path(shutil.copytree(uneven, tmp_path / "model"))
    change(CONFIG, per_layer_config={"3": layer})(model)
    with pytest.raises(paceline.InputError, match=sentence):
        load_target(model)


# --- every tensor of the model comes from the checkpoint ------------------------------------------------------


def tensors(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    return lambda to: save_file(change(load_file(to / WEIGHTS)), to / WEIGHTS, metadata={"format": "pt"})


GAPS: dict[str, tuple[Damage, str]] = {
    "one is missing": (tensors(lambda all_: {n: all_[n] for n in all_ if n != "model.norm.weight"}), "model.norm.wei"),
    "a head is missing": (tensors(lambda all_: {n: all_[n] for n in all_ if n != "lm_head.weight"}), "lm_head.weight"),
    "another model": (change(CONFIG, model_type="bert"), "lack 60 of the tensors"),
    "another layer": (change(CONFIG, num_hidden_layers=4), "lack 9 of the tensors"),
    "biases": (change(CONFIG, attention_bias=True), "lack 12 of the tensors"),
    "another width": (change(CONFIG, hidden_size=32), "lm_head.weight is 320 x 64, not 320 x 32"),
    "a smaller vocabulary": (change(CONFIG, vocab_size=100), "have 2 tensors of other shapes"),
}


@pytest.mark.parametrize("what", GAPS)
@pytest.mark.parametrize("flag", ["--model", "--draft-model"])
def test_tensors_that_would_be_filled_at_random_are_refused(
    what: str, flag: str, whole: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, named = GAPS[what]
    damage(model)
    both = {"--model": whole, "--draft-model": whole} | {flag: model}
    error = refused(capsys, "generate", "ab", *(word for pair in both.items() for word in pair))
    assert f"the weights of {model}" in error
    assert named in error


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_what_is_tied_or_computed_may_be_absent(family: str, tmp_path: Path) -> None:
    model = families.build(family, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / WEIGHTS)
    assert load_target(tmp_path).fingerprint() == load_target(model).fingerprint()


def test_tensors_that_the_model_has_no_place_for_are_told_and_left_out(model: Path, whole: Path) -> None:
    tensors(lambda all_: all_ | {"mtp.head.weight": all_["model.norm.weight"].clone()})(model)
    with pytest.warns(UserWarning, match=r"has no place for 1 of the tensors in its weights \(mtp.head.weight\)"):
        found = load_target(model)
    assert found.fingerprint() == load_target(whole).fingerprint()


# --- code that a folder brings ------------------------------------------------------------------------------

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({mark!r}).touch()

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
OWN_MODEL = change(
    CONFIG, model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
)
OWN_TOKENIZER = change(SETTINGS, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})
GENERATE = ("generate", "ab", "--max-new-tokens", "2", "--model")
DRAFTED = ("generate", "ab", "--max-new-tokens", "2", "--model", "WHOLE", "--draft-model")
STORE = ("datastore", "build", "--text", "TEXT", "--out", "OUT", "--tokenizer")
DOORS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "generate": (OWN_MODEL, (*GENERATE, "MODEL")),
    "its tokenizer": (OWN_TOKENIZER, (*GENERATE, "MODEL")),
    "chat --json": (OWN_TOKENIZER, ("chat", "--max-new-tokens", "2", "--json", "--model", "MODEL")),
    "a draft model": (OWN_MODEL, (*DRAFTED, "MODEL")),
    "a method's model": (OWN_MODEL, (*GENERATE, "WHOLE", "--method", "assistant:model=MODEL")),
    "datastore": (OWN_TOKENIZER, (*STORE, "MODEL")),
}


@pytest.fixture
def mark(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that shows that the code ran. A question would be answered with yes."""
    place = tmp_path / "it-ran"
    (model / "own.py").write_text(CODE.format(mark=str(place)))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(b"hello\n"), isatty=lambda: False))
    return place


@pytest.mark.parametrize("door", DOORS)
def test_code_runs_with_consent_and_not_without(
    door: str, whole: Path, model: Path, mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring, command = DOORS[door]
    bring(model)
    (tmp_path / "text").write_text("the rider in front breaks the wind")
    for name, path in {"MODEL": model, "WHOLE": whole, "TEXT": tmp_path / "text", "OUT": tmp_path / "out"}.items():
        command = tuple(word.replace(name, str(path)) for word in command)
    assert refused(capsys, *command).startswith(f"{model} brings its own Python code, which is not run unless")
    assert not mark.exists()
    assert main([*command, "--trust-remote-code"]) == 0
    assert mark.exists()
    assert not trusts_all(), "consent ends with the command"


@pytest.mark.parametrize("bring", [OWN_MODEL, OWN_TOKENIZER])
def test_the_library_asks_for_consent_too(bring: Damage, model: Path, whole: Path, mark: Path) -> None:
    bring(model)
    with pytest.raises(ValueError, match=r"not run unless you say so: .* paceline.load\(..., trust_remote_code=True\)"):
        paceline.load(model)
    lm = paceline.load(model, trust_remote_code=True)
    assert mark.exists()
    assert lm.generate("ab", max_new_tokens=4).tokens == paceline.load(whole).generate("ab", max_new_tokens=4).tokens


def test_a_known_type_needs_no_code_of_its_own(model: Path, mark: Path) -> None:
    change(CONFIG, auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})(model)
    change(SETTINGS, auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})(model)
    assert paceline.load(model).generate("ab", max_new_tokens=2).tokens
    assert not mark.exists()
