"""What an answer counted, under the names of OpenAI, llama.cpp and vLLM."""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.integrations.server.answer import Answer

ACCEPTED, REJECTED = "accepted_prediction_tokens", "rejected_prediction_tokens"


def usage(answer: Answer, reasoning_tokens: int = 0) -> dict[str, Any]:
    """OpenAI's ``usage``. Tokens of a prediction are those of the request's ``prediction``, not of other drafts."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    counts = answer.totals.counts
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            ACCEPTED: int(counts.get(ACCEPTED, 0)),
            REJECTED: int(counts.get(REJECTED, 0)),
            "audio_tokens": 0,
        },
    }


def timings(answer: Answer) -> dict[str, Any]:
    """llama.cpp's ``timings``. The prompt ends with the first token; the rate is of what follows the first burst."""
    read = answer.prompt_tokens - answer.cached_tokens
    prompt_ms, text_ms = 1000 * (answer.seconds_to_first or 0.0), 1000 * answer.seconds_after_first
    rate, totals = answer.tokens_per_second, answer.totals
    return {
        "cache_n": answer.cached_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / read if read else 0.0,
        "prompt_per_second": 1000 * read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": answer.completion_tokens,
        "predicted_ms": text_ms,
        "predicted_per_token_ms": 1000 / rate if rate else 0.0,
        "predicted_per_second": rate,
        "draft_n": totals.drafted,
        "draft_n_accepted": totals.accepted,
    }


def metrics(answer: Answer) -> dict[str, Any]:
    """vLLM's ``metrics.speculative_decoding``: rounds with a draft, and what came of them. Its histogram has the number
    of rounds that accepted 0, 1, ... up to ``num_spec_tokens`` tokens; aiperf refuses another form."""
    drafts, totals = [one for one in answer.rounds if one.drafted], answer.totals
    histogram = Counter(one.accepted for one in drafts)
    deepest = max((one.depth for one in drafts), default=0)
    found = {
        "mean_acceptance_length": 1 + totals.accepted / len(drafts) if drafts else 1.0,
        "draft_acceptance_rate": totals.ratio("acceptance_rate"),
        "acceptance_histogram": [histogram[count] for count in range(deepest + 1)],
        "num_spec_steps": len(drafts),
        "num_accepted_draft_tokens": totals.accepted,
        "num_draft_tokens": totals.drafted,
        "num_spec_tokens": deepest,
        "num_rounds": totals.rounds,
        "tokens_per_round": totals.tokens_per_round,
        "accepted_by_source": dict(answer.sources.most_common()),
    }
    return {"speculative_decoding": found}


def numbers(answer: Answer, reasoning_tokens: int = 0) -> dict[str, Any]:
    """All of it, as the last chunk of a stream and a whole answer hold it."""
    return {"usage": usage(answer, reasoning_tokens), "timings": timings(answer), "metrics": metrics(answer)}
