"""The page that the server shows: a chat whose tokens are coloured by their source, and a race against plain decoding.

The page loads nothing from elsewhere. Its policy permits neither inline scripts nor inline styles, so a text of a model
that reached the page as markup still could not run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
INDEX = "index.html"
PICTURES = ("paceline.api.pictures", "page.css")
"""The style sheet of all pictures of tokens: the page has their colours from it, and adds its own rules."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_routes() -> list[Route]:
    """One route for each file, and no other: no part of an address becomes a path."""
    package = files(__name__)
    shown = {"/": package / INDEX, "/page/tokens.css": files(PICTURES[0]) / PICTURES[1]}
    names = sorted(entry.name for entry in package.iterdir() if _suffix(entry.name) in TYPES and entry.name != INDEX)
    shown |= {f"/page/{name}": package / name for name in names}
    return [Route(address, _answer(file), methods=["GET"], name=f"page {address}") for address, file in shown.items()]


def _answer(file: Traversable) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint for one file, which is read once."""
    content, kind = file.read_bytes(), TYPES[_suffix(file.name)]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
