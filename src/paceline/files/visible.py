"""Texts of others made safe for a terminal: control characters become visible signs.

A name in a file or a line of a model's text may hold an escape sequence, which clears the screen, sets its title or
types the next command, or a sign that turns the direction of writing and so shows another text than there is.
"""

from __future__ import annotations

CONTROLS = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters -> visible signs, one for one."""
TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
"""Signs that turn the direction of writing -> visible signs."""
LINE = CONTROLS | TURNING
LAYOUT = {code: sign for code, sign in LINE.items() if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """A safe text; line breaks and tabs stay."""
    return text.translate(LAYOUT)


def one_line(text: str) -> str:
    """A safe text of one line."""
    return text.translate(LINE)
