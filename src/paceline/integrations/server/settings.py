"""The settings of a text, `paceline.Options`, from the body of a request."""

from __future__ import annotations

import math
import re
from typing import Any, cast

from paceline.api.settings import LONGEST_TEXT, Options
from paceline.drafters.spec import BUILT_IN, methods_in
from paceline.errors import InputError
from paceline.integrations.server.errors import ApiError, short
from paceline.integrations.server.models import Limits, ServedModel
from paceline.integrations.server.refusals import refuse_unserved
from paceline.integrations.server.requests import BY_TOKEN, SIMPLE, Json, Writes

USUAL_TEMPERATURE = 1.0
"""OpenAI's, if neither the request nor the model has one."""
OFF = -1
"""vLLM's clients write this for no limit: of the number of tokens, and of the cut to the best ones."""
LLAMA_CPP = "speculative.n_max"
NEED_MODEL = frozenset({"assistant", "mirror"})
"""The methods that need a draft model."""
MOST_DRAFTED = 256
MOST_BY_TOKEN = 1e30
"""The size of a setting of one token; more is no number that logits have."""
VALUE = re.compile(r"(?:\d{1,3}|\d{0,3}\.\d{1,6}|true|false|shared|none|paper)", re.IGNORECASE)
"""The values that a request may give an option of a method: none that names a file or a model."""
OPTIONS = frozenset(
    re.findall(
        r"\w+",
        " anywhere anew beams branches chain confidence counted depth exit gamma guesses k kappa keep length level"
        " longest matches max_ngram min_ngram next nodes noise pool_from_prompt prefill room scores shortest store"
        " threshold top translate tree votes width window",
    )
)
"""The options of methods that a request may set. The others name files, models and devices, whatever their value looks
like: ``assistant:model=1`` would look for a model called 1 on the hub."""
TOKEN = re.compile(r"[0-9]{1,9}")
PLANNER = re.compile(r"fixed(:(?P<count>\d{1,3}))?|adaptive|calibrated|default")


def settings_of(
    body: Writes, served: ServedModel, limits: Limits, *, most: int | None, seed: int, most_is: str = "max_tokens"
) -> Options:
    """The settings that a request names, with the server's defaults. ``most`` is its number of new tokens, and
    ``most_is`` the name of that field."""
    refuse_unserved(body)
    given: dict[str, Any] = {**served.defaults}
    given["temperature"] = usual_temperature(served)
    given |= {name: value for name in SIMPLE if name != "seed" and not _is_off(value := getattr(body, name))}
    given |= {name: _by_token(name, value, served) for name in BY_TOKEN if (value := getattr(body, name)) is not None}
    given["seed"] = seed
    given["max_new_tokens"] = _within(most, limits, most_is)
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
    """Whether a setting was left out. vLLM's clients write -1 for a number of tokens that they leave out."""
    return value is None or (type(value) is int and value == OFF)


def ignored_fields(body: Writes) -> list[str]:
    """The fields of a request that changed nothing."""
    several = ["parallel_tool_calls"] if getattr(body, "parallel_tool_calls", None) is False else []
    return [*(name for name in body.unknown if name != LLAMA_CPP), *several]


def _by_token(name: str, given: Json, served: ServedModel) -> dict[int, float]:
    """A setting by tokens; JSON has texts for keys."""
    size = served.lm.target.vocab_size
    for token, value in given.items():
        if type(value) not in (int, float) or abs(value) > MOST_BY_TOKEN or math.isnan(value):
            raise ApiError(f"{name} has numbers for values, not {short(value)}", param=name)
        if not TOKEN.fullmatch(token):
            raise ApiError(f"{name} has token ids for keys, not {token[:20]!r}", param=name)
        if int(token) >= size:
            raise ApiError(f"{name} names token {token}, and the model has {size} tokens", param=name)
    return {int(token): float(value) for token, value in given.items()}


def _within(most: int | None, limits: Limits, name: str) -> int | None:
    """The number of new tokens, within the server's limit."""
    if most is None or most == OFF:
        return limits.tokens
    if not 1 <= most <= LONGEST_TEXT:
        raise ApiError(f"{name} is at least 1 and at most {LONGEST_TEXT}, not {short(most)}", param=name)
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
        elif served.drafts and not served.defaults.get("draft_model"):
            found["draft_model"] = next(iter(served.drafts.values()))
        elif not served.defaults.get("draft_model") and NEED_MODEL & methods_in(body.method).keys():
            raise ApiError(f"method {body.method!r} needs a draft model, and this server has none", param="method")
    if body.draft_model is not None:
        if body.draft_model not in served.drafts:
            known = ", ".join(served.drafts) or "none"
            raise ApiError(
                f"the draft model {body.draft_model[:60]!r} is not served here; known: {known}",
                param="draft_model",
                code="model_not_found",
            )
        found["draft_model"] = served.drafts[body.draft_model]
    if (count := _draft_tokens(body)) is not None:
        if count == 0:
            return {"method": "plain", "draft_model": None, "planner": None}
        found["planner"] = f"fixed:{count}"
    if body.planner is not None:
        planner = PLANNER.fullmatch(body.planner)
        if planner is None or int(planner["count"] or 0) > MOST_DRAFTED:
            said = f"planner is fixed:N with N up to {MOST_DRAFTED}, adaptive or calibrated"
            raise ApiError(f"{said}, not {body.planner[:40]!r}", param="planner")
        found["planner"] = body.planner
    return found


def _draft_tokens(body: Writes) -> int | None:
    """The size of drafts, by mlx-lm's name or by llama.cpp's."""
    count = (body.model_extra or {}).get(LLAMA_CPP) if body.num_draft_tokens is None else body.num_draft_tokens
    if count is not None and not (type(count) is int and 0 <= count <= MOST_DRAFTED):
        raise ApiError(f"num_draft_tokens is 0 to {MOST_DRAFTED}, not {str(count)[:40]}", param="num_draft_tokens")
    return count


def safe_method(spec: str) -> str:
    """A built-in method with options that are numbers or switches. A request can name neither a file nor a model nor
    code."""
    allowed = "a request may name a built-in method, with options of its search that are numbers, true or false"
    for option in re.findall(r"[^:,+]*=[^,+]*", spec):
        name, _, value = (part.strip() for part in option.partition("="))
        if name not in OPTIONS or not VALUE.fullmatch(value):
            raise ApiError(f"method: {allowed}, not {option.strip()[:40]!r}", param="method")
    if re.search(r"[^\w:=,+.\- ]", spec) or len(spec) > 200:
        raise ApiError(f"method: {allowed}, not {spec[:60]!r}", param="method")
    try:
        names = methods_in(spec)
    except InputError as error:
        raise ApiError(str(error), param="method") from None
    for name in names:
        if name not in BUILT_IN:
            raise ApiError(f"method: {allowed}, not {name!r}", param="method")
    return spec


def _takes_model(spec: str) -> bool:
    """Whether a method drafts with the draft model that it is given."""
    return bool({"auto", *NEED_MODEL} & methods_in(spec).keys())
