"""Reading a text that is still being written.

Parsers are generators: they yield where they need more text, and go on in the same place when it has come. So one
parser reads whole texts and streams, and how the text is cut cannot matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from paceline.errors import PacelineError

NAME_LENGTH = 256
"""Characters of a function's name or a header, at most."""
OUTSIDE = re.compile(r'["{}\[\]]|[^\s\w.+\-:,]')
"""Outside of strings: what changes the depth of JSON, and what JSON cannot hold."""
INSIDE = re.compile(r'["\\\x00-\x1f]')
WORD = re.compile(r"[\w.\-/]*")


class Malformed(PacelineError):
    """A text that is no call after all. It is content."""


class Cursor:
    """A growing text, and the place in it that is read next."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def drop(self) -> None:
        """Forget the text before the place."""
        self.text, self.at = self.text[self.at :], 0

    def is_over(self) -> Generator[None, None, bool]:
        """Whether the text ends here."""
        while self.at >= len(self.text) and not self.ended:
            yield
        return self.at >= len(self.text)

    def sees(self, *literals: str) -> Generator[None, None, str]:
        """The one of the literals that stands here, or nothing. The place stays."""
        while True:
            for literal in literals:
                if self.text.startswith(literal, self.at):
                    return literal
            known = self.text[self.at : self.at + max(map(len, literals))]
            if self.ended or not any(literal.startswith(known) for literal in literals):
                return ""
            yield

    def takes(self, *literals: str) -> Generator[None, None, str]:
        """The one of the literals that stands here, or nothing; the place moves behind it."""
        found = yield from self.sees(*literals)
        self.at += len(found)
        return found

    def expects(self, literal: str) -> Generator[None, None, None]:
        """Move behind a literal that has to stand here."""
        if not (yield from self.takes(literal)):
            raise Malformed(f"no {literal} here")

    def skips_spaces(self) -> Generator[None, None, None]:
        """Move behind whitespace."""
        while not (yield from self.is_over()) and self.text[self.at].isspace():
            self.at += 1

    def word(self) -> Generator[None, None, str]:
        """The name that stands here, which may not be empty."""
        while True:
            found = WORD.match(self.text, self.at)
            assert found is not None
            if found.end() < len(self.text) or self.ended or len(found[0]) > NAME_LENGTH:
                break
            yield
        if not 0 < len(found[0]) <= NAME_LENGTH:
            raise Malformed("no name here")
        self.at = found.end()
        return found[0]

    def until(self, *literals: str, within: int | None = None) -> Generator[None, None, str]:
        """The text before the first of the literals; the place moves to that. It may have so many characters."""
        seen, longest = self.at, max(map(len, literals))
        while True:
            places = [place for literal in literals if (place := self.text.find(literal, seen)) >= 0]
            length = (min(places) if places else len(self.text) - longest) - self.at
            if (self.ended and not places) or (within is not None and length > within):
                raise Malformed(f"no {literals[0]} follows")
            if places:
                break
            seen = max(self.at, len(self.text) - longest + 1)
            yield
        start, self.at = self.at, min(places)
        return self.text[start : self.at]

    def json(self) -> Generator[None, None, Any]:
        """The JSON object or array that stands here."""
        start = self.at
        if not (yield from self.sees("{", "[")):
            raise Malformed("no JSON here")
        self.at = yield from self._json_end()
        try:
            return json.loads(self.text[start : self.at], parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise Malformed(str(error)) from None

    def _json_end(self) -> Generator[None, None, int]:
        """Where the JSON value that begins here ends. Every character is looked at once."""
        place, depth, quoted = self.at, 0, False
        while True:
            found = (INSIDE if quoted else OUTSIDE).search(self.text, place)
            if found is None or (found[0] == "\\" and found.end() == len(self.text)):
                if self.ended:
                    raise Malformed("the JSON does not end")
                place = len(self.text) if found is None else found.start()
                yield
                continue
            place = found.end()
            if found[0] == '"':
                quoted = not quoted
            elif found[0] == "\\":
                place += 1
            elif quoted or found[0] not in "{}[]":
                raise Malformed(f"JSON cannot hold {found[0]!r} here")
            else:
                depth += 1 if found[0] in "{[" else -1
                if depth == 0:
                    return place


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")


def pass_on(cursor: Cursor, literals: tuple[str, ...], say: Callable[[str], None]) -> Generator[None, None, str]:
    """Say the text up to the first of the literals, and return that one, or nothing if the text ends before. Text waits
    only while it may begin a literal."""
    while True:
        places = [(place, -len(one), one) for one in literals if (place := cursor.text.find(one, cursor.at)) >= 0]
        place, found = (min(places)[0], min(places)[2]) if places else (len(cursor.text) - held(cursor, literals), "")
        if place > cursor.at:
            say(cursor.text[cursor.at : place])
        cursor.at = place + len(found)
        cursor.drop()
        if found or cursor.ended:
            return found
        yield


def held(cursor: Cursor, literals: tuple[str, ...]) -> int:
    """How many characters at the end of the text may begin a literal."""
    if cursor.ended or not literals:
        return 0
    most = min(max(map(len, literals)) - 1, len(cursor.text) - cursor.at)
    ends = (cursor.text[-length:] for length in range(most, 0, -1))
    return next((len(end) for end in ends if any(one.startswith(end) for one in literals)), 0)
