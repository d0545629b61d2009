"""The models in the box: that they are there, whole, small, and reached by name without a network."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import LlamaForCausalLM

import paceline
from changes import scale_everything
from families import build
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.targets.pocket import bundle
from paceline.targets.pocket.bundle import (
    CHECKSUMS,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    BundledTokenizer,
    assembled,
    read_bundle,
    read_tokenizer,
)
from paceline.targets.pocket.names import POCKET_NAMES, is_bundled
from paceline.targets.pocket.target import BundledTarget
from paceline.vocabulary import Vocabulary
from scoring import CLOSE, apart, gap_to_own, scored_anew
from tools.pocket import MOST_BYTES, weight_bytes

AWKWARD = (
    "It was the best of times,  it was\tthe worst of times.\n\n\n  And so — «on».",
    "Zażółć gęślą jaźń, 2,718 złotych; ŻÓŁW.",
    "Їжак з'їв ґрунт. Об’єкт — 100 ₴.",
    "e\u0301 é ﬁ \u200b 👩‍👩‍👧 🇺🇦 中文 \x00\x7f\ufeff",
    " ",
    "\r\n \n",
    "<s> [INST] ``` {}",
    "",
)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of bundled models that may be damaged."""
    folder = tmp_path / "models"
    shutil.copytree(bundle.MODELS / "pocket-draft", folder / "pocket-draft")
    monkeypatch.setattr(bundle, "MODELS", folder)
    return folder / "pocket-draft"


@pytest.mark.parametrize("name", POCKET_NAMES)
def test_a_bundled_model_writes_without_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a bundled model asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    lm = paceline.load(name)
    assert lm.target.name == name
    written = lm.generate("It was", max_new_tokens=4, ignore_eos=True)
    assert len(written.tokens) == 4


def test_the_models_are_small_and_of_the_shapes_they_are_sold_as() -> None:
    assert weight_bytes(bundle.MODELS) <= MOST_BYTES
    sizes = {name: sum(w.numel() for w in bundle.read_bundle(name).weights.values()) for name in POCKET_NAMES}
    assert 7e6 < sizes["pocket"] < 9e6
    assert all(1e6 < sizes[name] < 2e6 for name in ("pocket-draft", "pocket-foreign"))


def test_the_card_tells_the_weights_that_are_shipped() -> None:
    card = (bundle.MODELS / "CARD.md").read_text(encoding="utf8")
    for name in POCKET_NAMES:
        assert open_model(name)[0].fingerprint() in card


def test_draft_and_target_speak_one_vocabulary_and_the_foreign_model_another() -> None:
    prints = [Vocabulary(read_tokenizer(name)).fingerprint for name in POCKET_NAMES]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("name", POCKET_NAMES)
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_comes_back_from_the_tokenizers(name: str, text: str) -> None:
    vocabulary = Vocabulary(read_tokenizer(name))
    assert vocabulary.text(vocabulary.encode(text)) == text


@pytest.mark.parametrize("name", POCKET_NAMES)
def test_every_token_has_a_known_spelling_and_the_text_can_end(name: str) -> None:
    target, tokenizer = open_model(name)
    assert tokenizer is not None
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.table is not None
    assert vocabulary.size == target.vocab_size
    assert target.eos == {tokenizer.eos_token_id}
    assert target.eos <= vocabulary.specials


def test_a_type_of_ones_own_holds_the_same_weights() -> None:
    shipped, wide = (open_model("pocket-draft", dtype=kind)[0] for kind in ("bfloat16", None))
    assert (shipped.dtype, wide.dtype) == ("bfloat16", "float32")
    for name, weight in shipped.model.state_dict().items():
        assert torch.equal(weight.float(), wide.model.state_dict()[name])


def test_transformers_itself_loads_the_folder_to_the_same_logits() -> None:
    from transformers import AutoModelForCausalLM

    ours = open_model("pocket-draft", dtype="float32")[0]
    theirs = AutoModelForCausalLM.from_pretrained(bundle.MODELS / "pocket-draft", dtype=torch.float32)
    tokens = torch.arange(3, 40)
    torch.testing.assert_close(ours.own.unassisted(tokens), HFTarget(theirs).own.unassisted(tokens), rtol=0, atol=1e-4)
    assert ours.fingerprint() == HFTarget(theirs).fingerprint() == open_model("pocket-draft")[0].fingerprint()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def garble(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [truncate, garble, Path.unlink])
@pytest.mark.parametrize("file", [WEIGHTS, CONFIG, CHECKSUMS, *TOKENIZER])
def test_damage_is_told_with_the_file_and_the_mend(copied: Path, file: str, harm: Any) -> None:
    harm(copied / file)
    with pytest.raises(ValueError, match=r"reinstall paceline to restore it$") as told:
        open_model("pocket-draft")
    assert file in str(told.value) or (file, harm) == (CHECKSUMS, garble)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("content", ["[]", "{}", json.dumps({WEIGHTS: 3}), "\x00"])
def test_checksums_that_are_none_are_damage(copied: Path, content: str) -> None:
    (copied / CHECKSUMS).write_text(content)
    with pytest.raises(ValueError, match=f"{CHECKSUMS} is garbled; reinstall"):
        open_model("pocket-draft")


def test_an_incomplete_installation_is_told(copied: Path) -> None:
    with pytest.raises(ValueError, match=r"is missing; reinstall"):
        open_model("pocket")


@pytest.mark.parametrize(("wrong", "meant"), [("pockett", "pocket"), ("pocket-draf", "pocket-draft"), ("Pocket", "")])
def test_a_misspelt_name_gets_a_hint(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{meant}.*Bundled are pocket, pocket-draft, pocket-foreign"):
        open_model(wrong)


def test_other_peoples_names_are_theirs() -> None:
    assert not any(is_bundled(name) for name in ("somebody/pocket-draft", "./pocket", "gpt2", ""))


def test_a_folder_of_a_bundled_name_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("llama").save_pretrained(tmp_path / "pocket")
    build("llama").save_pretrained(tmp_path / "pockett")
    monkeypatch.chdir(tmp_path)
    bundled = open_model("pocket")[0].fingerprint()
    folder = open_model("./pocket")[0].fingerprint()
    assert bundled != folder
    assert open_model(Path("pocket"))[0].fingerprint() == folder
    assert open_model("pockett")[0].fingerprint() == folder


def test_a_loaded_model_is_taken_as_it_is() -> None:
    model = build("llama")
    target, tokenizer = open_model(model)
    assert target.model is model
    assert tokenizer is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device_map": "auto"}, "pocket is built on one device; give device instead of device_map=auto"),
        ({"dtype": "float"}, "unknown dtype 'float'"),
        ({"device": "abacus"}, "device 'abacus' is not available"),
    ],
)
def test_wrong_options_are_told(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_model("pocket", **options)


@pytest.mark.parametrize("name", POCKET_NAMES)
def test_a_bundled_tokenizer_without_transformers_is_transformers_own(name: str) -> None:
    ours, whole = BundledTokenizer(name), read_tokenizer(name)
    assert ours.chat_template is whole.chat_template is None
    for text in AWKWARD:
        for special in (True, False):
            ids = whole.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
            assert ours.decode(ids, skip_special_tokens=special) == whole.decode(ids, skip_special_tokens=special)
    assert Vocabulary(ours).tokenizer.get_vocab() == whole.get_vocab(), "of everything else it is transformers' own"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bundled_model_without_transformers_is_transformers_llama(dtype: torch.dtype) -> None:
    """The same rows bit by bit, and the same identity, before and after somebody asks for transformers' model."""
    target, _ = open_model("pocket-draft", dtype=str(dtype).removeprefix("torch."))
    assert isinstance(target, BundledTarget)
    known = target.fingerprint(), target.eos, target.context_length
    before = scored_anew(target)
    assert type(whole := target.model) is LlamaForCausalLM
    assert target.model is whole
    assert (target.fingerprint(), target.eos, target.context_length) == known
    assert torch.equal(scored_anew(target), before)
    bundled = read_bundle("pocket-draft")
    theirs = HFTarget(assembled(bundled.config, {name: each.to(dtype) for name, each in bundled.weights.items()}))
    assert theirs.fingerprint() == known[0]
    close = CLOSE if dtype == torch.float32 else 0.1
    assert gap_to_own(target) < close
    assert apart(scored_anew(theirs), before) < close


def test_a_bundled_model_follows_its_owner() -> None:
    """What an owner does to transformers' model takes effect, and so does a hook on all modules."""
    lm = paceline.load("pocket-draft", dtype="float32", generation_config=False)
    before = lm.generate("It was", max_new_tokens=8).tokens
    seen: list[str] = []
    with register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__)):
        assert list(lm.generate("It was", max_new_tokens=8).tokens) == list(before)
    assert "LlamaAttention" in seen
    scale_everything(lm.target.model)
    assert list(lm.generate("It was", max_new_tokens=8).tokens) != list(before)
