"""A model over several ranks as a target: the leader writes, and the others compute the same forwards.

The engine runs on the first rank only, with its drafters, its planner and its clocks. Before each forward the leader
tells the other ranks what it scores, and what became of their rows since the forward before: which path was kept, which
rows were taken back, copied or closed. So no choice is made twice, and ranks cannot part over rounding or timing.
"""

from __future__ import annotations

import itertools
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch

from paceline.errors import InputError, RankLost, UnsupportedModel
from paceline.law.scores import Array
from paceline.targets.base import Request, Rows, Want
from paceline.targets.cache import CacheRows, persistent_tensors
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.forked import note_use
from paceline.targets.hf.packed import identities
from paceline.targets.hf.path import ForwardJob, Found
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.ranks.cut import GatheredHead, cut
from paceline.targets.hf.ranks.group import RankGroup
from paceline.targets.hf.rope import RotatedRows
from paceline.targets.hf.shares import LowRankMap, TracksHead
from paceline.targets.hf.streams import share_of
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.tracks import TracksForCausalLM
from paceline.targets.hf.variants import TracksModules
from paceline.targets.identity import fingerprint_of
from paceline.targets.streams import StreamAdapter, Streams, StreamsBeside
from paceline.targets.torchrun import let_first_report
from paceline.tree import Ints

OpenModel = Callable[..., tuple[Any, Any]]
"""Opens a model by its name, and gives its target and its tokenizer."""


class RowChange(NamedTuple):
    """One change of the leader's rows or adapters, for those of the same number on other ranks."""

    kind: str
    number: int
    value: Any = None


class AskedStreams(NamedTuple):
    """Streams of a request, with the number of the adapter in place of the adapter."""

    adapter: int
    streams: int
    behind: Ints


class AskedRows(NamedTuple):
    """A request, with the number of its rows in place of the rows."""

    number: int
    tokens: Ints
    parents: Ints
    want: Want
    prompt: int
    held: int
    streams: AskedStreams | None


class ModelOpened(NamedTuple):
    """Another model that all ranks open: a draft model with a track for each of them."""

    name: str
    options: dict[str, Any]
    let_go: list[int]
    """Numbers of earlier ones that nothing uses any more."""


class Journal:
    """The changes of the leader's rows and adapters since the last forward. Rows may be closed by a finalizer, on any
    thread, so noting one is a single append."""

    def __init__(self) -> None:
        self._changes: list[RowChange] = []
        self.numbers = itertools.count()

    def new(self, capacity: int) -> int:
        number = next(self.numbers)
        self.note("open", number, capacity)
        return number

    def new_adapter(self, adapter: StreamAdapter) -> int:
        """The whole adapter goes to the other ranks, in the host's memory."""
        layers = [{name: _on_host(*maps) for name, maps in each.items()} for each in adapter.layers]
        number = next(self.numbers)
        self.note("adapter", number, (*_on_host(adapter.embedding), layers))
        return number

    def note(self, kind: str, number: int, value: Any = None) -> None:
        self._changes.append(RowChange(kind, number, value))

    def taken(self) -> list[RowChange]:
        """Those so far, which are forgotten here."""
        count = len(self._changes)
        found = self._changes[:count]
        del self._changes[:count]
        return found


class LedRows(CacheRows):
    """Rows of the leader. Their changes are noted once they are made here."""

    journal: Journal
    number: int

    def keep(self, path: Sequence[int]) -> None:
        super().keep(path)
        self.journal.note("keep", self.number, list(path))

    def rewind(self, length: int) -> int:
        left = super().rewind(length)
        self.journal.note("rewind", self.number, length)
        return left

    def adopt(self, other: Rows, count: int) -> None:
        assert isinstance(other, LedRows), "rows are copied from a sequence of the same target"
        super().adopt(other, count)
        self.journal.note("adopt", self.number, (other.number, count))

    def close(self) -> None:
        super().close()
        self.journal.note("close", self.number)


class LedRotatedRows(LedRows, RotatedRows):
    """The same for a model that rotates by the largest position."""


class RankTarget(HFTarget):
    """One rank's part of a model. On the leader it is the target of texts; on others it answers the leader.

    Until `lead` and `follow` all ranks do the same by themselves: they read the model, cut it and probe it. The sums
    of all ranks have the same bits, so they come to the same findings, which is checked.
    """

    def __init__(self, model: Any, group: RankGroup, *, name: str, fingerprint: str) -> None:
        super().__init__(model, name=name, fixed_shapes=False)
        self.group = group
        self.ranks, self.number = group.size, group.models
        self._fingerprint = fingerprint
        self._journal: Journal | None = None
        self._adapters = WeakKeyDictionary[StreamAdapter, int]()
        """The numbers of adapters, by this rank's share of each."""

    def agree(self) -> None:
        """Refuse a model of which ranks have found different things."""
        found = self.group.everywhere(
            (self.mode, self.limits, self.context_length, [type(path).__name__ for path in self.paths])
        )
        if any(one != found[0] for one in found):
            raise UnsupportedModel(f"the ranks find {self.name} to be computed in different ways: {found}")

    def lead(self) -> None:
        """Write from here on. The other ranks are let go with this target, at the latest with the process."""
        self._journal = Journal()
        weakref.finalize(self, self.group.end)

    def opened_beside(self, name: str, options: dict[str, Any], opened: OpenModel) -> tuple[HFTarget, Any]:
        """Open another model on all ranks, a part on each; on this one it leads. A folder that cannot be read is so on
        all ranks, which stay in step."""
        fault: InputError | None = None
        with self.group.in_step():
            gone = list(self.group.let_go)
            del self.group.let_go[: len(gone)]
            self.group.tell(ModelOpened(name, options, gone))
            try:
                with self.group.opening():
                    target, tokenizer = opened(name, group=self.group, **options)
            except InputError as error:
                fault = error
        if fault is not None:
            self.group.let_go.append(self.group.models)  # other ranks may have opened it
            raise fault
        assert isinstance(target, RankTarget), "models that are not cut were refused"
        weakref.finalize(target, self.group.let_go.append, target.number).atexit = False
        target._journal = Journal()
        return target, tokenizer

    def _rows(self, capacity: int) -> CacheRows:
        if self._journal is None:
            return super()._rows(capacity)
        rows = LedRows(capacity) if self.switch is None else LedRotatedRows(capacity, self.switch)
        rows.journal, rows.number = self._journal, self._journal.new(capacity)
        weakref.finalize(rows, self._journal.note, "drop", rows.number).atexit = False
        return rows

    def _run(self, job: ForwardJob) -> Found:
        if self._journal is None:
            return super()._run(job)
        with self.group.in_step():
            self.group.tell((self.number, self._journal.taken(), [self._asked(request) for request in job.requests]))
            return super()._run(job)

    def _asked(self, request: Request) -> AskedRows:
        assert isinstance(request.rows, LedRows), "this target scores the rows it opened"
        beside, streams = request.streams, None
        if beside is not None:
            streams = AskedStreams(self._adapters[beside.streams.adapter], beside.streams.count, beside.behind)
        number, want = request.rows.number, request.want
        return AskedRows(number, request.tokens, request.parents, want, request.prompt, request.held, streams)

    def own_streams(self, adapter: StreamAdapter) -> StreamAdapter:
        """This rank's share. The others get theirs with the next forward."""
        assert self._journal is not None, "the leader chooses drafts"
        own = self.share_of(adapter)
        number = self._adapters[own] = self._journal.new_adapter(adapter)
        weakref.finalize(own, self._journal.note, "drop adapter", number).atexit = False
        return own

    def share_of(self, adapter: StreamAdapter) -> StreamAdapter:
        """What an adapter adds in the track of this rank."""
        if not isinstance(modules := self.modules, TracksModules):
            raise InputError(
                f"streams over {self.ranks} processes need a draft model in tracks, and {self.name} is none"
            )
        return share_of(adapter, modules, self.group.device)

    def unassisted(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._journal is None:
            return super().unassisted(tokens)
        with self._one_at_a_time, self.group.in_step():
            self.group.tell((self.number, self._journal.taken(), tokens))
            return super().unassisted(tokens)

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        head = self.anatomy.head
        if isinstance(head, TracksHead):
            raise self._has_none("output head on one process")
        if not isinstance(head, GatheredHead):
            return super().unembed(states)
        with persistent_tensors():
            return self.anatomy.finished(head.alone(states))

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        return None

    def forget(self) -> None:
        if self._journal is not None:
            self._journal.note("forget", -1)
        super().forget()

    def fingerprint(self) -> str:
        """That of the whole model."""
        return self._fingerprint

    def follow(self, opened: OpenModel) -> NoReturn:
        """Compute what the leader computes, until it lets this process go."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader decides what an interruption ends
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's own handlers would wait for the next forward
        followers = {self.number: RankFollower(self)}
        try:
            while (message := self.group.hear()) is not None:
                if isinstance(message, ModelOpened):
                    for number in message.let_go:
                        followers.pop(number, None)
                    with suppress(InputError), self.group.opening():  # the leader reports it
                        target, _ = opened(message.name, group=self.group, **message.options)
                        followers[target.number] = RankFollower(target)
                        del target  # else it is held while the next one is opened
                else:
                    number, *asked = message
                    followers[number].answer(*asked)
        except RankLost:
            self.group.abandon()
            let_first_report()
            raise SystemExit(1) from None
        self.group.end()
        raise SystemExit(0)


class RankFollower:
    """The rows of the leader's texts on another rank."""

    def __init__(self, target: RankTarget) -> None:
        self._target = target
        self.rows: dict[int, CacheRows] = {}
        self.adapters: dict[int, StreamAdapter] = {}
        """This rank's shares."""

    def answer(self, changes: Sequence[RowChange], asked: Sequence[AskedRows] | torch.Tensor) -> None:
        """Make the same changes, and compute the same forward: of requests, or of a text by the model alone."""
        for change in changes:
            self._change(change)
        if isinstance(asked, torch.Tensor):
            self._target.unassisted(asked)
        else:
            self._target.forward([self._request(one) for one in asked])

    def _request(self, asked: AskedRows) -> Request:
        streams = None
        if (given := asked.streams) is not None:
            streams = StreamsBeside(Streams(self.adapters[given.adapter], given.streams), given.behind)
        rows = self.rows[asked.number]
        return Request(rows, asked.tokens, asked.parents, asked.want, asked.prompt, asked.held, streams=streams)

    def _change(self, change: RowChange) -> None:
        kind, number, value = change
        made: dict[str, Callable[[], object]] = {
            "open": lambda: self.rows.__setitem__(number, self._target.open(value)),
            "keep": lambda: self.rows[number].keep(value),
            "rewind": lambda: self.rows[number].rewind(value),
            "adopt": lambda: self.rows[number].adopt(self.rows[value[0]], value[1]),
            "close": lambda: self.rows[number].close(),
            "drop": lambda: self.rows.pop(number),
            "forget": self._target.forget,
            "adapter": lambda: self._adapt(number, *value),
            "drop adapter": lambda: self.adapters.pop(number),
        }
        made[kind]()

    def _adapt(self, number: int, embedding: torch.Tensor, layers: list[dict[str, LowRankMap]]) -> None:
        self.adapters[number] = self._target.share_of(StreamAdapter(embedding, layers, number))


def check_tracks(name: str, tracks: int, ranks: int) -> None:
    """Refuse a number of tracks that is not that of the ranks."""
    if tracks != ranks:
        raise InputError(
            f"{name} has {tracks} tracks, and {ranks} processes compute together; start as many processes, or give a "
            "draft model that has as many tracks"
        )


def _on_host(*tensors: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.as_tensor(each).detach().cpu() for each in tensors)


def over_ranks(model: Any, group: RankGroup, name: str) -> RankTarget:
    """The target of this rank's part of a model that is loaded, probed together with the other ranks."""
    note_use()
    with torch.no_grad():
        fingerprint = fingerprint_of(identities(model))
        if isinstance(model, TracksForCausalLM):
            check_tracks(name, model.tracks.count, group.size)
            model.hold(group.rank, group.summed)
        else:
            cut(model, group)
        torch.nn.Module.to(model, group.device)
    target = RankTarget(model, group, name=name, fingerprint=fingerprint)
    if target.own.recurrent:
        raise UnsupportedModel(f"{name} has layers that keep a state, which are not cut over ranks; use one device")
    target.pack(compiled=False)
    group.all_have_read()
    prepare(target)
    target.agree()
    said = f"cut over {group.size} ranks, where forwards are neither compiled nor recorded"
    target.note = "; ".join(filter(None, (said, target.note)))
    return target
