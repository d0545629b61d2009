"""Runs in vLLM's own environment, where none of our benchmarks need be installed: a line of JSON comes for each batch
of texts, and one goes back.

vLLM and its libraries print where they like. So what is said to the process that began this one leaves by a copy of the
standard output, and all the rest by the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

COUNTS = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"
"""vLLM's counters of drafts, by its own names."""


def main() -> None:
    said = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    with redirect_stdout(sys.stderr):
        for answer in answers(json.loads(line) for line in sys.stdin):
            print(json.dumps(answer), file=said, flush=True)


def answers(asked: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """First of all what the engine is made with, and then the texts to write."""
    made = next(asked)
    os.environ.update(made["environment"])
    import torch
    import vllm  # type: ignore[import-not-found,unused-ignore]

    llm = vllm.LLM(**made["engine"])
    device = str(llm.llm_engine.vllm_config.device_config.device_type)
    yield {"version": vllm.__version__, "device": device, "threads": torch.get_num_threads()}
    known = counts(llm.llm_engine)
    for number, job in enumerate(asked):
        found = written(llm.llm_engine, number, job)
        before, known = known, counts(llm.llm_engine)  # which takes a millisecond
        yield {**found, "counts": {name: known[name] - before[name] for name in COUNTS}}


def written(engine: Any, number: int, job: dict[str, Any]) -> dict[str, Any]:
    """Texts that are written together. Times are seconds since they were asked for."""
    from vllm import SamplingParams

    began = time.perf_counter()
    sampling = SamplingParams(**job["sampling"], ignore_eos=True, detokenize=False)
    names = [f"{number}-{place}" for place in range(len(job["prompts"]))]
    for name, prompt in zip(names, job["prompts"], strict=True):
        given = {"prompt_token_ids": prompt} if isinstance(prompt, list) else {"prompt": prompt}
        engine.add_request(name, given, sampling)
    texts: dict[str, list[int]] = {name: [] for name in names}
    deliveries: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    stats: dict[str, Any] = {}
    steps = 0
    while engine.has_unfinished_requests():
        found = engine.step()
        steps += 1
        now = time.perf_counter() - began
        for one in found:
            tokens = list(one.outputs[0].token_ids)
            if len(tokens) > len(texts[one.request_id]):
                texts[one.request_id] = tokens
                deliveries[one.request_id].append((len(tokens), now))
            if one.finished:
                stats[one.request_id] = latencies(one.metrics, time.time())
    return {
        "texts": [texts[name] for name in names],
        "deliveries": [deliveries[name] for name in names],
        "requests": [stats.get(name, {}) for name in names],
        "steps": steps,
        "seconds": time.perf_counter() - began,
    }


def counts(engine: Any) -> dict[str, int]:
    found = {one.name: int(one.value) for one in engine.get_metrics() if one.name in COUNTS}
    return dict.fromkeys(COUNTS, 0) | found


def latencies(stats: Any, now: float) -> dict[str, float]:
    """vLLM's metrics of a request that has ended, by its names."""
    if stats is None:
        return {}
    return {
        "vllm:time_to_first_token_seconds": stats.first_token_latency,
        "vllm:e2e_request_latency_seconds": now - stats.arrival_time,
        "vllm:request_queue_time_seconds": stats.scheduled_ts - stats.queued_ts,
        "vllm:request_prefill_time_seconds": stats.first_token_ts - stats.scheduled_ts,
        "vllm:request_decode_time_seconds": stats.last_token_ts - stats.first_token_ts,
    }


if __name__ == "__main__":
    main()
