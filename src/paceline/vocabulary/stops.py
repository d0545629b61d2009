"""Stop strings over ids: found in the generated text, wherever the tokens cut it.

A stop string ends a sequence with the first token after which the generated text contains it, exactly where decoding
everything after every token would find it. Characters are compared, not bytes: UTF-8 synchronises itself, so whole
characters are found at the same ends, and invalid bytes are seen as the reader sees them. Text of the prompt and of
skipped special tokens does not count.

Of several stop strings the one that ends first wins; of those that end together, the longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from paceline.errors import InputError
from paceline.vocabulary.detokenize import Detokenizer

if TYPE_CHECKING:
    from paceline.vocabulary.tokens import Vocabulary


class StopHit(NamedTuple):
    """`stop` is at `generated_text[start:end]`, counted in characters."""

    stop: str
    start: int
    end: int


class StopStrings:
    """A set of stop strings as one automaton (Aho-Corasick), shared by all sequences.

    A state is the longest end of the text so far that begins a stop string. So a sequence needs one number, and the
    state's depth is the number of characters that a reader must not see yet.
    """

    def __init__(self, vocabulary: Vocabulary, strings: str | Iterable[str], skip_special: bool = True) -> None:
        self.strings = (strings,) if isinstance(strings, str) else tuple(strings)
        for i, string in enumerate(self.strings):
            if not isinstance(string, str) or not string:
                raise InputError(f"stop string {i} is {string!r}; give text of at least one character")
        self._vocabulary = vocabulary
        self._skip_special = skip_special
        self.depth: list[int] = [0]
        self.found: list[str] = [""]  # by state, the longest stop string that ends here
        self.next: list[dict[str, int]] = [{}]
        self._grow()
        self._complete()

    def open(self, prefix: Iterable[int] = ()) -> StopMatcher:
        """A matcher for one sequence that continues `prefix`."""
        return StopMatcher(self, Detokenizer(self._vocabulary, self._skip_special, prefix))

    def _grow(self) -> None:
        """The tree of all beginnings of stop strings."""
        for string in self.strings:
            state = 0
            for character in string:
                if character not in self.next[state]:
                    self.next[state][character] = len(self.next)
                    self.depth.append(self.depth[state] + 1)
                    self.found.append("")
                    self.next.append({})
                state = self.next[state][character]
            self.found[state] = string

    def _complete(self) -> None:
        """Add the moves of beginnings that do not go on: the next longest beginning takes over. Level by level, because
        a state inherits from a shallower one; a character without entry leads to 0."""
        level = [(child, 0) for child in self.next[0].values()]
        while level:
            deeper = []
            for state, fallback in level:
                inherited = self.next[fallback]
                deeper += [(child, inherited.get(c, 0)) for c, child in self.next[state].items()]
                self.next[state] = inherited | self.next[state]
                self.found[state] = self.found[state] or self.found[fallback]
            level = deeper


class StopMatcher:
    """Stop strings in one growing sequence. Once `hit` is set it stays, and further tokens mean nothing."""

    __slots__ = ("_ahead", "_length", "_seen", "_state", "_stops", "_text", "hit")

    def __init__(self, stops: StopStrings, text: Detokenizer) -> None:
        self.hit: StopHit | None = None
        self._stops = stops
        self._text = text
        self._state = 0  # of the certain text
        self._length = 0
        self._ahead = 0  # of the text with the characters of a byte run that is still open
        self._seen = 0  # how many of those have been read

    def push(self, token: int) -> StopHit | None:
        """The stop string that the generated text contains now that `token` has been added, if any."""
        self.feed(token)
        return self.hit

    def feed(self, token: int) -> str:
        """Read one token; the text that has become certain with it, stop strings included."""
        text = self._text.push(token)
        self._read(text)
        return text

    def finish(self) -> str:
        """The rest of the text, searched for stop strings as all before."""
        text = self._text.finish()
        self._read(text)
        return text

    def undecided(self) -> int:
        """How many characters at the end of the certain text may begin a stop string. Changes nothing."""
        return self._stops.depth[self._state]

    def unsettled(self) -> str:
        """The characters that are text only if the sequence ends here. Changes nothing."""
        return self._text.unsettled()

    def _read(self, text: str) -> None:
        """Search the certain text and then the characters that still wait for their byte run to end.

        A sequence that stops ends its run, so a stop string among the waiting characters is final. Where they bring no
        stop they are read again once they are certain, or turn out to be U+FFFD.
        """
        if self.hit or not self._stops.strings:
            return
        if text:
            self._state = self._scan(text, self._state, self._length)
            self._length += len(text)
            self._ahead, self._seen = self._state, 0
        waiting = self._text.unsettled(self._seen)
        if waiting and not self.hit:
            self._ahead = self._scan(waiting, self._ahead, self._length + self._seen)
            self._seen += len(waiting)

    def _scan(self, text: str, state: int, start: int) -> int:
        following, found = self._stops.next, self._stops.found
        for end, character in enumerate(text, start + 1):
            state = following[state].get(character, 0)
            if found[state]:
                self.hit = StopHit(found[state], end - len(found[state]), end)
                break
        return state


class TextStream:
    """The text of a growing sequence as a reader may see it: certain, and cut right before a stop string. Text that may
    turn out to begin a stop string is held back."""

    __slots__ = ("_held", "_matcher", "_returned")

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: str | Iterable[str] = (),
        prefix: Iterable[int] = (),
        skip_special: bool = True,
    ) -> None:
        self._matcher = StopStrings(vocabulary, stops, skip_special).open(prefix)
        self._held = ""  # certain text that may begin a stop string
        self._returned = 0  # characters returned so far

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.hit and self._matcher.hit.stop

    def push(self, token: int) -> str:
        if self._matcher.hit:
            return ""
        self._held += self._matcher.feed(token)
        return self._release(self._matcher.undecided())

    def finish(self) -> str:
        """The rest of the text, now that no token follows."""
        if self._matcher.hit:
            return ""
        self._held += self._matcher.finish()
        return self._release(0)

    def _release(self, undecided: int) -> str:
        hit = self._matcher.hit
        if hit:
            text, end = self._held + self._matcher.unsettled(), hit.start - self._returned
        else:
            text, end = self._held, len(self._held) - undecided
        self._held = text[end:]
        self._returned += end
        return text[:end]
