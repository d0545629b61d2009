"""From the body of a request to the settings of a text: `paceline.Options`, the same that the Python API takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paceline.api.settings import Options
from paceline.drafters.spec import BUILT_IN, methods_in
from paceline.errors import InputError
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.models import Limits, ServedModel
from paceline.integrations.server.requests import BY_TOKEN, SIMPLE, Writes

USUAL_TEMPERATURE = 1.0
"""Of the protocol, where neither the request nor the model names one."""
OFF = -1
"""What vLLM's clients write for no limit, of the number of tokens and of the cut to the best ones."""
LLAMA_CPP = "speculative.n_max"
MOST_DRAFTED = 256
SAFE = re.compile(r"(?:\d+|\d*\.\d+|true|false|shared|none|paper)", re.IGNORECASE)
"""The values that a request may give an option of a method: none that names a file or a model."""
TOKEN = re.compile(r"[0-9]{1,9}")
PLANNER = re.compile(r"fixed(:\d{1,4})?|adaptive|calibrated|default")
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
}
"""Fields that would change the text if they were obeyed, so that they cannot be ignored."""


def settings_of(body: Writes, served: ServedModel, limits: Limits, *, most: int | None, seed: int) -> Options:
    """The settings that a request names, with the server's defaults; ``most`` is its number of new tokens."""
    _refuse_unserved(body)
    given: dict[str, Any] = {**served.defaults}
    given["temperature"] = usual_temperature(served)
    given |= {name: value for name in SIMPLE if name != "seed" and not _is_off(value := getattr(body, name))}
    given |= {name: _by_token(name, value, served) for name in BY_TOKEN if (value := getattr(body, name)) is not None}
    given["seed"] = seed
    given["max_new_tokens"] = _within(most, limits)
    given |= _endings(body, served)
    given |= _drafting(body, served)
    if body.prediction is not None:
        given["prediction"] = body.prediction.text
    return cast(Options, given)


def usual_temperature(served: ServedModel) -> float:
    """That of requests that name none: the server's, else the model's own, else the protocol's."""
    own = served.lm.defaults.get("temperature", USUAL_TEMPERATURE)
    return float(served.defaults.get("temperature", own))


def _is_off(value: object) -> bool:
    """Whether a setting was left out; -1 is how vLLM's clients leave a number of tokens out."""
    return value is None or (type(value) is int and value == OFF)


def ignored_fields(body: Writes) -> list[str]:
    """The fields of a request that changed nothing."""
    return [name for name in body.unknown if name != LLAMA_CPP]


def _refuse_unserved(body: Writes) -> None:
    extra: Mapping[str, Any] = body.model_extra or {}
    for name, advice in UNSERVED.items():
        given = extra.get(name, getattr(body, name, None) if name in type(body).model_fields else None)
        if given not in (None, False, [], {}, ""):
            raise ApiError(f"{name} is not served; {advice}", param=name, code="unsupported")


def _by_token(name: str, given: Mapping[str, float], served: ServedModel) -> dict[int, float]:
    """A setting by tokens; JSON has texts for keys."""
    size = served.lm.target.vocab_size
    for token in given:
        if not TOKEN.fullmatch(token):
            raise ApiError(f"{name} has token ids for keys, not {token[:20]!r}", param=name)
        if int(token) >= size:
            raise ApiError(f"{name} names token {token}, and the model has {size} tokens", param=name)
    return {int(token): value for token, value in given.items()}


def _within(most: int | None, limits: Limits) -> int | None:
    if most in (None, OFF):
        return limits.tokens
    assert most is not None, "None was handled"
    if most < 1:
        raise ApiError(f"max_tokens is at least 1, not {most}", param="max_tokens")
    return most if limits.tokens is None else min(most, limits.tokens)


def _endings(body: Writes, served: ServedModel) -> dict[str, Any]:
    """When the text ends."""
    found: dict[str, Any] = {}
    if body.stop is not None:
        found["stop"] = [text for text in ([body.stop] if isinstance(body.stop, str) else body.stop) if text]
    if body.ignore_eos:
        found["ignore_eos"] = True
    ends = served.lm.target.eos
    if body.stop_token_ids:
        found["eos"] = sorted({*(() if body.ignore_eos else ends), *body.stop_token_ids})
        found["ignore_eos"] = False
    if body.min_tokens:
        found["processors"] = [AtLeast(body.min_tokens, sorted({*ends, *(body.stop_token_ids or ())}))]
    return found


class AtLeast:
    """A logits processor that forbids the ends of a text before it has some tokens. For one text."""

    def __init__(self, count: int, ends: list[int]) -> None:
        self._count, self._ends = count, ends
        self._prompt: int | None = None

    def __call__(self, ids: Any, scores: Any) -> Any:
        length = ids.shape[1]
        if self._prompt is None:
            self._prompt = length
        if length - self._prompt < self._count:
            scores[:, self._ends] = -float("inf")
        return scores


# --- drafting ---


def _drafting(body: Writes, served: ServedModel) -> dict[str, Any]:
    """How the text is drafted. It changes nothing but the speed."""
    if body.speculative is False or ("draft_model" in body.model_fields_set and body.draft_model is None):
        return {"method": "plain", "draft_model": None, "planner": None}
    found: dict[str, Any] = {}
    if body.method is not None:
        found["method"] = safe_method(body.method)
        if body.method.partition(":")[0].strip() == "plain":
            found |= {"draft_model": None, "planner": None}
        elif not _takes_model(body.method):
            found["draft_model"] = None
        elif not served.defaults.get("draft_model") and served.drafts:
            found["draft_model"] = next(iter(served.drafts.values()))
    if body.draft_model is not None:
        if body.draft_model not in served.drafts:
            known = ", ".join(served.drafts) or "none"
            raise ApiError(
                f"the draft model {body.draft_model[:60]!r} is not served here; known: {known} (--draft-model)",
                param="draft_model",
                code="model_not_found",
            )
        found["draft_model"] = served.drafts[body.draft_model]
    if (count := _draft_tokens(body)) is not None:
        if count == 0:
            return {"method": "plain", "draft_model": None, "planner": None}
        found["planner"] = f"fixed:{count}"
    if body.planner is not None:
        if not PLANNER.fullmatch(body.planner):
            raise ApiError(f"planner is fixed:N, adaptive or calibrated, not {body.planner[:40]!r}", param="planner")
        found["planner"] = body.planner
    return found


def _draft_tokens(body: Writes) -> int | None:
    """The size of drafts, by mlx-lm's name or by llama.cpp's."""
    count = (body.model_extra or {}).get(LLAMA_CPP) if body.num_draft_tokens is None else body.num_draft_tokens
    if count is not None and not (type(count) is int and 0 <= count <= MOST_DRAFTED):
        raise ApiError(f"num_draft_tokens is 0 to {MOST_DRAFTED}, not {str(count)[:40]}", param="num_draft_tokens")
    return count


def safe_method(spec: str) -> str:
    """A method of ours by name, with options that are numbers or switches. A request can name neither a file nor a
    model nor code."""
    told = "a request may name a built-in method, with options that are numbers, true or false"
    for value in re.findall(r"=([^,+]*)", spec):
        if not SAFE.fullmatch(value.strip()):
            raise ApiError(f"method: {told}, not {value.strip()[:40]!r}", param="method")
    if re.search(r"[^\w:=,+.\- ]", spec) or len(spec) > 200:
        raise ApiError(f"method: {told}, not {spec[:60]!r}", param="method")
    try:
        names = methods_in(spec)
    except InputError as error:
        raise ApiError(str(error), param="method") from None
    for name in names:
        if name not in BUILT_IN:
            raise ApiError(f"method: {told}, not {name!r}", param="method")
    return spec


def _takes_model(spec: str) -> bool:
    """Whether a method drafts with the draft model that it is given."""
    return bool({"auto", "assistant", "mirror"} & methods_in(spec).keys())


# --- prompts ---


def prompts_of(
    given: str | list[str] | list[int] | list[list[int]], served: ServedModel
) -> list[str | NDArray[np.int64]]:
    """The prompts of a completion: texts or token ids, one or several."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError("prompt is an empty list; give a text or token ids", param="prompt")
    if isinstance(given[0], int):
        return [_ids([token for token in given if isinstance(token, int)], served)]
    if isinstance(given[0], str):
        return [text for text in given if isinstance(text, str)]
    return [_ids(ids, served) for ids in given if isinstance(ids, list)]


def _ids(ids: list[int], served: ServedModel) -> NDArray[np.int64]:
    size = served.lm.target.vocab_size
    for token in ids:
        if not 0 <= token < size:
            raise ApiError(f"prompt names token {token}, and the model has {size} tokens", param="prompt")
    return np.asarray(ids, np.int64)
