"""GGUF files where llama.cpp is not installed: transformers reads them, and what it would leave out is refused."""

import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from gguf_models import bundled, gap
from paceline.cli import main
from paceline.errors import DamagedFile, InputError, MissingPackage, UnsupportedModel
from paceline.targets.base import Request, Want
from paceline.targets.gguf import contents, dequantised, library
from paceline.targets.gguf.export import SAMPLES, export_gguf
from paceline.targets.gguf.load import load_file_tokenizer, without_llama_cpp
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.targets.replay import open_vocabulary
from test_gguf_export import CLOSE, FAMILIES, saved, with_tokenizer
from tokenizer_kinds import REAL, TEXTS

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

PROMPT = "Once upon a time there was a small boat. The small boat"


@pytest.fixture(autouse=True)
def no_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    yield
    library.library.cache_clear()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, in folders of its own so that no other file can be read."""
    folder = tmp_path_factory.mktemp("files")
    for kind in ("f32", "q8_0"):
        export_gguf("pocket", folder / f"{kind}.gguf", kind)
    return folder


def test_llama_cpp_is_hidden_here() -> None:
    assert "pip install 'paceline[gguf]'" in str(without_llama_cpp())


def test_a_file_in_floats_is_the_original(files: Path) -> None:
    target, tokenizer = open_model(files / "f32.gguf", device="cpu")
    original, _ = open_model("pocket", device="cpu")
    assert isinstance(target, HFTarget)
    assert target.bundled == "pocket"
    assert (target.dtype, target.eos, target.context_length) == ("float32", original.eos, original.context_length)
    _, expected = bundled("pocket")
    assert open_vocabulary(files / "f32.gguf").fingerprint == expected.fingerprint
    assert [tokenizer.encode(text) for text in TEXTS] == [expected.encode(text).tolist() for text in TEXTS]
    lm, ours = paceline.load(files / "f32.gguf", device="cpu"), paceline.load("pocket", device="cpu")
    how: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_new_tokens": 40}
    plain = ours.generate(PROMPT, method="plain", **how).tokens
    for method in ("plain", "lookup", "suffix", "auto"):
        assert lm.generate(PROMPT, method=method, **how).tokens == plain


def test_the_status_line_says_what_it_means_and_costs(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "generate",
        PROMPT,
        "--model",
        str(files / "q8_0.gguf"),
        "--device",
        "cpu",
        "-n",
        "8",
        "--temperature",
        "0",
    ]
    assert main([*given, "--quantize", "int8"]) == 0
    error = capsys.readouterr().err
    said = "is computed here in {}, from 1.1 bytes a weight (GGUF files need llama-cpp-python: pip"
    assert said.format("int8") in error
    assert "Converting" not in error
    assert main(given) == 0
    assert said.format("float32") in capsys.readouterr().err


def test_types_and_integers_are_as_asked(files: Path) -> None:
    assert open_model(files / "q8_0.gguf", device="cpu", dtype="bfloat16")[0].dtype == "bfloat16"
    whole = open_model(files / "q8_0.gguf", device="cpu", quantize="int8")[0]
    assert whole.dtype == "int8"
    with pytest.raises(InputError, match="leave dtype out"):
        open_model(files / "q8_0.gguf", device="cpu", quantize="int8", dtype="bfloat16")


def held() -> int:
    """Megabytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_was_freed_on_the_way_to_integers_is_given_back(files: Path) -> None:
    blocks = [np.ones(8000) for _ in range(4000)]
    kept = blocks[::100]  # so that nothing is at the end of the heap
    del blocks
    before = held()
    open_model(files / "q8_0.gguf", device="cpu", quantize="int8")
    assert held() < before - 100
    assert len(kept) == 40


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_the_original(name: str, tmp_path: Path) -> None:
    """Beyond the trained length of rotations that are stretched, too."""
    folder = saved(tmp_path / "model", name, **FAMILIES[name])
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / "m.gguf"
    export_gguf(str(folder), file, "f32", tokenizer=False)
    target, tokenizer = open_model(file, device="cpu")
    assert tokenizer is None
    line = torch.from_numpy(np.random.default_rng(3).integers(3, 400, 150))[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)(line).logits[0].numpy()
        found = target.model(line).logits[0].numpy()  # type: ignore[union-attr]
    assert gap(found, expected) < CLOSE
    rows = target.open()
    scores = target.score([Request.of_prompt(rows, line[0].numpy(), Want(logits=True))])[0]
    assert gap(np.asarray(scores.logits), expected) < CLOSE
    assert target.eos == {2}


@pytest.mark.parametrize("name", ["llama", "llama, llama3", "qwen2"])
def test_transformers_own_reader_agrees_or_the_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the families that are not written here."""
    folder = saved(tmp_path / "model", name, **FAMILIES[name])
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / "m.gguf"
    export_gguf(str(folder), file, "f32", tokenizer=False)
    ours = open_model(file, device="cpu")[0].model.state_dict()  # type: ignore[union-attr]
    monkeypatch.setattr(dequantised, "read_model", lambda *_: None)
    if name == "llama, llama3":
        with pytest.raises(UnsupportedModel, match="stretches its positions, which transformers' reader leaves out"):
            open_model(file, device="cpu")
        return
    theirs = open_model(file, device="cpu")[0].model.state_dict()  # type: ignore[union-attr]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_values_that_transformers_leaves_out_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "model", "llama with biases", **FAMILIES["llama with biases"])
    export_gguf(str(folder), tmp_path / "m.gguf", "f32", tokenizer=False)
    monkeypatch.setattr(dequantised, "read_model", lambda *_: None)
    with pytest.raises(UnsupportedModel, match=r"transformers reads \d+ of the \d+ values in .*would compute another"):
        open_model(tmp_path / "m.gguf", device="cpu")


def test_positions_that_are_stretched_in_another_way_are_refused(tmp_path: Path) -> None:
    name = "qwen2, yarn"
    folder = saved(tmp_path / "model", name, **FAMILIES[name])
    export_gguf(str(folder), tmp_path / "m.gguf", "f32", tokenizer=False)
    content = (tmp_path / "m.gguf").read_bytes()
    for known, other in ((b"yarn", b"gnar"), (b"qwen2.rope.scaling.factor", b"qwen2.rope.scaling.fuctor")):
        assert known in content
        (tmp_path / "m.gguf").write_bytes(content.replace(known, other))
        with pytest.raises(UnsupportedModel, match="stretches its positions, which transformers' reader leaves out"):
            open_model(tmp_path / "m.gguf", device="cpu")


def rewritten(file: Path, fields: dict[str, float | str]) -> Path:
    """A copy of a file in which other things are said of stretched positions."""
    reader = gguf.GGUFReader(file)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(file.with_name("rewritten.gguf"), kind)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture", f"{kind}.rope.scal")):
            writer.add_key_value(key, field.contents(), field.types[0])
    for key, value in fields.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(f"{kind}.rope.{key}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file.with_name("rewritten.gguf")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"scaling.factor": 4.0}, "linear"),
        ({"scale_linear": 4.0}, "linear"),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.type": "linear"}, None),
        ({"scaling.type": "yarn", "scaling.factor": 4.0}, "yarn"),
    ],
    ids=str,
)
def test_what_is_left_out_of_stretched_positions_is_as_llama_cpp_has_it(
    said: dict[str, float | str], kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factor alone stretches, by whichever name. Transformers' reader would leave it out."""
    stretched = {"rope_parameters": {"rope_type": kind, "factor": 4.0, "rope_theta": 10_000.0}} if kind else {}
    folder = saved(tmp_path / "model", "llama", **stretched)
    export_gguf(str(folder), tmp_path / "m.gguf", "f32", tokenizer=False)
    (tmp_path / "files").mkdir()
    file = rewritten(tmp_path / "m.gguf", said).rename(tmp_path / "files" / "m.gguf")
    target, _ = open_model(file, device="cpu")
    line = torch.from_numpy(np.random.default_rng(3).integers(3, 400, 150))[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)(line).logits[0].numpy()
        found = target.model(line).logits[0].numpy()  # type: ignore[union-attr]
    assert gap(found, expected) < CLOSE
    monkeypatch.setattr(dequantised, "read_model", lambda *_: None)
    if kind is not None:
        with pytest.raises(UnsupportedModel, match="stretches its positions, which transformers' reader leaves out"):
            open_model(file, device="cpu")


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "mistral-v3", "bielik-v3-APT4"])
def test_real_tokenizers_split_alike(name: str, tmp_path: Path) -> None:
    if not (REAL / name).exists():
        pytest.skip(f"{REAL / name} is not there")
    own = AutoTokenizer.from_pretrained(REAL / name, trust_remote_code=False)
    folder = with_tokenizer(tmp_path / "model", own, eos_token_id=None)
    export_gguf(str(folder), tmp_path / "m.gguf", "q8_0")
    found = load_file_tokenizer(tmp_path / "m.gguf")
    for text in (*TEXTS, *SAMPLES, Path(__file__).read_text(encoding="utf8")):
        ids = own.encode(text)
        assert found.encode(text) == ids
        assert found.decode(ids, skip_special_tokens=True) == own.decode(ids, skip_special_tokens=True)


def test_a_chat_is_rendered_and_every_end_is_known(tmp_path: Path) -> None:
    from test_gguf_export import chatting

    own, folder, first = chatting(tmp_path / "model")
    export_gguf(str(folder), tmp_path / "m.gguf", "f16")
    target, tokenizer = open_model(tmp_path / "m.gguf", device="cpu")
    assert target.eos == {first, 5}
    messages = [{"role": "user", "content": "Hello"}]
    given: Any = {"tokenize": False}
    assert tokenizer.apply_chat_template(messages, **given) == own.apply_chat_template(messages, **given)
    assert tokenizer.encode("a<|turn|>b") == own.encode("a<|turn|>b")


# --- what is refused ----------------------------------------------------------------------------------------


def test_an_architecture_that_transformers_does_not_read(tmp_path: Path, files: Path) -> None:
    content = (files / "q8_0.gguf").read_bytes().replace(b"llama", b"lluma")
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(
        UnsupportedModel, match="has the architecture 'lluma', which transformers does not read; install"
    ):
        open_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("package", contents.PACKAGES)
def test_packages_that_are_missing_are_named(package: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingPackage, match=rf"paceline\[gguf\].*transformers, with pip install {package}; or give"):
        open_model(files / "q8_0.gguf")


def test_damage_and_files_in_parts_are_one_sentence(tmp_path: Path, files: Path) -> None:
    whole = (files / "q8_0.gguf").read_bytes()
    odd = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + b"\xff" * 999
    for name, content in {
        "cut": whole[: len(whole) // 2],
        "short": whole[:2000],
        "odd": odd,
        "end": whole[:-64],
    }.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(DamagedFile, match="is damaged") as refused:
            open_model(path, device="cpu")
        assert "\n" not in str(refused.value)
    for part in (1, 2):
        (tmp_path / f"m-0000{part}-of-00002.gguf").write_bytes(whole)
    with pytest.raises(UnsupportedModel, match="is the first of 2 files, and only one is read here; install"):
        open_model(tmp_path / "m-00001-of-00002.gguf")


def test_a_model_that_does_not_fit_in_floats_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "host_memory", lambda: 10_000_000)
    with pytest.raises(InputError, match=r"needs 0\.0 GB of memory and 0\.0 GB are free; give --dtype bfloat16"):
        open_model(files / "q8_0.gguf", device="cpu")
    with pytest.raises(InputError, match=r"are free; install llama\.cpp"):  # integers have no --dtype
        open_model(files / "q8_0.gguf", device="cpu", quantize="int8")
