"""Errors in the form of OpenAI's API, with the sentences that Paceline gives elsewhere."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from paceline.api.settings import Options
from paceline.errors import InputError, PacelineError, ServingClosed

LOG = logging.getLogger("paceline.server")
INVALID, OVERLOADED, INTERNAL = "invalid_request_error", "overloaded_error", "server_error"
SHOWN = 60
"""Characters of a wrong value in a message."""
LONGEST = 600
"""Characters of a message."""
RETRY_SECONDS = 1
FLAGS = re.compile(r" \((?:Python: |in Python )?[^()]*--[a-z][^()]*\)")
"""Advice about the command line in a sentence."""


class ApiError(Exception):
    """An error that the server answers in place of a text."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        said = str(self)
        said = said if len(said) <= LONGEST else f"{said[:LONGEST]}…"
        return {"error": {"message": said, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return ErrorAnswer(self)


class ErrorAnswer(JSONResponse):
    """An error as a response. It leaves its sentence in the request's state, for the log."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.body(), error.status, error.headers)
        self._sentence = str(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["refusal"] = self._sentence
        await super().__call__(scope, receive, send)


def busy(texts: int) -> ApiError:
    """The answer where too many texts wait."""
    return ApiError(
        f"{texts} texts are being written or wait already; try again in a moment",
        status=429,
        kind=OVERLOADED,
        code="too_many_waiting",
        headers={"retry-after": str(RETRY_SECONDS)},
    )


def no_model(name: str, known: list[str]) -> ApiError:
    said = f"the model {name[:SHOWN]!r} is not served here; GET /v1/models lists {', '.join(known)}"
    return ApiError(said, status=404, param="model", code="model_not_found")


def api_error(error: BaseException) -> ApiError:
    """The answer for an exception. Sentences about a setting begin with its name."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _of_validation(error)
    if isinstance(error, ServingClosed):
        said = "the server is stopping and takes no more texts"
        return ApiError(said, status=503, kind=OVERLOADED, code="stopping", headers={"retry-after": str(RETRY_SECONDS)})
    if isinstance(error, InputError):
        said = str(error)
        first = said.split(" ", 1)[0].strip("'\"")
        return ApiError(_for_clients(said), param=first if first in Options.__annotations__ else None)
    number = uuid.uuid4().hex[:12]
    LOG.error("error %s", number, exc_info=error)
    if isinstance(error, PacelineError):
        return ApiError(str(error), status=500, kind=INTERNAL)
    return ApiError(f"an error inside the server; its log has it as {number}", status=500, kind=INTERNAL)


def _for_clients(said: str) -> str:
    """A sentence of the Python API for a client that sees neither Python nor the command line."""
    return FLAGS.sub("", said).replace("max_new_tokens", "max_tokens")


def _of_validation(error: ValidationError) -> ApiError:
    """The first of the mistakes in a request, in a sentence."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] in ("json_invalid", "json_type"):
        reason = str(first["msg"]).removeprefix("Invalid JSON: ")
        return ApiError(f"the body is no JSON object: {reason}", code="invalid_json")
    steps = [str(step) for step in first["loc"] if isinstance(step, int) or not _is_branch(step)]
    place = ".".join(steps)
    given = "" if first["type"] == "missing" else f", not {short(first['input'])}"
    said = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(f"{place or 'the body'}: {said[:1].lower()}{said[1:]}{given}", param=steps[0] if steps else None)


def _is_branch(step: str) -> bool:
    """Whether pydantic names a branch of a union so, and not a field."""
    return "[" in step or step in ("str", "int", "float", "bool", "dict", "list", "none")


def short(value: object) -> str:
    """A wrong value in a message. Python refuses to write very long whole numbers."""
    try:
        said = repr(value)
    except (ValueError, RecursionError):
        said = f"a value of type {type(value).__name__}"
    return said if len(said) <= SHOWN else f"{said[:SHOWN]}…"
