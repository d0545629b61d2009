"""Grammars: which tokens may come next in a text that must be JSON, match an expression, or be one of some texts.

`base` describes a grammar and says what a matcher does, `following` keeps a matcher at the place of a text, and
`llguidance` makes matchers by the library of that name. Descriptions need neither numpy nor the library.
"""

from paceline.grammar.base import Grammar

__all__ = ["Grammar"]
