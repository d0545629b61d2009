"""The scores of a request's rows, read lazily: only what is read is copied to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from paceline.errors import InputError
from paceline.law.scores import far, full_precision
from paceline.targets.reading import Floats, Top, by_blocks, read_by_blocks, read_peaks, read_tops
from paceline.tree import ROOT, Ints

if TYPE_CHECKING:
    from paceline.law import Distribution
    from paceline.law.scores import Array, Row, Scored
    from paceline.targets.base import Request, Want


class RequestRows(Protocol):
    """What scores need of the request that they are of."""

    @property
    def tokens(self) -> Ints: ...
    @property
    def parents(self) -> Ints: ...
    @property
    def want(self) -> Want: ...
    @property
    def held(self) -> int: ...
    @property
    def start(self) -> int:
        """The place in the text of the first row."""
        ...


class Scores:
    """The scores of the root and the nodes of one request. The root is ``-1``, the first row.

    Where the root was scored behind a piece of the prompt, `prompt` holds the scores of that piece. The scores of a
    request without a root are those of its piece of the prompt.
    """

    prompt: Scores | None = None
    """The scores of the piece of the prompt before the root; None for other requests."""

    def __init__(
        self,
        request: RequestRows,
        logits: Array | None,
        *,
        hidden: dict[int, Array] | None = None,
        early: Array | None = None,
        rows: slice | None = None,
    ) -> None:
        """``logits`` ``[rows, vocabulary]``, numpy's or of a library that lends its memory by DLPack; torch's may be
        on another device than the host. None for a prompt whose logits are not wanted.
        ``rows`` are those of the request's fresh rows that are scored here, by default all."""
        self.tokens, self.parents = request.tokens, request.parents[request.held :]
        self.start = request.start + (0 if rows is None else rows.start)
        """The place in the text of the first row."""
        if rows is not None:
            self.tokens, self.parents = self.tokens[rows], self.parents[rows] - rows.start
        self._logits = logits
        self._hidden = hidden or {}
        self._early = early
        self._most = request.want.top
        self._top: Top | None = None
        self._peaks: tuple[Ints, Floats] | None = None
        self.streamed: Mapping[int, Array] = {}
        """Logits ``[streams, vocabulary]`` of the streams behind rows, by the rows' numbers (`Request.streams`)."""
        self.laws: dict[int, Distribution | Exception] = {}
        """Laws after nodes that were read before they were asked for, or what went wrong with them."""

    @classmethod
    def of(
        cls,
        request: Request,
        logits: Array | None,
        hidden: dict[int, Array] | None = None,
        early: Array | None = None,
    ) -> Scores:
        """From the logits of `Request.scored` rows and the states and early logits of all fresh rows."""
        n, cut = len(request.tokens), request.prompt
        if not 0 < cut < n:
            return cls(request, logits, hidden=hidden, early=early)
        assert logits is not None, "the root has logits"

        def share(rows: slice, logits: Array | None) -> Scores:
            states = {layer: found[rows] for layer, found in (hidden or {}).items()}
            return cls(request, logits, hidden=states, early=None if early is None else early[rows], rows=rows)

        scores = share(slice(cut, n), logits[cut - request.scored.start :])
        scores.prompt = share(slice(0, cut), logits[:cut] if request.want.logits else None)
        return scores

    @property
    def logits(self) -> Array:
        """Full logits, root row first, before any warp, as the target has them."""
        if self._logits is None:
            raise InputError("logits of prompt rows were not computed; ask for them with Want(logits=True)")
        return self._logits

    def row(self, node: int) -> Scored:
        """The logits that follow a node, as the law reads them: numpy's, if they are in the host's memory."""
        return full_precision(self.logits[node - ROOT])

    @property
    def _best(self) -> tuple[Ints, Floats]:
        """The most probable token after every row, and its logit."""
        if self._peaks is None:
            self._peaks = read_peaks([self.logits])[0]
        return self._peaks

    def choice(self, node: int) -> int:
        """The most probable token after a node; of equals the lowest id."""
        return int(self._best[0][node - ROOT])

    def peak(self, node: int) -> float:
        """The logit of `choice`."""
        return float(self._best[1][node - ROOT])

    def choices(self) -> Ints:
        """`choice` of the root and of every node, in one transfer."""
        return self._best[0]

    def top(self, k: int) -> Top:
        """The ``k`` best tokens of every row, best first, and the rows' normalisers. As many as the request wanted are
        read at once and kept; more are read only when asked for."""
        k = min(k, self.logits.shape[-1])
        if self._top is None or self._top.ids.shape[1] < k:
            self._top = self._read(min(max(k, self._most), self.logits.shape[-1]))
        return Top(self._top.ids[:, :k], self._top.logits[:, :k], self._top.log_z)

    def _read(self, k: int) -> Top:
        return read_by_blocks(self.logits, k) if by_blocks(self.logits) else read_tops([(self.logits, k)])[0]

    def hidden(self, layer: int) -> Array:
        """States ``[rows, width]`` of a layer that `Want.hidden` named."""
        return self._hidden[layer]

    @property
    def early(self) -> Array:
        """Logits ``[rows, vocabulary]`` of the early exit that `Want.early_exit` named."""
        assert self._early is not None, "no early exit was wanted"
        return self._early

    @property
    def _far(self) -> bool:
        """Whether the logits are on another device than the host."""
        return self._logits is not None and far(self._logits)


def read_choices(several: Sequence[Scores]) -> None:
    """Read what `Scores.choices` of several requests on another device will return, in one transfer."""
    unread = [scores for scores in several if scores._far and scores._peaks is None]
    for scores, peaks in zip(unread, read_peaks([one.logits for one in unread]), strict=True):
        scores._peaks = peaks


def read_wanted(several: Sequence[Scores]) -> None:
    """Read the best tokens that several requests wanted now, instead of with the first calls of `Scores.top`; all that
    are on another device in one transfer."""
    wanted = [scores for scores in several if scores._most and scores._logits is not None]
    unread = [scores for scores in wanted if scores._far and scores._top is None]
    asked = [(scores.logits, min(scores._most, scores.logits.shape[-1])) for scores in unread]
    for scores, top in zip(unread, read_tops(asked), strict=True):
        scores._top = top
    for scores in wanted:
        scores.top(scores._most)


def like(given: Array, rows: Row) -> Array:
    """Rows in the library of what was given."""
    if not hasattr(given, "detach"):
        return rows
    import torch  # the caller's, who gave a tensor

    return torch.from_numpy(rows)
