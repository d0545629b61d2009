"""The picture of a text as a part of a notebook's page: the page's own style is left alone, and so is ours.

It is under the pages' policy (`page.POLICY`): no scripts, nothing from elsewhere, no text as markup. A part of a page
has no head that could declare it, so all of it is made by what makes our pages. And notebooks typeset formulas in what
they show: of a text they leave them alone.
"""

from __future__ import annotations

from functools import cache

from paceline.api.pictures.page import PAGE_STYLE, token_section
from paceline.api.pictures.tokens import TokenPicture

ROOT = "paceline-picture"
UNTYPESET = "tex2jax_ignore mathjax_ignore"
"""Classes of elements in which MathJax, of either kind, looks for no formula: one may hold links."""
THEMES = {
    "dark": ('[data-jp-theme-light="false"]', ".vscode-dark", ".vscode-high-contrast", "html[theme=dark]"),
    "light": ('[data-jp-theme-light="true"]', ".vscode-light", "html[theme=light]"),
}
"""How JupyterLab, VS Code and Colab mark a page's theme; elsewhere the picture follows the system's."""


def fragment(picture: TokenPicture) -> str:
    """A picture that may stand on any page."""
    return f'<div class="{ROOT} {UNTYPESET}">\n<style>\n{style()}</style>\n{token_section(picture)}</div>\n'


@cache
def style() -> str:
    """The rules of our pages, all of them within our own element."""
    pages = PAGE_STYLE.read_text(encoding="utf8").replace(":root {", "& {").replace("body {", "& {")
    themes = (
        f"{', '.join(f'{mark} .{ROOT}' for mark in marks)} {{ color-scheme: {theme} }}\n"
        for theme, marks in THEMES.items()
    )
    return f".{ROOT} {{\npadding: .5rem 1rem; border-radius: .5rem;\n{pages}}}\n{''.join(themes)}"
