"""Untrusted texts made safe for a terminal: control characters are replaced by visible characters.

A name in a file or a line of a model's text may hold an escape sequence, which clears the screen, sets its title or
types the next command, or a character that reverses the direction of writing and so shows another text.
"""

from __future__ import annotations

CONTROLS = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters -> visible characters, one for one."""
DIRECTIONS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
"""Characters that change the direction of writing -> visible characters."""
UNPRINTABLE = CONTROLS | DIRECTIONS
LAYOUT = {code: sign for code, sign in UNPRINTABLE.items() if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """A safe text; line breaks and tabs stay."""
    return text.translate(LAYOUT)


def one_line(text: str) -> str:
    """A safe text of one line."""
    return text.translate(UNPRINTABLE)
