"""The record of answers and refusals: Prometheus metrics under vLLM's names, and a line of the log for each."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from paceline.integrations.server.answer import Answer
from paceline.integrations.server.errors import LONGEST
from paceline.integrations.server.flows import Left
from paceline.integrations.server.models import Models
from paceline.integrations.server.replies import finish_reason

LOG = logging.getLogger("paceline.server")
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
PER_TOKEN = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that could write a line of the log, or move a terminal's cursor."""
SHOWN_PATH = 200
"""Characters of a path in the log."""
POSITIONS = 16
"""Positions of a draft that are counted one by one."""


class AnswerRecorder:
    """The metrics of one server."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.registry = CollectorRegistry()
        self._requests = self._counter("request_success", "Answers by the reason they ended", "finished_reason")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts")
        self._text = self._counter("generation_tokens", "Tokens written")
        self._queried = self._counter("prefix_cache_queries", "Tokens of prompts that were looked for in the cache")
        self._hits = self._counter("prefix_cache_hits", "Tokens of prompts that the cache held")
        self._drafts = self._counter("spec_decode_num_drafts", "Rounds with a draft")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Drafted tokens")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted")
        self._by_place = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by their place in the draft", "position"
        )
        self._by_source = self._counter(
            "accepted_tokens", "Accepted tokens by their source", "source", prefix="paceline"
        )
        self._first = self._histogram("time_to_first_token_seconds", "Seconds to the first token", SECONDS)
        self._each = self._histogram("time_per_output_token_seconds", "Seconds per token after the first", PER_TOKEN)
        self._whole = self._histogram("e2e_request_latency_seconds", "Seconds of an answer", SECONDS)
        self._lengths = self._histogram("request_generation_tokens", "Tokens of an answer", TOKENS)
        self._prompts = self._histogram("request_prompt_tokens", "Tokens of a prompt", TOKENS)
        about = "Requests that were refused, by the status of the answer"
        self._refused = Counter("paceline:request_errors", about, ["status"], registry=self.registry)
        self._gauges = {
            "running": self._gauge("num_requests_running", "Texts that are being written"),
            "waiting": self._gauge("num_requests_waiting", "Texts that wait for a seat"),
            "paused": self._gauge("num_requests_swapped", "Texts that were interrupted for want of memory"),
            "rows": self._gauge("kv_cache_rows", "Rows of keys and values that are held", "paceline"),
        }

    def _counter(self, name: str, about: str, *labels: str, prefix: str = "vllm") -> Counter:
        return Counter(f"{prefix}:{name}", about, ["model_name", *labels], registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", about, ["model_name"], buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, about: str, prefix: str = "vllm") -> Gauge:
        return Gauge(f"{prefix}:{name}", about, ["model_name"], registry=self.registry)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        for served in self._models:
            for name, gauge in self._gauges.items():
                gauge.labels(served.name).set(getattr(served.serving, name))
        return generate_latest(self.registry)

    @contextmanager
    def writing(self, answer: Answer, request_id: str) -> Iterator[None]:
        """Note an answer at its end, however it ends."""
        reason = "error"
        try:
            yield
            reason = ""
        except (GeneratorExit, Left):
            reason = "abort"
            raise
        except BaseException as error:
            reason = "abort" if type(error).__name__ == "CancelledError" else "error"
            raise
        finally:
            self._note(answer, reason)
            LOG.info(line(answer, request_id, reason))

    def note_refusal(self, request_id: str, path: str, status: int, sentence: str) -> None:
        """Note a request that was refused, or failed before its answer began."""
        self._refused.labels(str(status)).inc()
        shown = [CONTROL.sub("?", text) for text in (path[:SHOWN_PATH], sentence[:LONGEST])]
        LOG.info("refused request=%s status=%d path=%s: %s", request_id, status, *shown)

    def _note(self, answer: Answer, reason: str) -> None:
        name = answer.served.name
        for finish in [reason] if reason else [finish_reason(result.finish) for result in answer.results]:
            self._requests.labels(name, finish).inc()
        self._prompt.labels(name).inc(answer.prompt_tokens)
        self._text.labels(name).inc(answer.completion_tokens)
        self._queried.labels(name).inc(answer.prompt_tokens)
        self._hits.labels(name).inc(answer.cached_tokens)
        self._prompts.labels(name).observe(answer.prompt_tokens)
        self._lengths.labels(name).observe(answer.completion_tokens)
        if (first := answer.seconds_to_first) is not None:
            self._first.labels(name).observe(first)
            self._whole.labels(name).observe(first + answer.seconds_after_first)
        if (rate := answer.tokens_per_second) > 0:
            self._each.labels(name).observe(1 / rate)
        self._note_drafts(answer, name)

    def _note_drafts(self, answer: Answer, name: str) -> None:
        for one in answer.rounds:
            if one.drafted:
                self._drafts.labels(name).inc()
                self._drafted.labels(name).inc(one.drafted)
                self._accepted.labels(name).inc(one.accepted)
                for place in range(min(one.accepted, POSITIONS)):
                    self._by_place.labels(name, str(place)).inc()
        for source, count in answer.sources.items():
            self._by_source.labels(name, source).inc(count)


def line(answer: Answer, request_id: str, reason: str) -> str:
    """One answer in a line of the log."""
    first, totals = answer.seconds_to_first, answer.totals
    finish = reason or "+".join(sorted({finish_reason(result.finish) for result in answer.results}))
    said = [
        f"{answer.request_id} model={answer.served.name} request={request_id} finish={finish}",
        f"prompt={answer.prompt_tokens} cached={answer.cached_tokens} tokens={answer.completion_tokens}",
        f"first={first:.3f}s" if first is not None else "first=-",
        f"tokens/s={answer.tokens_per_second:.1f} rounds={totals.rounds} tokens/round={totals.tokens_per_round:.2f}",
        f"drafted={totals.drafted} accepted={totals.accepted}",
    ]
    return " ".join(said)
