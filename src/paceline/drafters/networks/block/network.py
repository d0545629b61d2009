"""The block head as a network with rows: the text's keys and values are kept, and a draft is one pass over a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.ties import MarkovHead
from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.layers import Attend, attended
from paceline.drafters.networks.marginals import CANDIDATES, Marginals, best_tokens, on_host
from paceline.drafters.networks.network import RowModel, RowNetwork
from paceline.drafters.networks.reading import DRAFT_FORWARDS
from paceline.drafters.networks.state_rows import ShownRows
from paceline.law import Distribution
from paceline.law.on_device import sent
from paceline.targets.base import Done, Pending, Request, Rows, Target
from paceline.tree import Bools, Floats

if TYPE_CHECKING:
    from paceline.drafters.networks.compiled import CompiledLayers


class BlockRows(ShownRows):
    """Keys and values of the text, and what they are made of for tokens that were shown and are not read yet
    (`BlockModel.taken`). A row depends on its own token's state alone."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._unread: torch.Tensor | None = None
        """Those of the last tokens shown."""

    def show(self, start: int, states: torch.Tensor) -> None:
        parts = [self.unread(self.shown - self.committed)] if self.shown > self.committed else []
        if start > self.shown:
            parts.append(states.new_zeros(start - self.shown, states.shape[-1]))
        elif start < self.shown:
            parts = [part[: max(0, start - self.committed)] for part in parts]
        self._unread = torch.cat([*parts, states[max(0, self.committed - start) :]])
        self.shown = max(self.committed, start + len(states))

    def unread(self, count: int) -> torch.Tensor:
        """What was shown of the first ``count`` tokens without rows."""
        assert self._unread is not None, "states are shown before they are read"
        first = len(self._unread) - (self.shown - self.committed)
        return self._unread[first : first + count]

    def _copy(self, other: Rows, count: int) -> None:
        super()._copy(other, count)
        self.shown = count

    def _truncate(self) -> None:
        super()._truncate()
        self._unread = None


class WholeRequest(Request):
    """A block whose rows see all of it."""

    @cached_property
    def is_chain(self) -> bool:
        return False

    @cached_property
    def visible(self) -> Bools:
        return np.ones((len(self.tokens), len(self.tokens)), np.bool_)


class BlockModel(RowModel):
    """A head beside its target. Its rows are read of states, and blocks of tokens."""

    def __init__(self, head: BlockHead, target: Target) -> None:
        self.head, self._target, self.vocab_size = head, target, target.vocab_size
        self._type = next(head.parameters()).dtype
        self._compiled = self._compiled_layers() if target.compiled else None

    def _compiled_layers(self) -> CompiledLayers | None:
        from paceline.drafters.networks.compiled import CompiledLayers

        return CompiledLayers.of(self.head.compilable, self.head.rotary)

    def is_of(self, head: BlockHead, target: Target) -> bool:
        return head is self.head and target is self._target

    def open(self, capacity: int = 0) -> BlockRows:
        return BlockRows(capacity)

    @torch.inference_mode()
    def taken(self, states: torch.Tensor) -> torch.Tensor:
        """The rows of the text, of the target's joined states."""
        return self.head.context(states.to(self._type))

    @torch.inference_mode()
    def submit(self, requests: Sequence[Request]) -> Pending:
        """Read tokens of texts: their rows in all layers. Nothing is predicted behind them."""
        sizes = [len(request.tokens) for request in requests]
        texts = [cast(BlockRows, request.rows) for request in requests]
        context = torch.cat([rows.unread(size) for rows, size in zip(texts, sizes, strict=True)])
        starts = [rows.committed for rows in texts]
        positions = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, sizes, strict=True)])
        found = self.head.keys_values(context, sent(torch.from_numpy(positions), context.device))
        for request in requests:
            request.rows.note(request.tokens)
        for number, (keys, values) in enumerate(found):
            for rows, key, value in zip(texts, keys.split(sizes), values.split(sizes), strict=True):
                rows.write(number, in_rows(key), in_rows(value))
        return Done([])

    @torch.inference_mode()
    def blocks(self, texts: Sequence[BlockRows], anchors: Sequence[int]) -> torch.Tensor:
        """The states ``[texts, places, width]`` that predict behind texts with these last tokens, which have no rows
        yet."""
        head, device = self.head, torch.device(self._target.device)
        starts = [rows.committed for rows in texts]
        numbers = sent(torch.tensor([list(anchors), starts]), device)
        embedded = head.embedded(head.tokens(numbers[0]), self._target.embed).to(self._type)
        requests = [self._request(rows, anchor) for rows, anchor in zip(texts, anchors, strict=True)]
        if self._compiled is not None:
            found = self._compiled(requests, embedded.flatten(0, 1)).view(embedded.shape)
            found = head.predicting(head.norm(found))
        else:
            found = head.predicting(head.block(embedded, numbers[1], self._attend(requests)))
        for rows in texts:
            rows.keep([])
        return found

    def _request(self, rows: BlockRows, anchor: int) -> Request:
        shape = self.head.shape
        tokens = np.array([anchor] + [shape.mask_token] * (shape.block - 1), np.int64)
        return (Request if shape.causal[0] else WholeRequest)(rows, tokens, np.arange(-1, shape.block - 1))

    def _attend(self, requests: Sequence[Request]) -> Attend:
        """Attention of blocks in the head's own modules."""
        texts, device = [cast(BlockRows, request.rows) for request in requests], torch.device(self._target.device)
        for request in requests:
            request.rows.note(request.tokens)
        looks = [Look(self.head, rows.committed, device) for rows in texts]

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            found = [
                look.attended(layer, rows.write(layer, in_rows(key), in_rows(value)).span, query)
                for look, rows, query, key, value in zip(looks, texts, queries, keys, values, strict=True)
            ]
            return torch.stack(found)

        return attend

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits ``[texts, places, known]``, before what ties places to one another."""
        found = self.head.logits(states.flatten(0, 1), self._target.unembed)
        return found.float().unflatten(0, states.shape[:2])  # type: ignore[no-any-return]


def in_rows(states: torch.Tensor) -> torch.Tensor:
    """``[rows, heads, width]`` as a cache has them."""
    return states.transpose(0, 1)[None]


class Look:
    """What the rows of one text's block see: in layers with a window the end of the text."""

    def __init__(self, head: BlockHead, length: int, device: torch.device) -> None:
        self._head, self._length, self._device = head, length, device
        self._masks: dict[tuple[int | None, bool], torch.Tensor | None] = {}

    def attended(
        self, number: int, span: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]], queries: torch.Tensor
    ) -> torch.Tensor:
        """What ``queries`` find in a layer; ``span`` gives keys and values of rows between two places."""
        shape = self._head.shape
        kind = shape.windows[number], shape.causal[number]
        start = 0 if kind[0] is None else max(0, self._length - kind[0])
        if kind not in self._masks:
            self._masks[kind] = self._mask(number, start) if any(kind) else None
        keys, values = span(start, self._length + shape.block)
        return attended(queries.transpose(0, 1)[None], keys, values, self._masks[kind])[0].transpose(0, 1)

    def _mask(self, number: int, start: int) -> torch.Tensor:
        keys = torch.arange(start, self._length, device=self._device)
        text = self._head.sees_text(number, keys, torch.tensor(self._length, device=self._device))
        return torch.cat([text, self._head.sees_block(number, self._device)], dim=-1)


class BlockNetwork(RowNetwork):
    """Drafts of one pass. Those of several texts are computed together."""

    in_passing = 1
    model: BlockModel

    def begin(self, growths: Sequence[Growth]) -> None:
        """Compute the candidates of all places, and what ties them."""
        texts = [growth.state for growth in growths]
        while self.read_pieces(texts):
            pass
        anchors = [growth.state.context.root for growth in growths]
        hidden = self.model.blocks([text.rows for text in texts], anchors)
        hidden = hidden[:, : max(growth.depth for growth in growths)]
        for growth, marginals in zip(growths, self._marginals(hidden, anchors), strict=True):
            growth.state.tally.add(DRAFT_FORWARDS)
            growth.kept = marginals

    @property
    def ties(self) -> bool:
        """Whether a token's law depends on those before it in the block."""
        shape = self.model.head.shape
        return bool(shape.selector_rank or shape.markov_rank or shape.confidence)

    def depth(self, depth: int, length: int) -> int:
        return min(depth, self.model.head.shape.places)

    def level(self, growths: Sequence[Growth]) -> Sequence[Sequence[Distribution]]:
        return [growth.kept.laws(growth) for growth in growths]

    @torch.inference_mode()
    def _marginals(self, hidden: torch.Tensor, anchors: Sequence[int]) -> list[Marginals]:
        """The candidates of each text, copied to the host at once."""
        head = self.model.head
        count = head.shape.selector_top if head.shape.selector_rank else CANDIDATES
        ids, best, columns = best_tokens(self.model.logits(hidden), count, head.token_ids)
        first = sent(torch.tensor(anchors), ids.device)[:, None, None].expand(-1, 1, ids.shape[-1])
        before = torch.cat([first, ids[:, :-1]], dim=1)
        gains, trust = head.gains(hidden, before, ids, columns), head.trust(hidden, before)
        parts = {"ids": ids, "logits": best, "gains": gains, "trust": trust}
        present = {name: part for name, part in parts.items() if part is not None}
        shown = [dict(zip(present, own, strict=True)) for own in zip(*on_host(list(present.values())), strict=True)]
        markov = head.markov_head
        if markov is None or not markov.has_state:
            return [Marginals(**each) for each in shown]
        return [PassedOn(markov, *own, **each) for *own, each in zip(hidden, columns, shown, strict=True)]


class PassedOn(Marginals):
    """The same of a head whose bias depends on all tokens before: a state is passed from place to place, and each level
    computes those of its nodes."""

    def __init__(self, markov: MarkovHead, hidden: torch.Tensor, columns: torch.Tensor, **shown: NDArray[Any]) -> None:
        super().__init__(**shown)
        self._markov, self._hidden, self._columns = markov, hidden, columns
        self._states = markov.first_state(hidden[:1])

    @torch.inference_mode()
    def gained(self, growth: Growth) -> Floats:
        place, device = growth.level, self._hidden.device
        tokens = growth.tokens if place else np.array([growth.state.context.root])
        above = sent(torch.from_numpy(growth.above), device)
        hidden = self._hidden[place].expand(len(tokens), -1)
        read, self._states = self._markov.step(sent(torch.from_numpy(tokens), device), hidden, self._states[above])
        found: Floats = self._markov.among(read, self._columns[place]).double().numpy(force=True)
        return found
