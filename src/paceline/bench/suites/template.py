"""From prompts to token ids: what a model reads before it writes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.suites.prompts import Prompt
from paceline.context import Ints
from paceline.vocabulary import Vocabulary
from paceline.vocabulary.transcript import render


def encode(vocabulary: Vocabulary, prompt: Prompt, turn: int = 0, answers: Sequence[str] = ()) -> Ints:
    """What is read before the answer to ``turn``, given the ``answers`` to the turns before it.

    A chat goes through the model's template, or a plain transcript where there is none; a text stands as it is. Special
    tokens are the tokenizer's own either way.
    """
    assert turn < len(prompt.turns), f"{prompt.key} has {len(prompt.turns)} turns and no turn {turn}"
    assert len(answers) == turn, "every turn before this one has its answer"
    if not prompt.chat:
        return vocabulary.encode(prompt.turns[turn])
    said = [_message("user", text) for text in prompt.turns[: turn + 1]]
    replies = [_message("assistant", text) for text in answers]
    messages = [message for pair in zip(said, replies, strict=False) for message in pair] + said[-1:]
    rendered = render(vocabulary, messages)
    return vocabulary.encode(rendered.text, add_special=not rendered.templated)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
