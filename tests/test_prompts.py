"""Prompts as people have them: every form gives the same ids, and what is no prompt is told in one sentence."""

import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer

import families
import paceline
from engine import PROMPT, tabled
from paceline.api.model import LanguageModel
from paceline.errors import InputError
from paceline.targets.table import TableTarget
from paceline.vocabulary import Vocabulary

TEXT = "the rider in front"
CHAT: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer_with(front: str = "<|endoftext|>", template: str | None = TEMPLATE) -> Any:
    """A tokenizer that puts special tokens before every text, as those of Llama and Mistral do."""
    tokenizer = families.byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": front})
    backend = tokenizer.backend_tokenizer
    named = [(front, tokenizer.bos_token_id)]
    backend.post_processor = processors.TemplateProcessing(single=f"{front} $A", special_tokens=named)
    tokenizer.chat_template = template
    return tokenizer


@cache
def speaking(template: str | None = TEMPLATE) -> LanguageModel:
    tokenizer = tokenizer_with(template=template)
    return LanguageModel(TableTarget(lambda history: [0.0] * len(tokenizer), len(tokenizer)), Vocabulary(tokenizer))


def tokenizer() -> Any:
    lm = speaking()
    assert lm.vocabulary is not None
    return lm.vocabulary.tokenizer


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "range of numpy ints": lambda ids: [np.int32(one) for one in ids],
    "array": np.array,
    "row": lambda ids: np.array([ids]),
    "uint16": lambda ids: np.array(ids, np.uint16),
    "tensor": torch.tensor,
    "row tensor": lambda ids: torch.tensor([ids]),
    "int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "list of tensors": lambda ids: list(torch.tensor(ids)),
    "list of a list": lambda ids: [ids],
    "list of a tensor": lambda ids: [torch.tensor(ids)],
    "array of the standard library": lambda ids: array.array("q", ids),
    "dict": lambda ids: {"input_ids": ids},
    "dict with a mask": lambda ids: {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))},
    "padded on the left": lambda ids: {"input_ids": [0, 0, *ids], "attention_mask": [0, 0, *(1 for _ in ids)]},
    "padded on the right": lambda ids: {
        "input_ids": np.array([[*ids, 0]]),
        "attention_mask": np.array([[*(1 for _ in ids), 0]]),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_may_be_given_in_any_form(form: str) -> None:
    lm = LanguageModel(tabled())
    given = FORMS[form](PROMPT)
    assert lm.encode(given).tolist() == PROMPT
    text = lm.generate(given, max_new_tokens=6)
    assert text.tokens == lm.generate(PROMPT, max_new_tokens=6).tokens
    assert lm.generate_batch([given, PROMPT], max_new_tokens=6)[0][0].tokens == text.tokens


@pytest.mark.parametrize("options", [{}, {"return_tensors": "pt"}, {"return_tensors": "np"}, {"return_dict": False}])
def test_what_transformers_returns_is_a_prompt(options: dict[str, Any]) -> None:
    lm, own = speaking(), tokenizer()
    ids = own(TEXT)["input_ids"]
    if "return_dict" not in options:
        assert lm.encode(own(TEXT, **options)).tolist() == ids
        assert lm.encode(own([TEXT], **options)).tolist() == ids
    chat = own.apply_chat_template(CHAT, add_generation_prompt=True, **options)
    assert lm.encode(chat).tolist() == lm.encode(CHAT).tolist()
    assert lm.encode(own(TEXT).encodings[0]).tolist() == ids


def test_a_templated_text_begins_with_its_special_tokens_once() -> None:
    lm, own = speaking(), tokenizer()
    text = own.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    bos = own.bos_token_id
    assert own(text)["input_ids"][:2] == [bos, bos]
    for prompt in (text, CHAT, own.apply_chat_template(CHAT, add_generation_prompt=True)):
        ids = lm.encode(prompt).tolist()
        assert (ids[0], ids.count(bos)) == (bos, 1)
    assert lm.encode(TEXT).tolist() == own(TEXT)["input_ids"]
    twice = own.bos_token * 2 + "x"  # as it was typed
    assert lm.encode(twice).tolist().count(bos) == 2
    assert lm.encode("").tolist() == [bos]


def test_special_tokens_that_a_tokenizer_does_not_add_stay() -> None:
    """Nothing is put in front there, so what is typed twice stands twice."""
    own = families.byte_tokenizer()
    lm = LanguageModel(TableTarget(lambda history: [0.0] * len(own), len(own)), Vocabulary(own))
    name = own.all_special_tokens[0]
    assert lm.encode(name * 3).tolist() == own(name * 3)["input_ids"] == [own.convert_tokens_to_ids(name)] * 3


def test_a_mask_of_another_length_is_told() -> None:
    with pytest.raises(InputError, match="attention_mask has 2 entries for 3 token ids"):
        LanguageModel(tabled()).encode({"input_ids": [1, 2, 3], "attention_mask": [1, 1]})


def test_several_special_tokens_in_front_are_not_doubled() -> None:
    own = families.byte_tokenizer()
    own.add_special_tokens({"additional_special_tokens": ["[g]", "<s>"]})
    ids = own.convert_tokens_to_ids(["[g]", "<s>"])
    named = list(zip(["[g]", "<s>"], ids, strict=True))
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(single="[g] <s> $A", special_tokens=named)
    lm = LanguageModel(TableTarget(lambda history: [0.0] * len(own), len(own)), Vocabulary(own))
    assert lm.encode("[g]<s>hello").tolist() == own("hello")["input_ids"]
    assert lm.encode("<s>hello").tolist() == [*ids, *own("<s>hello", add_special_tokens=False)["input_ids"]]


# --- messages -----------------------------------------------------------------------------------------------


def test_messages_go_through_the_template_and_parts_of_a_content_are_joined() -> None:
    lm, own = speaking(), tokenizer()
    text = own.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    plain = own(text, add_special_tokens=False)["input_ids"]
    parted = [CHAT[0], {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    said = lm.generate("Hello", max_new_tokens=2)
    replied = [CHAT[1], {"role": "assistant", "content": said}, CHAT[1]]
    assert lm.encode(replied).tolist() == lm.encode([CHAT[1], {**replied[1], "content": said.text}, CHAT[1]]).tolist()
    for chat in (CHAT, tuple(CHAT), parted):
        assert lm.encode(chat).tolist() == plain
    assert lm.chat(CHAT, max_new_tokens=4).tokens == lm.generate(plain, max_new_tokens=4).tokens
    assert lm.chat("Hello", max_new_tokens=4).tokens == lm.generate(CHAT[1:], max_new_tokens=4).tokens


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_a_reply_that_is_begun_is_continued(template: str | None) -> None:
    lm = speaking(template)
    assert lm.vocabulary is not None
    begun = lm.vocabulary.text(lm.encode([*CHAT, {"role": "assistant", "content": " Well, I"}]).tolist())
    assert begun.endswith(": Well, I" if template is None else ":  Well, I")


def test_other_keys_of_a_message_reach_the_template() -> None:
    template = "{% for m in messages %}{{ m['name'] }} {{ m['tool_calls'] }}{% endfor %}"
    lm = speaking(template)
    assert lm.vocabulary is not None
    given = [{"role": "user", "content": None, "name": "Ala", "tool_calls": [1]}]
    assert lm.vocabulary.text(lm.encode(given).tolist()) == "Ala [1]"


# --- what is no prompt --------------------------------------------------------------------------------------

IDS = "a prompt is text, token ids"
NO_PROMPT: list[tuple[Any, str]] = [
    (None, f"{IDS} .* not None"),
    (7, f"{IDS} .* not 7"),
    (True, f"{IDS} .* not True"),
    (0.5, f"{IDS} .* not 0.5"),
    (b"text", f"{IDS} .* not a bytes"),
    (bytearray(b"x"), f"{IDS} .* not a bytearray"),
    (Path("x"), f"{IDS} .* not a PosixPath"),
    ({1, 2}, f"{IDS} .* not a set"),
    ((i for i in range(3)), f"{IDS} .* not a generator"),
    ({"attention_mask": [1]}, f"{IDS} .* not a dict without input_ids"),
    ({"role": "user", "content": "Hello"}, f"{IDS} .* not a dict without input_ids"),
    ([], "the prompt is empty"),
    ((), "the prompt is empty"),
    ([[]], "the prompt is empty"),
    (np.zeros(0, np.int64), "the prompt is empty"),
    (torch.zeros(1, 0, dtype=torch.int64), "the prompt is empty"),
    ([0.5, 1.0], "this list holds 0.5"),
    ([1, True], "this list holds True"),
    ([1, None], "this list holds None"),
    ([1, [2]], "this list holds a list"),
    (np.array([0.5]), r"not a ndarray of shape \(1,\) and type float64"),
    (np.array([True]), r"not a ndarray of shape \(1,\) and type bool"),
    (torch.tensor([1.0], dtype=torch.bfloat16), r"not a Tensor of shape \(1,\) and type torch.bfloat16"),
    (torch.tensor(3), r"not a Tensor of shape \(\)"),
    (torch.zeros(2, 2, 2, dtype=torch.int64), r"not a Tensor of shape \(2, 2, 2\)"),
    (torch.zeros(2, 5, dtype=torch.int64), "this is a batch of 2; use generate_batch"),
    ([[1, 2], [3]], "this is a batch of 2; use generate_batch"),
    ([torch.tensor([1]), torch.tensor([2])], "this is a batch of 2; use generate_batch"),
    ({"input_ids": [[1, 2], [3, 4]]}, "this is a batch of 2; use generate_batch"),
    (["one", "two"], "a list of texts; use generate_batch"),
    (["one"], "a list of texts; use generate_batch"),
    ([-1], "holds -1"),
    ("a \ud800", r"the text holds '\\ud800' at character 2, half of a surrogate pair"),
    ([10**30], IDS),
    ([10**6], "outside the model's vocabulary"),
]
NO_CHAT: list[tuple[Any, str]] = [
    ([{"content": "Hello"}], "message 0 of the chat has no role; a message is {'role': 'user', 'content': 'text'}"),
    ([*CHAT, "Hello"], "message 2 of the chat is a str"),
    ([{"role": "user"}], "the content of message 0 of the chat is None"),
    ([{"role": "user", "content": 7}], "the content of message 0 of the chat is 7"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type 'image_url'"),
    ([{"role": "user", "content": ["Hello"]}], "a part of type 'str'"),
]


@pytest.mark.parametrize(("prompt", "said"), [*NO_PROMPT, *NO_CHAT])
def test_what_is_no_prompt_is_told_in_a_sentence(prompt: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        speaking().generate(prompt, max_new_tokens=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [["Hello"], [1, 2], 7, None, {"input_ids": [1]}])
def test_a_chat_is_text_or_messages(prompt: Any) -> None:
    with pytest.raises(InputError, match="a chat is a text or a list of messages"):
        speaking().chat(prompt)


def test_a_transcript_has_three_roles() -> None:
    """Anything else was taken for the assistant's words."""
    with pytest.raises(InputError, match="no turns of 'tool'; the roles are system, user and assistant"):
        speaking(None).generate([*CHAT, {"role": "tool", "content": "5"}])


@pytest.mark.parametrize("prompt", ["Hello", CHAT])
def test_text_needs_a_tokenizer(prompt: Any) -> None:
    with pytest.raises(
        InputError, match=r"came without a tokenizer; put tokenizer.json .* in Python give the prompt as token ids"
    ):
        LanguageModel(tabled()).generate(prompt)


@pytest.mark.parametrize("prompt", ["Hello", CHAT])
def test_a_tokenizer_that_does_not_fit_the_model_is_named(prompt: Any) -> None:
    lm = LanguageModel(TableTarget(lambda history: [0.0] * 3, 3), speaking().vocabulary)
    with pytest.raises(InputError, match="does not fit the model: it gives token"):
        lm.generate(prompt)


# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"return_tensors": "pt"}, {"return_tensors": "np"}])
def test_a_batch_is_a_list_of_any_of_these(options: dict[str, Any]) -> None:
    """What a tokenizer returns for several texts is a batch, too; its padding is no part of the prompts."""
    lm, own, texts = speaking(), tokenizer(), ["the rider", "za lidere", "x"]
    own.pad_token = own.eos_token
    alone = [lm.generate(text, max_new_tokens=3, temperature=1.0).tokens for text in texts]
    for padding in (True, False) if not options else (True,):
        batch = own(texts, padding=padding, **options)
        found = lm.generate_batch(batch, max_new_tokens=3, temperature=1.0)
        assert [samples[0].tokens for samples in found] == alone
    mixed: list[Any] = [texts[0], own(texts[1], return_tensors="pt"), own(texts[2])["input_ids"], CHAT]
    found = lm.generate_batch(mixed, max_new_tokens=3, temperature=1.0)
    assert [samples[0].tokens for samples in found[:3]] == alone
    assert found[3][0].tokens == lm.chat(CHAT, max_new_tokens=3, temperature=1.0).tokens


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ("Hello", "a batch is a list of prompts, not one text; put it into a list"),
        (CHAT, "this is one chat; put it into a list"),
        ({"role": "user"}, "not a dict without input_ids"),
        (b"Hello", "not a bytes"),
        (7, "not 7"),
        (None, "not None"),
        ([1, 2], f"{IDS} .* not 1"),
        ([["one", "two"]], "a list of texts; use generate_batch"),
    ],
)
def test_what_is_no_batch_is_told(prompts: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        speaking().generate_batch(prompts, max_new_tokens=1)


def test_a_tokenizer_loaded_from_a_folder_counts_as_any_other(model: str) -> None:
    own, lm = AutoTokenizer.from_pretrained(model), paceline.load(model)
    assert lm.encode(own("Hello", return_tensors="pt")).tolist() == own("Hello")["input_ids"]
