"""Load on servers of OpenAI's protocol: some clients ask at the same time, and what they see is timed.

Any server can be asked, ours or another one. In a round each contestant does the same requests with the same number of
clients, one contestant after the other in balanced order, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import InputError, Unavailable
from paceline_lab.bench.race import Progress, order, silent

PATH = "/v1/completions"
SECONDS = 600.0
"""Until a server must have answered."""
PERCENTILES = (50, 99)


@dataclass(frozen=True)
class Asked:
    """A contestant: a server, and what its requests hold besides the prompt."""

    name: str
    url: str
    body: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True)
class SeenAnswer:
    """One answer as its client saw it."""

    seconds_to_first: float
    seconds: float
    tokens: int
    text: str

    @property
    def seconds_per_token(self) -> float:
        """Of the tokens behind the first."""
        return (self.seconds - self.seconds_to_first) / max(1, self.tokens - 1)


@dataclass
class Load:
    """All that one contestant answered to one number of clients."""

    asked: Asked
    clients: int
    rates: list[float] = field(default_factory=list)
    """Tokens per second of all clients together, a number for each round."""
    answers: list[SeenAnswer] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        first = [1000 * one.seconds_to_first for one in self.answers]
        each = [1000 * one.seconds_per_token for one in self.answers]
        return {
            "name": self.asked.name,
            "clients": self.clients,
            "tokens_per_second": median(self.rates),
            "rounds": self.rates,
            "requests": len(self.answers),
            "tokens": sum(one.tokens for one in self.answers),
            **{f"first_ms_p{part}": percentile(first, part) for part in PERCENTILES},
            **{f"token_ms_p{part}": percentile(each, part) for part in PERCENTILES},
        }


def percentile(values: Sequence[float], part: int) -> float:
    """The smallest value that this part of a hundred do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -(-part * len(ranked) // 100) - 1))]


def load(
    contestants: Sequence[Asked],
    prompts: Sequence[str],
    *,
    clients: Sequence[int],
    tokens: int,
    requests: int,
    rounds: int,
    progress: Progress = silent,
) -> list[Load]:
    """All contestants under all numbers of clients. ``requests`` is that of each client in each round."""
    loads = [Load(asked, count) for count in clients for asked in contestants]
    for asked in contestants:  # weights and caches of a server that has just started
        ask(asked, prompts[0], tokens, 0)
    done = 0
    for number in range(rounds):
        for count in clients:
            these = [one for one in loads if one.clients == count]
            for one in order(these, number, 0):
                progress(f"{one.asked.name}, {count} clients", done, len(loads) * rounds)
                _round(one, prompts, tokens, requests, number)
                done += 1
    return loads


def _round(one: Load, prompts: Sequence[str], tokens: int, requests: int, number: int) -> None:
    """The requests of one round."""
    numbers = iter(range(number * one.clients * requests, (number + 1) * one.clients * requests))
    lock, answers, errors = threading.Lock(), list[SeenAnswer](), list[Exception]()

    def client() -> None:
        while not errors:
            with lock:
                mine = next(numbers, None)
            if mine is None:
                return
            try:
                answers.append(ask(one.asked, prompts[mine % len(prompts)], tokens, mine))
            except Exception as error:  # raised in the thread that measures
                errors.append(error)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(one.clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    one.rates.append(sum(answer.tokens for answer in answers) / (time.perf_counter() - began))
    one.answers += answers


def ask(asked: Asked, prompt: str, tokens: int, seed: int) -> SeenAnswer:
    """One completion, streamed."""
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "seed": seed}
    body |= {"stream_options": {"include_usage": True}, **asked.body}
    body = {name: value for name, value in body.items() if value is not None}  # null leaves a field out
    began, first, text, usage = time.perf_counter(), None, [], dict[str, Any]()
    for chunk in events(asked, body):
        if "error" in chunk:
            raise Unavailable(f"{asked.name} answered with an error: {chunk['error']}")
        for choice in chunk.get("choices", ()):
            if said := choice.get("text"):
                first = time.perf_counter() if first is None else first
                text.append(said)
        usage = chunk.get("usage") or usage
    ended = time.perf_counter()
    if first is None:
        raise Unavailable(f"{asked.name} answered {prompt[:40]!r} without a text")
    count = int(usage.get("completion_tokens") or len(text))
    return SeenAnswer(first - began, ended - began, count, "".join(text))


def events(asked: Asked, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of an answer."""
    parts = urlsplit(asked.url)
    if parts.scheme != "http" or not parts.hostname:
        raise InputError(f"a server is named by an address such as http://127.0.0.1:8000, not {asked.url!r}")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {asked.key}"} if asked.key else {})
    link = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=SECONDS)
    with closing(link):
        try:
            link.request("POST", parts.path.rstrip("/") + PATH, json.dumps(body), headers)
            answer = link.getresponse()
        except OSError as error:
            raise Unavailable(f"{asked.name} at {asked.url} does not answer: {error.strerror or error}") from None
        if answer.status != 200:
            said = answer.read(2000).decode(errors="replace")
            raise Unavailable(f"{asked.name} answered {answer.status}: {' '.join(said.split())}")
        for line in answer:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield json.loads(line[6:])
