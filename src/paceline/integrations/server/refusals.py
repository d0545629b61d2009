"""Fields that would change the text if they were obeyed, so that they cannot be ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.requests import ChatRequest, ResponseRequest, Writes

UNSERVED = {
    "allowed_token_ids": "write a logit_bias, or structured_outputs",
    "bad_words": "write a logit_bias of -100 for its tokens",
    "prompt_logprobs": "ask for logprobs of the answer",
    "include_stop_str_in_output": "append the stop string yourself",
    "guided_json": "write response_format or structured_outputs",
    "guided_regex": "write structured_outputs",
    "guided_choice": "write structured_outputs",
    "guided_grammar": "write structured_outputs",
    "grammar": 'write structured_outputs: {"grammar": ...}',
    "functions": "write tools",
    "function_call": "write tool_choice",
    "chat_template": "the server's operator chooses the template; send the prompt to /v1/completions",
    "audio": "this server writes text",
    "suffix": "send the text before the gap only",
    "n_predict": "write max_tokens",
    "repeat_penalty": "write repetition_penalty",
    "typical_p": "write min_p or top_p",
    "mirostat": "write temperature and min_p or top_p",
    "dry_multiplier": "write repetition_penalty",
    "xtc_probability": "write temperature and min_p or top_p",
    "thinking_token_budget": "write max_tokens, or reasoning_effort: none",
    "skip_special_tokens": "the ids of all tokens come with return_token_ids",
    "truncate_prompt_tokens": "send the part of the prompt that the model is to read",
    "use_beam_search": "write temperature 0 for the most probable tokens",
}
UNSERVED_IN_RESPONSES = {
    "conversation": "write previous_response_id",
    "background": "wait for the answer, or stream it",
    "prompt": "write instructions and input",
}
NEUTRAL = {"repeat_penalty": 1, "typical_p": 1, "skip_special_tokens": True}
"""Values of fields that change no text. For the other fields these are false, zero and empty values."""
ACT_AT_ZERO = frozenset({"thinking_token_budget"})


def refuse_unserved(body: Writes) -> None:
    """Refuse a request whose fields ask for another text than this server can write."""
    extra: Mapping[str, Any] = body.model_extra or {}
    unserved = UNSERVED | (UNSERVED_IN_RESPONSES if isinstance(body, ResponseRequest) else {})
    for name, advice in unserved.items():
        given = extra.get(name, getattr(body, name, None) if name in type(body).model_fields else None)
        if _acts(name, given):
            raise ApiError(f"{name} is not served; {advice}", param=name, code="unsupported")


def _acts(name: str, given: object) -> bool:
    """Whether a field with this value would change the text."""
    if given is None or (name in NEUTRAL and given == NEUTRAL[name]):
        return False
    return name in NEUTRAL or name in ACT_AT_ZERO or given not in (False, [], {}, "")


def refuse_contradictions(body: ChatRequest) -> None:
    """Refuse fields of a chat that need another field."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    if body.add_generation_prompt is False:
        said = "add_generation_prompt: false is not served; send the prompt to /v1/completions"
        raise ApiError(said, param="add_generation_prompt", code="unsupported")
    if body.continue_final_message and body.messages[-1].get("role") != "assistant":
        said = "continue_final_message needs a last message of the assistant"
        raise ApiError(said, param="continue_final_message")
