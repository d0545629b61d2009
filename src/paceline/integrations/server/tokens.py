"""``/tokenize``, ``/detokenize`` and ``/apply-template``, as llama.cpp and vLLM have them."""

from __future__ import annotations

from typing import Any

from paceline.api.prompts import messages_of
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.forms import messages_for, variables_for
from paceline.integrations.server.models import Models, ServedModel
from paceline.integrations.server.requests import DetokenizeRequest, Json, TemplateRequest, TokenizeRequest
from paceline.vocabulary.transcript import render


def tokenize(body: TokenizeRequest, models: Models) -> dict[str, Any]:
    """The tokens of a text, or of a conversation up to the reply."""
    served = models.named(body.model)
    vocabulary = served.vocabulary
    given = body.content if body.content is not None else body.prompt
    if body.messages is not None:
        text, special = _rendered(served, body.messages, body.tools, body.chat_template_kwargs)
    elif given is not None:
        text, special = given, body.content is None
    else:
        raise ApiError("give content, prompt or messages", param="prompt")
    for wanted in (body.add_special, body.add_special_tokens):
        special = special if wanted is None else wanted
    ids = vocabulary.encode(text, add_special=special).tolist()
    found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.lm.target.context_length}
    if body.with_pieces:
        found["tokens"] = [{"id": token, "piece": _piece(vocabulary.token_bytes(token))} for token in ids]
    if body.return_token_strs:
        found["token_strs"] = [vocabulary.token_bytes(token).decode(errors="replace") for token in ids]
    return found


def _piece(spelled: bytes) -> str | list[int]:
    """A token's text; its bytes where they are no text."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return list(spelled)


def detokenize(body: DetokenizeRequest, models: Models) -> dict[str, Any]:
    """The text of tokens."""
    served = models.named(body.model)
    size = served.lm.target.vocab_size
    for token in body.tokens:
        if not 0 <= token < size:
            raise ApiError(f"tokens names token {token}, and the model has {size} tokens", param="tokens")
    text = served.vocabulary.text(body.tokens, skip_special=False)
    return {"content": text, "prompt": text}


def apply_template(body: TemplateRequest, models: Models) -> dict[str, Any]:
    """The text of a conversation up to the reply."""
    served = models.named(body.model)
    return {"prompt": _rendered(served, body.messages, body.tools, body.chat_template_kwargs)[0]}


def _rendered(
    served: ServedModel, messages: list[Json], tools: list[Json] | None, variables: Json | None
) -> tuple[str, bool]:
    """A conversation's text, and whether special tokens must still be put in front of it."""
    if not messages:
        raise ApiError("messages is an empty list; give a conversation", param="messages")
    more = variables_for(variables, None, tools or ())
    found = render(served.vocabulary, messages_of(messages_for(messages)), more)
    return found.text, not found.templated
