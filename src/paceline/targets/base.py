"""The contract of a target: it scores the rows of a draft behind a cached prefix.

A request names the cached rows of one sequence, the tokens to score behind them (the root and the draft's nodes), and
what the drafter wants to know of them. The result is lazy: logits stay on their device until they are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.context import common_length, enlarged
from paceline.errors import InputError
from paceline.law.scores import Array
from paceline.tree import DraftTree, Ints, ancestors, is_chain, offsets, rows_of

if TYPE_CHECKING:
    from paceline.targets.chains import Chain, ChainDraft
    from paceline.targets.scores import Scores
    from paceline.targets.streams import StreamsBeside


@dataclass(frozen=True, kw_only=True)
class Want:
    """The outputs of scored rows that a drafter needs beyond the tokens; the target computes nothing else.

    Hidden states are numbered as transformers numbers them: ``0`` the embeddings, ``i`` the output of layer ``i``
    (the input of the next), and the number of layers the state after the final norm, which the head reads.
    """

    logits: bool = False
    """Logits of the rows of a prompt (rows of a draft always have them)."""
    hidden: frozenset[int] = frozenset()
    early_exit: int | None = None
    """A layer whose state, sent through the final norm and the head, gives early logits for every row."""
    top: int = 0
    """How many of the best tokens after each row will be read (`Scores.top`); of a prompt's rows only with `logits`."""

    def __or__(self, other: Want) -> Want:
        exits = {want.early_exit for want in (self, other)} - {None}
        if len(exits) > 1:
            raise InputError(
                f"drafters ask for different early-exit layers {sorted(map(str, exits))}; a forward has one"
            )
        return Want(
            logits=self.logits or other.logits,
            hidden=self.hidden | other.hidden,
            early_exit=next(iter(exits), None),
            top=max(self.top, other.top),
        )


NOTHING = Want()
OnEarly = Callable[[Array], None]

SPARE_ROWS = 64
"""Capacity beyond the text, so that the rows of a draft fit behind it."""


class Rows(ABC):
    """The cached KV rows of one sequence: `committed` ones, then the `tentative` ones of the last scored request.

    There is one row per token. ``tokens`` holds the tokens, so that a later prompt can reuse a common prefix.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(64, np.int64)
        self.committed = 0
        self.tentative = 0
        self.changes = 0
        """Of the model that they are of: what `Target.look` found when they were opened."""

    @property
    def tokens(self) -> Ints:
        """The tokens whose rows are committed."""
        return self._tokens[: self.committed]

    @property
    def drafted(self) -> Ints:
        """The tokens of the tentative rows."""
        return self._tokens[self.committed : self.committed + self.tentative]

    def note(self, tokens: Ints, held: int = 0) -> None:
        """Note the tokens of rows that are about to be written behind the committed rows and the first ``held``
        tentative ones; drops the other tentative rows."""
        assert held <= self.tentative, f"{held} tentative rows cannot stay of {self.tentative}"
        start = self.committed + held
        end = start + len(tokens)
        if end > len(self._tokens):
            self._tokens = enlarged(self._tokens, end)
        self._tokens[start:end] = tokens
        self.tentative = held + len(tokens)

    def keep(self, path: Sequence[int]) -> None:
        """Commit the tentative rows ``path`` (ascending, counted from the first tentative row), drop the others."""
        self.hold(path)
        self.committed, self.tentative = self.committed + len(path), 0

    def hold(self, path: Sequence[int]) -> None:
        """Drop the tentative rows but these, of a draft that still grows; for rows without a state."""
        rows, drafted = np.asarray(path, np.int64), self.drafted
        assert len(rows) <= self.tentative, "a path descends its tree"
        if list(path) != list(range(len(rows))):
            assert (np.diff([*rows, self.tentative]) > 0).all(), "a path descends its tree"
            drafted[: len(rows)] = drafted[rows]
        self._gather(rows)
        self.tentative = len(rows)

    def rewind(self, length: int) -> int:
        """Forget every row behind the first ``length``, or more, as far as rows can be taken back; how many are left.
        The text behind these is read again."""
        assert 0 <= length <= self.committed, f"cannot rewind {self.committed} rows to {length}"
        self.committed, self.tentative = self._within_reach(length), 0
        self._truncate()
        return self.committed

    def _within_reach(self, length: int) -> int:
        """To how many rows these can be taken back, at most ``length``: a state is there only where it was kept."""
        return length

    def common_prefix(self, tokens: Ints) -> int:
        """How many leading tokens of a prompt are cached here. Does not change the rows."""
        return common_length(self.tokens, tokens)

    def adopt(self, other: Rows, count: int) -> None:
        """Be a copy of the first ``count`` committed rows of another sequence, or of as many as it can go back to."""
        assert count <= other.committed, f"cannot copy {count} rows of {other.committed}"
        count = other._within_reach(count)
        self.rewind(0)
        self.changes = other.changes
        self.note(other.tokens[:count])
        self._copy(other, count)
        self.committed, self.tentative = count, 0

    @abstractmethod
    def _copy(self, other: Rows, count: int) -> None:
        """Write the first ``count`` rows of another sequence of the same target, which are noted already."""

    @abstractmethod
    def _gather(self, rows: Ints) -> None:
        """Move the tentative rows ``rows`` directly behind the committed ones, in place."""

    def _truncate(self) -> None:
        """Called after a rewind, for rows that hold more than counters."""

    @abstractmethod
    def check(self) -> None:
        """Assert the accounting identity: every layer holds exactly the committed rows, then the tentative ones."""

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True, eq=False)
class Request:
    """Score ``tokens`` behind the committed rows. ``parents`` are row numbers; ``-1`` is the cached prefix.

    A draft can be scored in several requests, level by level: the first ``held`` tentative rows then stay and are not
    scored again; their parents are repeated in front of those of the fresh rows.
    """

    rows: Rows
    tokens: Ints
    parents: Ints
    want: Want = NOTHING
    prompt: int = 0
    """How many leading rows are prompt tokens before the root. They are not judged, so their logits are computed only
    if wanted. The root and its draft stand behind the last piece of a prompt; other pieces have no root."""
    held: int = 0
    on_early: OnEarly | None = None
    """Called in the middle of the forward with the early-exit logits of all fresh rows."""
    streams: StreamsBeside | None = None
    """Streams that the forward computes beside these rows, of a target that does so (`HFTarget.streams_beside`)."""

    def __post_init__(self) -> None:
        assert len(self.parents) == self.held + len(self.tokens), "held and fresh rows have one parent each"
        assert not ((self.held or self.streams) and self.prompt), "rows that are held or have streams are a draft's"

    @classmethod
    def of_tree(
        cls, rows: Rows, root: int, tree: DraftTree, want: Want = NOTHING, on_early: OnEarly | None = None
    ) -> Request:
        return cls(rows, *rows_of(root, tree), want, on_early=on_early)

    @classmethod
    def of_prompt(cls, rows: Rows, tokens: Ints, want: Want = NOTHING, *, ends_prompt: bool = False) -> Request:
        """A piece of a prompt. With ``ends_prompt`` its last token is the root, which is scored as well."""
        return cls(rows, tokens.copy(), np.arange(-1, len(tokens) - 1), want, prompt=len(tokens) - ends_prompt)

    @property
    def prefill(self) -> bool:
        """Whether any row is a prompt token before the root."""
        return self.prompt > 0

    @property
    def scored(self) -> slice:
        """The fresh rows whose logits are computed."""
        return slice(0 if self.want.logits else self.prompt, len(self.tokens))

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """``[n, held + n]``: which tentative rows each fresh one sees."""
        return ancestors(self.parents)[self.held :]

    @cached_property
    def positions(self) -> Ints:
        """The position of each fresh row in its sequence: the number of tokens before it on its path."""
        return self.tentative_positions[self.held :]

    @cached_property
    def tentative_positions(self) -> Ints:
        """`positions` of the held rows, then of the fresh ones."""
        return self.rows.committed + offsets(self.parents)

    @cached_property
    def is_chain(self) -> bool:
        return is_chain(self.parents)

    @property
    def start(self) -> int:
        """The place in the text of the first tentative row."""
        return self.rows.committed

    @property
    def end(self) -> int:
        """How many rows the sequence has once these are scored."""
        return self.rows.committed + len(self.parents)


class Pending(ABC):
    """A submitted forward. The serial driver waits for its `result` at once; an overlapped driver drafts meanwhile."""

    @abstractmethod
    def result(self) -> list[Scores]: ...


class Done(Pending):
    """A forward that was finished when `submit` returned."""

    def __init__(self, scores: list[Scores]) -> None:
        self._scores = scores

    def result(self) -> list[Scores]:
        return self._scores


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The drafts that a target can score without one row depending on another (`Target.reach`)."""

    trees: bool = True
    """Whether siblings may be scored together; otherwise chains only."""
    depth: int | None = None
    """The most tokens of a draft in a row; None without a limit."""
    alone: bool = False
    """Whether a forward may hold one sequence only."""


class Target(ABC):
    """A model whose text must not change."""

    name: str
    bundled: str = ""
    """The bundled model that its file says it was made of, if any."""
    vocab_size: int
    context_length: int | None
    eos: frozenset[int]
    prefill_chunk: int = 512
    probing: bool = False
    """Whether planners time a few forwards before the first text. Set where a model is opened by name."""
    first_token_with_prompt: bool = True
    """Whether the forward that ends a prompt also scores the first token, without a draft for it."""

    def __repr__(self) -> str:
        return f"<target {self.name}, {self.dtype}, {self.device}>"

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The type of its weights as users write it, for example float32 or int8."""

    @property
    def device(self) -> str:
        """Where its logits are, for example cpu or cuda:0."""
        return "cpu"

    exact: ClassVar[bool] = False
    """Whether a row's logits are the same, bit by bit, whatever is scored beside it."""
    unordered: ClassVar[bool] = False
    """Whether new rows take the places of refused ones: sums over rows in another order differ in the last bit."""
    ranks: int = 1
    """How many processes compute it together."""
    rounded: bool = False
    """Whether weights are stored in few bits, so that the model's fingerprint is not that of the one in floats."""

    @property
    def threads(self) -> int:
        """How many threads compute on the host."""
        return 1

    @property
    def recorded(self) -> bool:
        """Whether forwards are recorded once for all drafts of a shape."""
        return False

    @property
    def compiled(self) -> bool:
        """Whether a forward is one compiled call: then that of a small network beside it should be one, too."""
        return False

    def beside(self) -> AbstractContextManager[None]:
        """What light work between two forwards is done in, where it would else hold up the next one."""
        return nullcontext()

    @property
    def layers(self) -> int:
        """The number of layers, which is also that of the state that the head reads (`Want.hidden`)."""
        raise self._has_none("layers")

    def embed(self, tokens: Array) -> Array:
        """Input embeddings ``[..., width]`` of token ids on its device, before any scale of the model's."""
        raise self._has_none("input embeddings")

    @property
    def embedding_rows(self) -> Array | None:
        """The same of all tokens where they lie, bfloat16 as whole numbers; None where code may not read that."""
        return None

    def unembed(self, states: Array) -> Array:
        """The output head: logits ``[n, vocabulary]`` of states ``[n, width]`` behind the final norm."""
        raise self._has_none("output head")

    def _has_none(self, what: str) -> InputError:
        return InputError(f"{self.name} shows no {what}; choose a drafter that needs none")

    @abstractmethod
    def open(self, capacity: int = 0) -> Rows:
        """Rows for one sequence, with memory for ``capacity`` tokens."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> Pending:
        """Score several requests, each of another sequence, in as few forwards as the model allows."""

    def score(self, requests: Sequence[Request]) -> list[Scores]:
        """`submit`, and wait for the result."""
        return self.submit(requests).result()

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        """Draft a token after another behind several texts; None where the caller has to, level by level."""
        return None

    def played(self, key: Hashable, function: Callable[..., Array], given: Sequence[Array]) -> Array:
        """The result of a function of arrays. A target that records has it recorded once for each key, which names all
        that the function depends on beside the values of these arrays; then the result lasts until the next call."""
        return function(*given)

    def reach(self, position: int) -> Reach:
        """The drafts that are possible behind a root at ``position``."""
        return Reach()

    def prefill_size(self, length: int) -> int:
        """How many prompt tokens to score per forward, where ``length`` stand before the root."""
        return self.prefill_chunk

    def look(self) -> int:
        """How many changes by the model's owner were noticed so far: rows of before the last one are not of it."""
        return 0

    def forget(self) -> None:
        """Take the model as it is now, as after a change that `look` does not notice."""

    def release(self) -> None:
        """Give back memory that is kept for later sequences. Open sequences keep theirs."""

    def row_bytes(self) -> int | None:
        """Bytes of memory that a KV row of a sequence takes; None where that is unknown."""
        return None

    def sequence_bytes(self) -> int:
        """Bytes of memory that a sequence takes beside its rows."""
        return 0

    def lends(self, common: int, read: int) -> int:
        """How many of the first ``common`` tokens others can take over from a text of which ``read`` are being read."""
        return common

    def free_memory(self) -> int | None:
        """Bytes of memory that rows may take; None where that is unknown."""
        return None

    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for equal weights, different for different ones."""
