"""Cards beside what was made: what it is, what it was made from, how good it is, and at what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from paceline.files import write_whole

CARD = "CARD.md"
TEMPLATES = Path(__file__).parent


def write(folder: Path, template: Path, **found: Any) -> None:
    """The card of a folder from a template, which finds the templates of this room as well."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    write_whole(folder / CARD, environment.get_template(template.name).render(**found))
