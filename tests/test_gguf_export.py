"""``paceline export gguf``: files that llama.cpp computes as transformers does the original, whole or not at all."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import paceline
from gguf_models import bundled, file_of, gap, needs_llama, read
from paceline.drafters.networks.fitting import state_width
from paceline.drafters.networks.redrafter.fitting import head_for
from paceline.errors import DefectError, InputError, MissingPackage, UnsupportedModel
from paceline.targets.base import Want
from paceline.targets.gguf import export, library
from paceline.targets.gguf.export import export_gguf
from paceline.targets.gguf.kinds import MADE, WRITTEN
from paceline.targets.gguf.open import open_gguf
from paceline.targets.gguf.spelling import SPLITTING
from paceline.targets.load import open_model
from paceline.vocabulary import Vocabulary
from paceline_lab.check.tiny import redraw
from test_cli import say
from test_docs import ROOT, commands
from tokenizer_kinds import REAL, REAL_NAMES, TEXTS

pytestmark = needs_llama

LARGE = ("gpt2", "llama3", "mistral-nemo-tekken", "qwen2-2.5-3")
"""Tokenizers that take seconds to load."""
CLOSE = 1e-4
"""Of a row's deviation: what kernels of other shapes may change in float32."""
SMALL = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 5e5,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama, untied, linear": {"tie_word_embeddings": False, "rope_parameters": LINEAR, "head_dim": 32},
    "llama, llama3": {"rope_parameters": LLAMA3},
    "mistral": {"sliding_window": None},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2, yarn": {"rope_parameters": YARN},
    "qwen3": {"head_dim": 32},
}


def saved(folder: Path, name: str, **more: Any) -> Path:
    """A tiny random model of a family, in a folder."""
    kind = name.split(",")[0].split(" ")[0]
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **SMALL | {"eos_token_id": 2, "bos_token_id": 1} | more)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    redraw(model, torch.Generator().manual_seed(1))
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_computes_what_transformers_computes(name: str, tmp_path: Path) -> None:
    """Beyond the trained length of rotations that are stretched, too."""
    folder = saved(tmp_path / "model", name, **FAMILIES[name])
    made = export_gguf(str(folder), tmp_path / "m.gguf", "f32", tokenizer=False)
    assert (made.type, made.context_length, made.tokenizer) == ("F32", 256, "none")
    target = open_gguf(tmp_path / "m.gguf", device="cpu")[0]
    line = np.random.default_rng(3).integers(3, 400, 150)
    rows = target.open()
    found = read(target, rows, line, Want(logits=True)).logits
    rows.close()
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    with torch.no_grad():
        expected = model(torch.from_numpy(line)[None]).logits[0].numpy()
    assert gap(found, expected) < CLOSE
    assert target.eos == {2}


@pytest.mark.parametrize("kind", [*WRITTEN, "Q4_K_M", "Q6_K", "IQ4_NL"])
def test_every_type_is_that_of_the_file_and_near_the_original(kind: str, tmp_path: Path) -> None:
    """Matrices whose rows no block divides are in other types, and this is said."""
    file = tmp_path / "pocket.gguf"
    made = export_gguf("pocket", file, kind.lower())
    assert (made.type, made.bytes, made.tokenizer) == (kind, file.stat().st_size, "checked")
    assert len(made.notes) == (MADE.get(kind) == 256)
    assert all("8 of 57 matrices have rows of 704 values, which 256 does not divide" in note for note in made.notes)
    target = open_gguf(file, device="cpu")[0]
    named = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    assert target.dtype == named.get(kind, kind)
    assert target.parameters == made.parameters
    line = np.random.default_rng(1).integers(1, 8000, 40)
    rows = target.open()
    found = read(target, rows, line, Want(logits=True)).logits
    rows.close()
    with torch.no_grad():
        expected = bundled("pocket")[0](torch.from_numpy(line)[None]).logits[0].numpy()
    apart = float(np.sqrt(np.square(found - expected).mean()) / expected.std())
    most = {"F32": 1e-5, "F16": 5e-3, "BF16": 1e-2, "Q8_0": 0.02, "Q6_K": 0.05}.get(kind, 0.3)
    assert apart < most, apart


def test_a_file_is_the_same_whoever_asks_for_it(tmp_path: Path) -> None:
    """Tests, the peers of benchmarks and the command have one writer."""
    export_gguf("pocket", tmp_path / "pocket.gguf", "f32")
    assert (tmp_path / "pocket.gguf").read_bytes() == file_of().read_bytes()


def test_ballast_is_the_same_function(tmp_path: Path) -> None:
    made = export_gguf("pocket-draft+ballast:20M", tmp_path / "wide.gguf", "f32")
    assert made.parameters > 19e6
    wide, small = (open_gguf(path, device="cpu")[0] for path in (tmp_path / "wide.gguf", file_of("pocket-draft")))
    line, found = np.random.default_rng(1).integers(1, 8000, 30), []
    for target in (wide, small):
        rows = target.open()
        found.append(read(target, rows, line, Want(logits=True)).logits)
        rows.close()
    assert gap(*found) < CLOSE
    with pytest.raises(UnsupportedModel, match=r"has the tensor lm_head.bias, which llama.cpp does not read"):
        export_gguf("pocket-draft+ballast:20M/10k", tmp_path / "no.gguf")


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_a_twin_takes_the_head_of_its_bundled_model(kind: str, tmp_path: Path) -> None:
    """The file says of which model it was made, also behind llama.cpp's quantiser; the head is widened for it."""
    name = "pocket+ballast:80M"
    export_gguf(name, tmp_path / "twin.gguf", kind)
    lm = paceline.load(tmp_path / "twin.gguf")
    assert lm.target.bundled == name
    assert state_width(lm.target) == 4 * state_width(open_model("pocket", device="cpu")[0])
    given: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 40, "seed": 5}
    plain = lm.generate("Once upon a time there was a small boat", method="plain", **given)
    drafted = lm.generate("Once upon a time there was a small boat", method="redrafter", planner="fixed:8", **given)
    assert len(drafted.rounds) < 0.8 * len(plain.rounds)
    assert kind != "f32" or drafted.tokens == plain.tokens


def test_the_origin_goes_through_llama_cpps_quantiser_and_a_file_of_another_model_has_none(tmp_path: Path) -> None:
    export_gguf("pocket", tmp_path / "q4.gguf", "q4_k_m")
    assert open_gguf(tmp_path / "q4.gguf", device="cpu")[0].bundled == "pocket"
    folder = saved(tmp_path / "other", "llama")
    export_gguf(str(folder), tmp_path / "other.gguf", "f32", tokenizer=False)
    target = open_gguf(tmp_path / "other.gguf", device="cpu")[0]
    assert target.bundled == ""
    with pytest.raises(InputError, match=r"no head for .*other\.gguf comes with paceline"):
        head_for("shipped", target)


# --- tokenizers ---------------------------------------------------------------------------------------------


def with_tokenizer(folder: Path, tokenizer: Any, **more: Any) -> Path:
    shape = {"vocab_size": Vocabulary(tokenizer).size, "hidden_size": 32, "num_hidden_layers": 1}
    saved(folder, "llama", **shape | {"tie_word_embeddings": True, "bos_token_id": None} | more)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in REAL_NAMES]
)
def test_real_tokenizers_split_alike(name: str, tmp_path: Path) -> None:
    if not (REAL / name).exists():
        pytest.skip(f"{REAL / name} is not there")
    own = AutoTokenizer.from_pretrained(REAL / name, trust_remote_code=False)
    folder = with_tokenizer(tmp_path / "model", own)
    assert export_gguf(str(folder), tmp_path / "m.gguf", "q8_0").tokenizer == "checked"
    found = open_gguf(tmp_path / "m.gguf", device="cpu")[1]
    assert found is not None
    for text in (*TEXTS, *export.SAMPLES, Path(__file__).read_text(encoding="utf8")):
        assert found.encode(text) == own.encode(text)


def chatting(folder: Path) -> tuple[Any, Path, int]:
    """A tokenizer with a template and two special tokens more, a model with it, and the first of these."""
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(bundled("pocket")[1].backend.to_str()),
        bos_token="<|end|>",
        eos_token="<|turn|>",
        pad_token="<|pad|>",
    )
    own.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    first = len(own) - 2
    return own, with_tokenizer(folder, own, eos_token_id=[first, 5], pad_token_id=first + 1), first


def test_ends_special_tokens_and_chats_are_kept(tmp_path: Path) -> None:
    own, folder, first = chatting(tmp_path / "model")
    export_gguf(str(folder), tmp_path / "m.gguf", "f16")
    target, tokenizer = open_gguf(tmp_path / "m.gguf", device="cpu")
    assert tokenizer is not None
    assert target.eos == {first, 5, 0}, "llama.cpp knows <|end|> by its name"
    messages = [{"role": "user", "content": "Hello"}]
    given: Any = {"tokenize": False}
    assert tokenizer.apply_chat_template(messages, **given) == own.apply_chat_template(messages, **given)
    assert tokenizer.encode("a<|turn|>b") == own.encode("a<|turn|>b")


def lower(rule: Tokenizer) -> None:
    rule.normalizer = normalizers.Lowercase()


def pattern(rule: Tokenizer) -> None:
    split = pre_tokenizers.Split(Regex(r"\w+|\W"), "isolated")
    rule.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def prefix(rule: Tokenizer) -> None:
    rule.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lower, "it changes texts by Lowercase"),
        (pattern, "no name that is known here for the pattern"),
        (prefix, "does not read the bytes of a text as they are"),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_have_is_one_sentence(
    change: Callable[[Tokenizer], None], said: str, tmp_path: Path
) -> None:
    rule = Tokenizer.from_str(bundled("pocket")[1].backend.to_str())
    change(rule)
    folder = with_tokenizer(tmp_path / "model", PreTrainedTokenizerFast(tokenizer_object=rule))
    with pytest.raises(UnsupportedModel, match=rf"{said}.*; write the file without it, with --no-tokenizer") as refused:
        export_gguf(str(folder), tmp_path / "m.gguf")
    assert "\n" not in str(refused.value)
    assert export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False).tokenizer == "none"


def test_a_tokenizer_that_splits_otherwise_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = {"dbrx": SPLITTING["qwen2"], "qwen2": SPLITTING["dbrx"]}
    for name, pattern in swapped.items():
        monkeypatch.setitem(SPLITTING, name, pattern)
    with pytest.raises(InputError, match=r"llama.cpp splits a text otherwise than this tokenizer: at token"):
        export_gguf("pocket", tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


# --- what is refused, and what is left behind ---------------------------------------------------------------


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.gguf"
    written = list[int]()

    def interrupted(doing: str, done: int, total: int) -> None:
        written.append(done)
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_gguf("pocket", out, "f16", advance=interrupted)
    assert written[-1] == 20
    assert list(tmp_path.iterdir()) == []
    export_gguf("pocket-draft", out)
    before = out.read_bytes()
    with pytest.raises(InputError, match="is there already; give another --out, or --force"):
        export_gguf("pocket", out)
    with pytest.raises(KeyboardInterrupt):
        export_gguf("pocket", out, force=True, advance=interrupted)
    assert out.read_bytes() == before
    export_gguf("pocket", out, force=True)
    assert out.read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_disk_without_room_is_seen_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"needs 0\.0 GB on a disk with 0\.0 GB free"):
        export_gguf("pocket", tmp_path / "m.gguf")


def test_without_the_packages_a_sentence_says_how_to_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingPackage, match=r"q4_k_m is made by llama.cpp .*paceline\[gguf\].*q8_0, q5_0, q4_0 are"):
        export_gguf("pocket", tmp_path / "m.gguf", "q4_k_m")
    assert export_gguf("pocket-draft", tmp_path / "m.gguf").tokenizer == "unchecked"
    monkeypatch.undo()
    library.library.cache_clear()
    monkeypatch.setattr(export, "need", lambda *given: missing(*given))
    with pytest.raises(MissingPackage, match="writing a GGUF file"):
        export_gguf("pocket", tmp_path / "n.gguf")


def missing(package: str, purpose: str, extra: str) -> None:
    raise MissingPackage(f"{purpose} needs {package}: pip install 'paceline[{extra}]'")


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("gpt_neox", {}, "is a gpt_neox model, and GGUF files are written here of llama, mistral, qwen2, qwen3"),
        ("llama", {"hidden_act": "gelu"}, "has the activation gelu, and llama.cpp has silu in this family"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "by 'dynamic'"),
        ("qwen3", {"attention_bias": True, "head_dim": 32}, "has the tensor model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_a_model_that_llama_cpp_would_compute_otherwise_is_refused(
    name: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "model", name, **more)
    with pytest.raises(UnsupportedModel, match=said):
        export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False)


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "llama")
    with pytest.raises(InputError, match="has no tokenizer; write the file without it, with --no-tokenizer"):
        export_gguf(str(folder), tmp_path / "m.gguf")
    with pytest.raises(
        InputError, match=r"q4_k_m needs rows that are divisible by 256, and those .* have 64, 96 values"
    ):
        export_gguf(str(folder), tmp_path / "m.gguf", "q4_k_m", tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(InputError, match="is quantised already; use the original model, and name a --type"):
        export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"lack 9 of the tensors that config.json asks for"):
        export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False)
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(InputError, match=r"tensors of other shapes than config.json asks for"):
        export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no weights in \*\.safetensors"):
        export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_sliding_window_ends_the_context(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "mistral", sliding_window=100)
    made = export_gguf(str(folder), tmp_path / "m.gguf", tokenizer=False)
    assert made.context_length == 100 == open_gguf(tmp_path / "m.gguf", device="cpu")[0].context_length
    assert "texts end with 100 tokens" in made.notes[0]


def test_a_quantiser_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.library(), "llama_model_quantize", lambda *_: 1)
    with pytest.raises(DefectError, match=r"llama.cpp could not make q6_k weights: .*; choose another --type"):
        export_gguf("pocket", tmp_path / "m.gguf", "q6_k")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pocket.gguf"
    code, said, _ = say(["export", "gguf", "--model", "pocket", "--out", str(out), "--type", "q8_0", "--json"], capsys)
    printed = json.loads(said.splitlines()[-1])
    assert (code, printed["type"], printed["bytes"], printed["file"]) == (0, "Q8_0", out.stat().st_size, str(out))
    assert f"{out}: 8.8 MB, 8.0M parameters in Q8_0; the tokenizer was checked against llama.cpp" in said
    lm = paceline.load(out, device="cpu")
    assert lm.generate("Once upon a time", max_new_tokens=8, temperature=0.0).text
    code, _, error = say(["export", "gguf", "--out", str(out)], capsys)
    assert (code, error.count("\n"), "--force to replace it" in error) == (2, 1, True)


def test_the_commands_of_the_page_work_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for those that take long: a server, a check and a benchmark."""
    monkeypatch.chdir(tmp_path)
    quick = [shlex.split(line) for line in commands(ROOT / "docs" / "gguf.md") if " bench " not in line]
    quick = [line for line in quick if not {"serve", "check"} & {*line}]
    assert len(quick) >= 4
    for line in quick:
        code, said, error = say(line[1:], capsys)
        assert (code, bool(said)) == (0, True), error


def test_the_command_for_mlx_hands_the_target_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from types import ModuleType

    given = list[Any]()

    def export_mlx(target: Any, folder: Path, *, bits: int | None) -> None:
        given.extend([target.name, bits])
        folder.mkdir()

    module = ModuleType("export")
    monkeypatch.setattr(module, "export_mlx", export_mlx, raising=False)
    monkeypatch.setitem(sys.modules, "paceline.targets.mlx.export", module)
    command = ["export", "mlx", "--model", "pocket", "--out", str(tmp_path / "made"), "--bits", "4"]
    assert (say(command, capsys)[0], given) == (0, ["pocket", 4])
    code, _, error = say(command, capsys)
    assert (code, "is there already; give another --out" in error) == (2, True)
