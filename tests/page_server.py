"""A server for the page: it answers as ours does, with texts of a real model that were written before."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from paceline.integrations.server.page import page_routes

METHODS = ["auto", "lookup", "suffix", "dictionary", "recycling+suffix", "plain"]
Burst = list[dict[str, Any]]


RECORDED = Path(__file__).with_name("page_answer.json")
"""A text of ``pocket``, round by round: text, token, source and kind of each piece."""


def drafted() -> list[Burst]:
    """The recorded text, as the server sends it."""
    names = ("text", "token", "source", "kind")
    rounds = json.loads(RECORDED.read_text(encoding="utf8"))
    return [[dict(zip(names, piece, strict=True)) | {"round": n} for piece in one] for n, one in enumerate(rounds)]


def plain() -> list[Burst]:
    """The same text in rounds of one token."""
    pieces = [piece for burst in drafted() for piece in burst]
    return [[piece | {"source": "", "round": n, "kind": "plain"}] for n, piece in enumerate(pieces)]


@dataclass
class Script:
    """What the server says, and what was asked of it."""

    drafted: list[Burst] = field(default_factory=drafted)
    plain: list[Burst] = field(default_factory=plain)
    deltas: list[dict[str, Any]] = field(default_factory=list)
    """Deltas to send instead, without pieces."""
    break_after: int | None = None
    """Bursts before an error."""
    endless: bool = False
    key: str = ""
    seconds_a_round: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    """Streams that the browser closed."""
    running: int = 0
    together: int = 0
    """The most streams at the same time."""

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[str]:
        self.running += 1
        self.together = max(self.running, self.together)
        try:
            async for chunk in self._chunks(self.plain if request.get("speculative") is False else self.drafted):
                yield chunk
        except asyncio.CancelledError:
            self.closed += 1
            raise
        finally:
            self.running -= 1

    async def _chunks(self, text: list[Burst]) -> AsyncIterator[str]:
        yield ": ping\n\n"
        yield _chunk({"role": "assistant", "content": ""})
        for delta in self.deltas:
            yield _chunk(delta)
        begun = time.perf_counter()
        for number, burst in enumerate([] if self.deltas else text):
            if number == self.break_after:
                yield _event(
                    {"error": {"message": "The model ran out of memory.", "type": "server_error", "code": 500}}
                )
                return
            yield _chunk({"content": "".join(piece["text"] for piece in burst)}, burst)
            await asyncio.sleep(self.seconds_a_round)
        while self.endless:
            yield _chunk({"content": " on"}, [{"text": " on", "token": 9, "source": "suffix", "round": 9, "kind": "x"}])
            await asyncio.sleep(0.02)
        yield _chunk({}, finish="stop")
        yield _event(_last(text, time.perf_counter() - begun))
        yield "data: [DONE]\n\n"


def _last(text: list[Burst], seconds: float) -> dict[str, Any]:
    tokens = [piece for burst in text for piece in burst]
    accepted = sum(bool(piece["source"]) for piece in tokens)
    timings = {
        "prompt_n": 9,
        "prompt_ms": 12.0,
        "predicted_n": len(tokens),
        "predicted_ms": 1000 * seconds,
        "predicted_per_second": len(tokens) / seconds,
        "draft_n": 2 * accepted,
        "draft_n_accepted": accepted,
    }
    usage = {"prompt_tokens": 9, "completion_tokens": len(tokens), "total_tokens": 9 + len(tokens)}
    rounds = len(text) - 1  # the first token comes with the prompt
    steps = {"num_rounds": rounds, "tokens_per_round": (len(tokens) - 1) / max(1, rounds)}
    return {**_head(), "choices": [], "usage": usage, "timings": timings, "metrics": {"speculative_decoding": steps}}


def _head() -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "pocket"}


def _chunk(delta: dict[str, Any], pieces: Burst | None = None, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    ours = {} if pieces is None else {"paceline": {"pieces": pieces}}
    return _event({**_head(), "choices": [choice], "usage": None, **ours})


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def page_app(script: Script) -> Starlette:
    """The page, and the addresses that it asks."""

    def refused(request: Request) -> Response | None:
        if not script.key or request.headers.get("authorization") == f"Bearer {script.key}":
            return None
        error = {"message": "Invalid API key.", "type": "authentication_error", "code": "invalid_api_key"}
        return JSONResponse({"error": error}, 401)

    async def models(request: Request) -> Response:
        data = [{"id": "pocket", "object": "model", "created": 1, "owned_by": "paceline", "meta": {}}]
        return refused(request) or JSONResponse({"object": "list", "data": data})

    async def props(request: Request) -> Response:
        about = {"model": "pocket", "methods": METHODS, "default_method": "auto", "chat_template": False}
        return refused(request) or JSONResponse({**about, "context_length": 8192, "version": "0.1.0"})

    async def chat(request: Request) -> Response:
        asked = await request.json()
        script.asked.append(asked)
        return refused(request) or StreamingResponse(script.stream(asked), media_type="text/event-stream")

    ours = [Route("/v1/models", models), Route("/props", props)]
    return Starlette(routes=[*page_routes(), *ours, Route("/v1/chat/completions", chat, methods=["POST"])])


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The address of a running server."""
    config = uvicorn.Config(page_app(script), port=0, log_level="error", timeout_graceful_shutdown=1, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
