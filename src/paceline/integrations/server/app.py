"""The application: its paths and their endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.integrations.server.chat import ChatJob
from paceline.integrations.server.completions import CompletionJob
from paceline.integrations.server.doors import Doors, Guard
from paceline.integrations.server.errors import ApiError, api_error
from paceline.integrations.server.flows import Left
from paceline.integrations.server.job import TextJob
from paceline.integrations.server.models import Limits, Models
from paceline.integrations.server.page import page_routes
from paceline.integrations.server.record import AnswerRecorder
from paceline.integrations.server.requests import (
    BodyT,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponseRequest,
    TemplateRequest,
    TokenizeRequest,
)
from paceline.integrations.server.responses import ResponseJob
from paceline.integrations.server.settings import usual_temperature
from paceline.integrations.server.sse import JsonAnswer
from paceline.integrations.server.stored import Store
from paceline.integrations.server.tokens import apply_template, detokenize, tokenize

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
LARGE_BYTES = 256 << 10
"""Bodies above are read in a thread: others wait for the event loop."""
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(models: Models, *, limits: Limits | None = None, doors: Doors | None = None) -> Starlette:
    """The server as an ASGI application."""
    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        for served in models:
            await asyncio.to_thread(lambda model: model.system_fingerprint, served)  # it reads all weights
        yield
        await asyncio.to_thread(models.close)

    recorder = AnswerRecorder(models)
    app = Starlette(
        routes=_routes(models, limits),
        middleware=[Middleware(Guard, doors=doors or Doors(), note=recorder.note_refusal)],
        exception_handlers={Exception: _failed, HTTPException: _not_found, ApiError: _failed},
        lifespan=lifespan,
    )
    app.state.models, app.state.limits = models, limits
    app.state.recorder, app.state.store = recorder, Store()
    return app


def _routes(models: Models, limits: Limits) -> list[Route]:
    def writes(job: type[TextJob[Any]], body: type[BodyT]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return await job(await read_body(request, body, limits), request, models, limits).respond()

        return endpoint

    def answers(function: Callable[[Any, Models], dict[str, Any]], body: type[BodyT]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            given = await read_body(request, body, limits)
            return JsonAnswer(await asyncio.to_thread(function, given, models))

        return endpoint

    chat, completion = writes(ChatJob, ChatRequest), writes(CompletionJob, CompletionRequest)
    posts: dict[str, Endpoint] = {
        "/v1/chat/completions": chat,
        "/chat/completions": chat,
        "/v1/completions": completion,
        "/completions": completion,
        "/v1/responses": writes(ResponseJob, ResponseRequest),
        "/tokenize": answers(tokenize, TokenizeRequest),
        "/detokenize": answers(detokenize, DetokenizeRequest),
        "/apply-template": answers(apply_template, TemplateRequest),
    }
    gets = {
        "/v1/models": _models,
        "/models": _models,
        "/v1/models/{name:path}": _model,
        "/health": _health,
        "/metrics": _metrics,
        "/props": _props,
        "/v1/responses/{name}": _stored,
    }
    return [
        Route("/v1/responses/{name}", guarded(_forgotten), methods=["DELETE"]),
        *(Route(path, guarded(endpoint), methods=["POST"]) for path, endpoint in posts.items()),
        *(Route(path, guarded(endpoint), methods=["GET"]) for path, endpoint in gets.items()),
        *page_routes(),
    ]


def guarded(endpoint: Endpoint) -> Endpoint:
    """An endpoint that answers its errors."""

    async def guarding(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (Left, ClientDisconnect):
            return Response(status_code=499)  # the client has left
        except Exception as error:
            return api_error(error).response()

    return guarding


async def read_body(request: Request, kind: type[BodyT], limits: Limits) -> BodyT:
    """The JSON object of a request, within the limits of size and of time."""
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated) > limits.body_bytes:
        raise _too_large(limits)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                parts.append(part)
    except TimeoutError:
        said = f"the body did not arrive within {limits.read_seconds:g} seconds"
        raise ApiError(said, status=408, code="timeout", headers={"connection": "close"}) from None
    whole = b"".join(parts)
    if size > LARGE_BYTES:
        return await asyncio.to_thread(kind.model_validate_json, whole)
    return kind.model_validate_json(whole)


def _too_large(limits: Limits) -> ApiError:
    said = f"a body has at most {limits.body_bytes} bytes"
    return ApiError(said, status=413, code="too_large", headers={"connection": "close"})


# --- endpoints that write no text ---


async def _models(request: Request) -> Response:
    return JsonAnswer({"object": "list", "data": [served.as_openai() for served in request.app.state.models]})


async def _model(request: Request) -> Response:
    return JsonAnswer(request.app.state.models.named(request.path_params["name"]).as_openai())


async def _health(request: Request) -> Response:
    return JsonAnswer({"status": "ok"})


async def _metrics(request: Request) -> Response:
    return Response(request.app.state.recorder.text(), media_type=PLAIN)


async def _props(request: Request) -> Response:
    served = request.app.state.models.named(request.query_params.get("model"))
    found = await asyncio.to_thread(served.props)
    found |= {"default_temperature": usual_temperature(served), "total_slots": request.app.state.limits.at_once}
    return JsonAnswer(found)


async def _stored(request: Request) -> Response:
    return JsonAnswer(request.app.state.store.get(request.path_params["name"]).response)


async def _forgotten(request: Request) -> Response:
    name = request.path_params["name"]
    request.app.state.store.drop(name)
    return JsonAnswer({"id": name, "object": "response", "deleted": True})


async def _failed(request: Request, error: Exception) -> Response:
    return api_error(error).response()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "the handler of these"
    said = f"{request.method} {request.url.path[:80]} is not served; {error.detail}"
    return ApiError(said, status=error.status_code, code="not_found", headers=error.headers).response()
