"""By which rule the entries of a dictionary propose."""

from enum import StrEnum


class EntryRule(StrEnum):
    """What an entry proposes."""

    TOKEN = "token"
    """One token after the other, as long as each is likely enough after those before it."""
    PAPER = "paper"
    """The most probable ending, if it is likely enough as a whole."""
