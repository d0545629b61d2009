"""The formats of replies, and which of them a tokenizer's models write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import InputError
from paceline.integrations.server.replies import syntaxes
from paceline.integrations.server.replies.message import MessageBuilder
from paceline.integrations.server.replies.places import SpecialNames
from paceline.integrations.server.replies.readers import HARMONY_MARKERS, HarmonyReader, MarkedReader, ReplyReader
from paceline.integrations.server.replies.syntaxes import CallSyntax
from paceline.integrations.server.replies.templates import TemplateReader, has_parser
from paceline.integrations.server.replies.values import tools_of
from paceline.vocabulary import Vocabulary

THINK, MISTRAL_THINK, GEMMA_THINK = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought\n", "<channel|>"),
)
SHORT_IDS = re.compile(r"\bid\s*\|\s*length\s*[!=]=\s*9\b")
"""Of a chat template that refuses ids of calls with another length, as Mistral's do."""


@dataclass(frozen=True)
class ReplyFormat:
    """How a family of models writes replies: the markers around reasoning, and how tool calls are written."""

    name: str
    reasoning: tuple[str, str] | None = None
    """What opens reasoning at the beginning of a reply, and what closes it."""
    calls: CallSyntax | None = None
    is_harmony: bool = False
    """Whether replies have channels."""
    signs: tuple[str, ...] = ()
    """Texts of which a chat template or a vocabulary of this format has one."""
    has_short_ids: bool = False
    """Whether ids of calls have nine characters, because the chat template takes no others."""
    template: Mapping[str, Any] | None = field(default=None, compare=False)
    """A response template of transformers, which then says all."""
    vocabulary: Vocabulary | None = field(default=None, compare=False, repr=False)
    """Names the special tokens, which the text of pieces leaves out."""

    @property
    def markers(self) -> tuple[str, ...] | None:
        """The markers of the format; None where any special token may be one."""
        if self.template is not None:
            return None
        found = (*(self.reasoning or ()), *(self.calls.markers if self.calls else ()))
        return HARMONY_MARKERS if self.is_harmony else found

    def names(self) -> SpecialNames | None:
        """What puts special tokens into one reply's text."""
        return None if self.vocabulary is None or self.markers == () else SpecialNames(self.vocabulary, self.markers)

    def reader(
        self, message: MessageBuilder, tools: Sequence[Mapping[str, Any]], *, parses_calls: bool, begun: str
    ) -> ReplyReader:
        """A reader of one reply."""
        parses_calls = parses_calls and bool(tools)
        if self.template is not None:
            return TemplateReader(message, self.template, tools, parses_calls=parses_calls, begun=begun)
        if self.is_harmony:
            return HarmonyReader(message, parses_calls=parses_calls, begun=begun)
        return MarkedReader(message, self.reasoning, self.calls if parses_calls else None, tools_of(tools), begun)


FORMATS = {
    one.name: one
    for one in (
        ReplyFormat("harmony", is_harmony=True, signs=("<|channel|>",)),
        ReplyFormat("mistral", MISTRAL_THINK, syntaxes.MISTRAL, signs=("[TOOL_CALLS]",)),
        ReplyFormat("deepseek", THINK, syntaxes.DEEPSEEK, signs=syntaxes.DEEPSEEK.opens),
        ReplyFormat("kimi", THINK, syntaxes.KIMI, signs=syntaxes.KIMI.opens),
        ReplyFormat("gemma", GEMMA_THINK, syntaxes.GEMMA, signs=syntaxes.GEMMA.opens),
        ReplyFormat("functiongemma", None, syntaxes.FUNCTION_GEMMA, signs=syntaxes.FUNCTION_GEMMA.opens),
        ReplyFormat("tagged", THINK, syntaxes.TAGGED, signs=syntaxes.TAGGED.opens),
        ReplyFormat("llama", None, syntaxes.LLAMA, signs=("<|python_tag|>", '"parameters": dictionary of argument')),
        ReplyFormat("think", THINK, signs=THINK[:1]),
        ReplyFormat("plain"),
    )
}
"""The first one whose signs are seen is that of a tokenizer."""
OTHER_NAMES = {"hermes": "tagged", "qwen": "tagged", "qwen3_coder": "tagged", "glm": "tagged", "openai": "harmony"}
"""Other names of formats, after the families that write them."""


def format_of(vocabulary: Vocabulary, forced: str | None = None) -> ReplyFormat:
    """The format in which a tokenizer's models write, or the one with this name. A response template of the tokenizer's
    own comes first, then its chat template, then its special tokens."""
    of_tokenizer: dict[str, Any] = {
        "vocabulary": vocabulary,
        "has_short_ids": SHORT_IDS.search(chat_template(vocabulary)) is not None,
    }
    if forced is not None:
        return replace(_named(forced), **of_tokenizer)
    template = getattr(vocabulary.tokenizer, "response_template", None)
    if template and has_parser(template):
        return ReplyFormat("template", template=template, **of_tokenizer)
    added = vocabulary.backend.get_added_tokens_decoder().values()
    places = (chat_template(vocabulary), "\n".join(token.content for token in added))
    found = next((one for place in places for one in FORMATS.values() if _is_seen(one.signs, place)), FORMATS["plain"])
    if found.reasoning and not any(found.reasoning[0].rstrip() in place for place in places):
        found = replace(found, reasoning=None)
    if found.reasoning is None and any(THINK[0] in place for place in places):
        found = replace(found, reasoning=THINK)
    return replace(found, **of_tokenizer)


def _named(name: str) -> ReplyFormat:
    if (found := FORMATS.get(OTHER_NAMES.get(name, name))) is None:
        raise InputError(f"no format of replies has the name {name!r}; there are {', '.join((*FORMATS, *OTHER_NAMES))}")
    return found


def _is_seen(signs: Iterable[str], place: str) -> bool:
    return any(sign in place for sign in signs)


def chat_template(vocabulary: Vocabulary) -> str:
    """The chat templates of a tokenizer as one text."""
    found = getattr(vocabulary.tokenizer, "chat_template", None) or ""
    return "\n".join(map(str, found.values())) if isinstance(found, Mapping) else str(found)
