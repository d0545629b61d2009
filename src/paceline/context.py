"""One sequence: the tokens committed so far, and when it ends.

A context holds everything that a drafter may know: the tokens, the sampling settings, and the public noise with which
the target will choose (`Context.gumbel`). A candidate ranked by log-score plus that noise is more likely to be the
target's choice. The target does not look at the draft, so a draft that knows the noise cannot change the text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, called
from paceline.law import Noise, Sampling, Stream
from paceline.vocabulary import StopMatcher, StopStrings

Ints = NDArray[np.int64]

Criterion = Callable[[Ints], bool]
"""All tokens so far, the new one included -> whether to end. Called once per emitted token."""


DraftPrompt: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A prompt for a draft model: a text as its own tokenizer takes it, or the messages of a chat for its own template."""

AHEAD = 1024
"""New tokens for which a target's rows are asked for beforehand, at most."""


class Finish(StrEnum):
    """Why a sequence ended, in the words of the OpenAI API where it has them."""

    EOS = "eos"
    STOP = "stop"
    CRITERION = "criterion"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """When plain decoding stops. Checked after every single token, also inside a draft."""

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    strings: StopStrings | None = None
    criteria: tuple[Criterion, ...] = ()
    context_length: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")

    def room(self, length: int, prompt_length: int) -> int:
        """How many more tokens may follow a sequence of ``length``."""
        room = prompt_length + self.max_new_tokens - length
        return room if self.context_length is None else min(room, self.context_length - length)


class Context:
    """The committed tokens of one sequence. `commit` is the only way in: every stop rule sees every token."""

    def __init__(
        self,
        prompt: Sequence[int] | Ints,
        sampling: Sampling,
        ending: Ending,
        *,
        sample: int = 0,
        draft_prompt: DraftPrompt | None = None,
        prediction: Sequence[int] = (),
    ) -> None:
        tokens = np.asarray(prompt)
        if tokens.ndim != 1:
            raise InputError(f"a prompt is one list of token ids, not an array of shape {tokens.shape}")
        if len(tokens) == 0:
            raise InputError("the prompt is empty; give at least one token (the model's BOS, say)")
        if tokens.dtype.kind not in "iu" or tokens.min() < 0:
            raise InputError(f"a prompt is token ids, whole numbers from 0 on; it holds {tokens.min()!s}")
        limit = ending.context_length
        if limit is not None and len(tokens) >= limit:
            raise InputError(
                f"the prompt has {len(tokens)} tokens and the model's context holds {limit}; "
                "shorten the prompt so that at least one token can follow"
            )
        self.sampling = sampling
        self.ending = ending
        self.noise = Noise(sampling.seed, sample)
        self.foreseeable = True
        """Whether the target chooses by the public noise. Under the rejection rule, whose noise is private, drafters
        should sample instead. Set by the session, which knows its rule."""
        self.prompt_length = len(tokens)
        self.draft_prompt = draft_prompt
        """The prompt as a draft model with another tokenizer is to read it; None for the text of the tokens."""
        self.prediction = prediction
        """The tokens that will probably follow the prompt, such as those of a file before an edit of it."""
        self.finish: Finish | None = None
        self._turns: dict[int, int] = {}
        self._scratch = _Scratch()
        self._length = len(tokens)
        self._buffer = enlarged(tokens.astype(np.int64), len(tokens) + 1)
        strings = ending.strings
        self._strings: StopMatcher | None = None if strings is None else strings.open(tokens.tolist())

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Ints:
        """Prompt and emitted tokens, a read-only view."""
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    def listed(self, start: int) -> list[int]:
        """The tokens from a place on; a negative place counts from the end."""
        if start < 0:
            start = max(0, self._length + start)
        return self._buffer[start : self._length].tolist()  # type: ignore[no-any-return]

    @property
    def emitted(self) -> Ints:
        """The tokens behind the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def root(self) -> int:
        """The last committed token: not in the cache yet, scored with the next draft."""
        return int(self._buffer[self._length - 1])

    def extended(self, tokens: Sequence[int] | Ints) -> Hypothesis:
        """This text as if these tokens followed, for drafters that plan ahead. Cheap; any number may exist."""
        return Hypothesis(self, self._length, np.asarray(tokens, np.int64), self._scratch)

    @property
    def room(self) -> int:
        """How many more tokens may be emitted before a length ends the sequence."""
        return self.ending.room(self._length, self.prompt_length)

    @property
    def reserve(self) -> int:
        """For how many tokens rows are asked for beforehand. Most texts end long before their limit, so those of a long
        one grow with it."""
        return self._length + min(self.room, AHEAD)

    def gumbel(self, ahead: int, ids: Ints) -> NDArray[np.float64]:
        """The public noise of the position ``ahead`` places after the next token, for the given token ids."""
        return self.noise.gumbel(self._length + ahead, ids)

    def exponentials(self, ahead: int | Ints, ids: Ints) -> NDArray[np.float64]:
        """The same noise as exponentials: the target chooses the token of least ``exponential / weight``. ``ahead`` is
        one place for all tokens, or a place for each."""
        if isinstance(ahead, int):
            return self.noise.exponential(Stream.TARGET, self._length + ahead, ids)
        return self.noise.exponential_each(Stream.TARGET, self._length + ahead, ids)

    def draft_coins(self, ahead: int, ids: Ints) -> NDArray[np.float64]:
        """Exponentials for a drafter to sample with, ``ahead`` places after the next token; no two draws share any.

        A later round or another drafter may draw for the same place again, and whether that happens may depend on
        earlier draws, so each draw for a place has its own turn. A text that is continued under the same seed draws
        for other places than the text before.
        """
        coins, place = self.next_draft_coins(ahead, ids), self._length + ahead
        self._turns[place] = self._turns.get(place, 0) + 1
        return coins

    def next_draft_coins(self, ahead: int, ids: Ints) -> NDArray[np.float64]:
        """The exponentials that the next `draft_coins` for this place will give, for a drafter that guesses what it
        will draw itself. Draws nothing."""
        place = self._length + ahead
        return self.noise.exponential(Stream.DRAFT, place, ids, self._turns.get(place, 0))

    def commit(self, token: int) -> bool:
        """Append one emitted token; True if plain decoding stops with it, or if another thread has cancelled the text.

        Every criterion is called for every token, also when an earlier rule already ended the sequence: stateful
        criteria count calls, and plain decoding would make this one.
        """
        assert self.finish in (None, Finish.CANCELLED), "a finished sequence takes no more tokens"
        self._make_room(self._length + 1)
        self._buffer[self._length] = token
        self._length += 1
        asked = [called("stopping criterion", criterion, self.tokens) for criterion in self.ending.criteria]
        stopped = self._strings is not None and self._strings.push(token) is not None
        if self.finish is not None:
            return True
        if token in self.ending.eos:
            self.finish = Finish.EOS
        elif stopped:
            self.finish = Finish.STOP
        elif any(asked):
            self.finish = Finish.CRITERION
        elif self.room <= 0:
            full = self._length < self.prompt_length + self.ending.max_new_tokens
            self.finish = Finish.CONTEXT if full else Finish.LENGTH
        return self.finish is not None

    def _make_room(self, length: int) -> None:
        if length > len(self._buffer):
            self._buffer = enlarged(self._buffer, length)

    def end_at(self, length: int) -> None:
        """End the text at this many tokens, prompt included, unless it ends before."""
        own = self.ending.context_length
        self.ending = replace(self.ending, context_length=length if own is None else min(own, length))

    def cancel(self) -> None:
        """End the sequence here, before plain decoding would. Safe from another thread: the round that is under way
        comes to its end with its next token."""
        if self.finish is None:
            self.finish = Finish.CANCELLED


class Hypothesis(Context):
    """A text followed by tokens that were not emitted. Making one copies no text, no stop rule sees its tokens, and it
    does not change when the text goes on.

    A drafter uses it like a context. It takes no tokens; `extended` makes a longer one.
    """

    def __init__(self, text: Context, length: int, ahead: Ints, scratch: _Scratch) -> None:
        """``length`` committed tokens of a text, and the tokens ``ahead`` of them."""
        self.sampling, self.ending, self.noise = text.sampling, text.ending, text.noise
        self.foreseeable, self.prompt_length, self.finish = text.foreseeable, text.prompt_length, None
        self.draft_prompt, self.prediction = text.draft_prompt, text.prediction
        self._text, self._committed, self._ahead, self._scratch = text, length, ahead, scratch
        self._turns, self._buffer = text._turns, text._buffer
        self._length = length + len(ahead)

    @property
    def tokens(self) -> Ints:
        return self._scratch.view(self._buffer[: self._committed], self._ahead)

    def listed(self, start: int) -> list[int]:
        return self.tokens[start:].tolist()  # type: ignore[no-any-return]

    @property
    def root(self) -> int:
        return int(self._ahead[-1] if len(self._ahead) else self._buffer[self._committed - 1])

    def extended(self, tokens: Sequence[int] | Ints) -> Hypothesis:
        return Hypothesis(self._text, self._committed, np.append(self._ahead, tokens), self._scratch)

    def commit(self, token: int) -> bool:
        raise TypeError("a hypothesis takes no tokens; extend it")

    def cancel(self) -> None:
        raise TypeError("a hypothesis does not end")


class _Scratch:
    """Memory for the tokens of one text's hypotheses: a copy of the text, and room for one hypothesis behind it.

    The next hypothesis overwrites the last one, unless a view of that still exists: then new memory is allocated. So a
    view never changes, and usually only the few tokens ahead are copied.
    """

    def __init__(self) -> None:
        self._buffer: Ints = np.empty(0, np.int64)
        self._known = 0
        """How many tokens of the text are copied."""
        self._lock = Lock()

    def view(self, text: Ints, ahead: Ints) -> Ints:
        """The committed tokens and those ahead, in one."""
        with self._lock:
            length = len(text) + len(ahead)
            if length > len(self._buffer) or self._references() > _ALONE:
                self._buffer, self._known = np.empty(2 * length, np.int64), 0
            self._buffer[self._known : len(text)] = text[self._known :]
            self._buffer[len(text) : length] = ahead
            self._known = len(text)
            view = self._buffer[:length]
            view.flags.writeable = False
            return view

    def _references(self) -> int:
        return sys.getrefcount(self._buffer)  # in numpy every view, also one of a view, refers to the whole memory


_ALONE = _Scratch()._references()
"""References to memory without views."""


def enlarged(tokens: Ints, length: int) -> Ints:
    """The tokens in memory for ``length`` of them, or for twice as many as before: a text that grows by its last token
    copies each token only a few times."""
    grown = np.empty(max(length, 2 * len(tokens)), np.int64)
    grown[: len(tokens)] = tokens
    return grown
