"""The picture of a text in a terminal. With colours, a token that a drafter proposed stands on its drafter's colour, in
black, which reads on light and dark terminals. The model's own tokens are ordinary text, in italics or bold where a
draft stood before them. Without colours, tokens are in their drafter's brackets. Colours are those that all eyes can
distinguish (Okabe and Ito), and neighbours on one colour have two shades of it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from paceline.api.pictures.tokens import HALVES, WHY_OWN, Cell, TokenPicture, summary
from paceline.files.visible import CONTROLS
from paceline.verify import Kind

ROUND = "·"
END = "\u2403"
NEWLINE = "\u21b5\n"
SHOWN = CONTROLS | HALVES | {ord("\t"): "\t", ord("\n"): NEWLINE}
"""A line end is seen and kept, a tab is a tab; other control characters are signs that a terminal does not obey."""


@dataclass(frozen=True)
class Mark:
    """How the tokens of one source look."""

    opening: str
    closing: str
    shades: tuple[str, str]


OWN = {
    Kind.UNTOLD: Mark("", "", ("", "")),
    Kind.CORRECTED: Mark("×", "", ("italic", "italic")),
    Kind.BONUS: Mark("+", "", ("bold", "bold")),
    Kind.PLAIN: Mark(ROUND, "", ("", "")),
}
"""Of the model's own tokens."""
WORDS = {kind: said.partition(":")[0] for kind, said in WHY_OWN.items()}
MARKS = (
    Mark("[", "]", ("black on #56b4e9", "black on #8ccdf2")),
    Mark("{", "}", ("black on #e69f00", "black on #f2bf57")),
    Mark("<", ">", ("black on #1fb58b", "black on #6fd3b7")),
    Mark("(", ")", ("black on #f0e442", "black on #f7f0a0")),
    Mark("«", "»", ("black on #d284b0", "black on #e0abc9")),
)


class Painter:
    """Draws cells one after the other, and remembers which source got which mark."""

    def __init__(self, color: bool) -> None:
        self._color = color
        self._marks: dict[str, Mark] = {}
        self._open: tuple[str, int] | None = None
        self._round = -1
        self._count = 0

    def mark(self, source: str, kind: Kind = Kind.UNTOLD) -> Mark:
        return self._marks.setdefault(source, MARKS[len(self._marks) % len(MARKS)]) if source else OWN[kind]

    def prompt(self, prompt: str) -> Text:
        return Text(prompt.translate(SHOWN), "dim")

    def cell(self, cell: Cell) -> Text:
        """One cell, to be printed right after the one before."""
        self._count += 1
        said = cell.text.translate(SHOWN) or END
        if self._color:
            return Text(said, self.mark(cell.source, cell.kind).shades[self._count % 2] if cell.text else "dim")
        return Text(self._before(cell) + said)

    def end(self) -> Text:
        """The text that closes the last cell."""
        closing = self.mark(self._open[0]).closing if self._open else ""
        self._open = None
        return Text(closing)

    def _before(self, cell: Cell) -> str:
        """Brackets around what one source brought in one round; a dot where a round begins without."""
        here, fresh = (cell.source, cell.round), cell.round != self._round
        if here == self._open:
            return ""
        before = self.end().plain
        self._open, self._round = here, cell.round
        return before + (self.mark(cell.source, cell.kind).opening or (ROUND if fresh else ""))

    def legend(self, picture: TokenPicture) -> Text:
        """Which look means which source, and how many tokens each brought."""
        own = [self._entry(self.mark("", kind), WORDS[kind], count) for kind, count in picture.own.items()]
        if own and Kind.UNTOLD not in picture.own:
            own[0] = Text.assemble(f"{WORDS[Kind.UNTOLD]}: ", own[0])
        drafted = [self._entry(self.mark(name), name, count) for name, count in picture.counts.items() if name]
        parts = [*own, *drafted]
        how = (
            "a token on no colour ends a round" if self._color else "a bracket or × + · begins what one source brought"
        )
        ended = [Text(f"{END} the end", "dim")] if any(not cell.text for cell in picture.cells) else []
        return Text("   ").join([*parts, *ended, Text(f"({how})", "dim")])

    def caption(self, picture: TokenPicture) -> Text:
        """The lines under a picture: legend and totals."""
        totals = [] if picture.totals is None else [Text(summary(picture.totals))]
        return Text("\n").join([self.legend(picture), *totals])

    def _entry(self, mark: Mark, name: str, count: int) -> Text:
        if self._color:
            return Text.assemble((f"\xa0{name}\xa0", mark.shades[0]), f"\xa0{count}")  # which no line's end parts
        return Text(f"{mark.opening}{name}{mark.closing} {count}")


def paint(picture: TokenPicture, color: bool) -> Text:
    """The whole picture: prompt, text, legend, totals."""
    painter = Painter(color)
    for source in picture.counts:  # marks in the order of the legend; a streamed picture gives them out as they come
        painter.mark(source)
    drawn = [painter.prompt(picture.prompt), *map(painter.cell, picture.cells), painter.end()]
    title = [Text(picture.title, "bold")] if picture.title else []
    return Text("\n").join([*title, Text("").join(drawn), Text(""), painter.caption(picture)])
