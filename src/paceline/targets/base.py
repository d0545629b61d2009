"""What a target is: something that scores the rows of a draft after a cached prefix.

A request names the cached rows of one sequence, the tokens to score after them (the root and the draft's nodes), and
what the drafter wants to know of them. The answer is lazy: logits stay where the model put them, and only what is
asked for crosses to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.targets.forwards import Heard, OnEarly, Pending, Reach, on_early_of
from paceline.targets.reading import RowBlocks, Top, by_blocks, read_plainly
from paceline.tree import ROOT, DraftTree, Ints, ancestors, is_chain, offsets, rows_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Want:
    """What a drafter needs to know of scored rows beyond the tokens; the target computes nothing else.

    Hidden states are numbered as transformers numbers them: ``0`` the embeddings, ``i`` the output of layer ``i``
    (the input of the next), and the number of layers the state after the final norm, which the head reads.
    """

    logits: bool = False
    """Logits of the rows of a prompt (rows of a draft always have them)."""
    hidden: frozenset[int] = frozenset()
    early_exit: int | None = None
    """A layer whose state, sent through the final norm and the head, gives early logits for every row."""
    top: int = 0
    """How many of the best tokens after each row it will read (`Scores.top`); of a prompt's rows beside `logits`."""

    def __or__(self, other: Want) -> Want:
        exits = {want.early_exit for want in (self, other)} - {None}
        if len(exits) > 1:
            raise ValueError(
                f"drafters ask for different early-exit layers {sorted(map(str, exits))}; a forward has one"
            )
        return Want(
            logits=self.logits or other.logits,
            hidden=self.hidden | other.hidden,
            early_exit=next(iter(exits), None),
            top=max(self.top, other.top),
        )


NOTHING = Want()


SPARE_ROWS = 64
"""Room to ask for beyond the text, so that the rows of a draft fit behind it."""


class Rows(ABC):
    """The cached rows of one sequence: `committed` ones, then the `tentative` ones of the last scored request.

    A target keeps one row per token. ``tokens`` remembers which, so that a later prompt can reuse a common prefix.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(64, np.int64)
        self.committed = 0
        self.tentative = 0

    @property
    def tokens(self) -> Ints:
        """The tokens whose rows are committed."""
        return self._tokens[: self.committed]

    @property
    def drafted(self) -> Ints:
        """The tokens of the tentative rows."""
        return self._tokens[self.committed : self.committed + self.tentative]

    def note(self, tokens: Ints, held: int = 0) -> None:
        """Remember the tokens of rows about to be written behind the committed ones and the first ``held`` tentative
        ones; drops the other tentative rows."""
        assert held <= self.tentative, f"{held} tentative rows cannot stay of {self.tentative}"
        start = self.committed + held
        end = start + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), np.int64)
            grown[:start] = self._tokens[:start]
            self._tokens = grown
        self._tokens[start:end] = tokens
        self.tentative = held + len(tokens)

    def keep(self, path: Sequence[int]) -> None:
        """Commit the tentative rows ``path`` (ascending, counted from the first tentative row), drop the others."""
        rows = np.asarray(path, np.int64)
        assert len(rows) == 0 or (rows[-1] < self.tentative and (np.diff(rows) > 0).all()), "a path descends its tree"
        self._tokens[self.committed : self.committed + len(rows)] = self._tokens[self.committed + rows]
        self._gather(rows)
        self.committed += len(rows)
        self.tentative = 0

    def rewind(self, length: int) -> None:
        """Forget every row behind the first ``length``."""
        assert 0 <= length <= self.committed, f"cannot rewind {self.committed} rows to {length}"
        self.committed, self.tentative = length, 0
        self._truncate()

    def common_prefix(self, tokens: Ints) -> int:
        """How many leading tokens of a prompt are cached here already. Does not change the rows."""
        n = min(self.committed, len(tokens))
        differ = np.flatnonzero(self._tokens[:n] != tokens[:n])
        return int(differ[0]) if len(differ) else n

    def adopt(self, other: Rows, count: int) -> None:
        """Hold a copy of the first ``count`` committed rows of another sequence instead of one's own."""
        assert count <= other.committed, f"cannot copy {count} rows of {other.committed}"
        self.rewind(0)
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
    """Score ``tokens`` behind the committed rows. ``parents`` are row numbers; ``-1`` hangs from the cached prefix.

    A draft can be scored in several requests, level by level: the first ``held`` tentative rows then stay, are not
    scored again, and have their parents repeated in front of those of the fresh rows.
    """

    rows: Rows
    tokens: Ints
    parents: Ints
    want: Want = NOTHING
    prompt: int = 0
    """How many leading rows are prompt tokens before the root. None of them is judged, so their logits are computed
    only if wanted. The root and its draft stand behind the last piece of a prompt; other pieces have no root."""
    held: int = 0
    on_early: Heard = None
    """Called by `Target.score` with the early-exit logits of the fresh rows while the forward goes on."""

    def __post_init__(self) -> None:
        assert len(self.parents) == self.held + len(self.tokens), "held and fresh rows have one parent each"
        assert not (self.held and self.prompt), "rows that are held are a draft's"

    @classmethod
    def of_tree(cls, rows: Rows, root: int, tree: DraftTree, want: Want = NOTHING, on_early: Heard = None) -> Request:
        return cls(rows, *rows_of(root, tree), want, on_early=on_early)

    @classmethod
    def of_prompt(cls, rows: Rows, tokens: Ints, want: Want = NOTHING, *, ends_prompt: bool = False) -> Request:
        """A piece of a prompt. With ``ends_prompt`` its last token is the root, which is scored as well."""
        before_root = len(tokens) - ends_prompt
        return cls(rows, tokens.copy(), np.arange(-1, len(tokens) - 1), want, prompt=before_root)

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
    def end(self) -> int:
        """How many rows the sequence has once these are scored."""
        return self.rows.committed + len(self.parents)


class Scores:
    """What a target found for the root and the nodes of one request. The root is ``-1``, the first row.

    Where the root was scored behind a piece of the prompt, `prompt` holds what was found for the rows of that piece. A
    request without a root has its prompt's rows here.
    """

    prompt: Scores | None = None
    """What a request for the piece without the root would have brought; None for other requests."""

    def __init__(
        self,
        request: Request,
        logits: torch.Tensor | None,
        *,
        hidden: dict[int, torch.Tensor] | None = None,
        early: torch.Tensor | None = None,
        rows: slice | None = None,
    ) -> None:
        """``logits`` ``[rows, vocabulary]``, on the target's device, are None for a prompt whose logits are not wanted.
        ``rows`` are these scores' share of the request's fresh rows, unless they are all."""
        share = rows or slice(0, len(request.tokens))
        self.tokens = request.tokens[share]
        self.parents = request.parents[request.held :][share] - share.start
        self._logits = logits
        self._hidden = hidden or {}
        self._early = early
        self._most = request.want.top
        self._top: Top | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        logits: torch.Tensor | None,
        hidden: dict[int, torch.Tensor] | None = None,
        early: torch.Tensor | None = None,
    ) -> Scores:
        """Of the logits of `Request.scored` rows, and of states and early logits of all fresh rows."""
        n, cut = len(request.tokens), request.prompt
        if not 0 < cut < n:
            return cls(request, logits, hidden=hidden, early=early)
        assert logits is not None, "the root has logits"

        def share(rows: slice, logits: torch.Tensor | None) -> Scores:
            states = {layer: found[rows] for layer, found in (hidden or {}).items()}
            return cls(request, logits, hidden=states, early=None if early is None else early[rows], rows=rows)

        scores = share(slice(cut, n), logits[cut - request.scored.start :])
        scores.prompt = share(slice(0, cut), logits[:cut] if request.want.logits else None)
        return scores

    @property
    def logits(self) -> torch.Tensor:
        """Full logits, root row first, before any warp."""
        if self._logits is None:
            raise ValueError("logits of prompt rows were not computed; ask for them with Want(logits=True)")
        return self._logits

    def row(self, node: int) -> torch.Tensor:
        """The logits that follow a node."""
        return self.logits[node - ROOT]

    @cached_property
    def _blocks(self) -> RowBlocks:
        """The rows by blocks. One pass serves choices and best tokens, where both will be asked for."""
        return RowBlocks.of(self.logits.detach(), summed=self._most > 0)

    @cached_property
    def _choices(self) -> Ints:
        best: Ints = self._blocks.choices() if by_blocks(self.logits) else self.logits.argmax(dim=-1).cpu().numpy()
        return best

    def choice(self, node: int) -> int:
        """The most probable token after a node, ties to the lowest id."""
        return int(self._choices[node - ROOT])

    def choices(self) -> Ints:
        """`choice` of the root and of every node, in one transfer."""
        return self._choices

    def top(self, k: int) -> Top:
        """The ``k`` best tokens of every row, best first, with what turns their logits into log-probabilities.

        Read once for all who ask: as many as the request wanted, and more only if more are asked for.
        """
        k = min(k, self.logits.shape[-1])
        if self._top is None or self._top.ids.shape[1] < k:
            self._top = self._read(min(max(k, self._most), self.logits.shape[-1]))
        return Top(self._top.ids[:, :k], self._top.logits[:, :k], self._top.log_z)

    def read_top(self) -> None:
        """Read as many of the best tokens as the request wanted, now rather than when `top` asks."""
        if self._most and self._logits is not None:
            self.top(self._most)

    def _read(self, k: int) -> Top:
        if not by_blocks(self.logits):
            return read_plainly(self.logits.detach(), k)
        if self._blocks.sums is None:
            self._blocks = RowBlocks.of(self.logits.detach(), summed=True)
        return self._blocks.best(k)

    def hidden(self, layer: int) -> torch.Tensor:
        """States ``[rows, width]`` of a layer that `Want.hidden` named."""
        return self._hidden[layer]

    @property
    def early(self) -> torch.Tensor:
        """Logits ``[rows, vocabulary]`` of the early exit that `Want.early_exit` named."""
        assert self._early is not None, "no early exit was wanted"
        return self._early


class Target(ABC):
    """A model whose text must not change."""

    name: str
    vocab_size: int
    context_length: int | None
    eos: frozenset[int]
    prefill_chunk: int = 512

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of its logits."""

    @property
    def dtype_name(self) -> str:
        """As users write it: float32."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        import torch

        return torch.device("cpu")

    @property
    def recorded(self) -> bool:
        """Whether forwards are recorded once for all drafts of a shape."""
        return False

    @property
    def layers(self) -> int:
        """The number of layers, which is also that of the state that the head reads (`Want.hidden`)."""
        raise self._has_none("layers")

    def embed(self, tokens: Ints) -> torch.Tensor:
        """The input embeddings ``[n, width]`` of token ids, before any scale that the model gives them."""
        raise self._has_none("input embeddings")

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, vocabulary]`` of states ``[n, width]`` behind the final norm: the output head."""
        raise self._has_none("output head")

    def _has_none(self, what: str) -> ValueError:
        return ValueError(f"{self.name} shows no {what}; choose a drafter that needs none")

    @abstractmethod
    def open(self, capacity: int = 0) -> Rows:
        """Rows for one sequence, with memory for ``capacity`` tokens set aside."""

    @abstractmethod
    def submit(self, requests: Sequence[Request], on_early: OnEarly | None = None) -> Pending:
        """Score several requests, each of its own sequence, in as few forwards as the model allows."""

    def score(self, requests: Sequence[Request]) -> list[Scores]:
        """`submit`, and wait for the result."""
        return self.submit(requests, on_early_of([request.on_early for request in requests])).result()

    def reach(self, position: int) -> Reach:
        """What may be drafted behind a root at ``position``: a row must not depend on what else is in the forward."""
        return Reach()

    def prefill_size(self, length: int) -> int:
        """How many prompt tokens to score per forward, where ``length`` stand before the root."""
        return self.prefill_chunk

    def release(self) -> None:
        """Give back memory that is held for sequences to come. Those that are open keep theirs."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Names the weights: equal for equal weights, different for different ones."""
