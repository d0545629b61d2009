"""Draft and target at the same time.

While the target computes its later layers, an early exit predicts its choice behind each node of the draft in flight.
For the likeliest of these outcomes the draft model, in a separate process, already drafts the next window. When the
target has decided, the window behind its choice is there or nearly so; if none fits, one is drafted then.

That takes cores or a device which the target can spare. So by default (``overlap=best``) the draft model is also loaded
here, and drafts in turns with the target, as `assistant` does, unless the planner asks for overlapped drafts
(`paceline.planning.overlap`); the process is begun when it first does. ``overlap=always`` has the process alone.

No text depends on that process. A window that takes too long is left out of its round, and the text goes on without it;
if the process is lost, texts that had drafts from it have none from then on, or go on in turns where they can.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.context import Context
from paceline.drafters.asking import failure
from paceline.drafters.base import Ask, Awaited, Drafter, InFlight, Overlaps, Seen, one_of
from paceline.drafters.networks.assistant.drafter import Assistant, Model
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.mirror.flight import RemoteText, WindowInFlight, WindowSource
from paceline.drafters.networks.mirror.messages import Ahead
from paceline.drafters.networks.mirror.place import DRAFTS, DraftPlace, adapter_of, place_of, spot
from paceline.drafters.networks.mirror.process import KEPT, DraftProcess, Lost
from paceline.drafters.networks.mirror.proxies import outcomes
from paceline.drafters.networks.mirror.state import (
    COUNTERS,
    OVERLAP_MASS,
    ROUNDS_FORESEEN,
    ROUNDS_OVERLAPPED,
    MirrorState,
    overlap_mass,
)
from paceline.drafters.networks.mirror.turns import InTurns, in_turns, own_model
from paceline.drafters.networks.mirror.worker import facts_of
from paceline.drafters.networks.streaming.drafter import drafting_model
from paceline.drafters.noise import wants_noise
from paceline.drafters.sharing import stamp
from paceline.errors import DrafterError, DrafterWarning, InputError
from paceline.law import Outlook
from paceline.recent import RecentMean
from paceline.targets.base import Target, Want
from paceline.translate import NONE, TLI, Strategy
from paceline.tree import EMPTY, DraftTree
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

BEST, FULL, ALWAYS = "best", "full", "always"
NEW, TOP = "new", "top"
"""Which tokens of an exit are proxies: the best of those that are not drafted there, or simply the best."""
WAIT = 1.0
"""Seconds that a window is waited for, also where the target would write its tokens in less."""
NARROWER = ((64, 1), (32, 2), (16, 4))
"""(N, M): from N texts at once on, at most M proxies of each node (the paper's appendix D.1)."""
OFTEN = 3
"""How often a drafter begins its draft model's process again."""


class Mirror(Drafter):
    """Windows of a draft model that runs beside the target, or in turns with it."""

    name = "mirror"
    light = False  # it shares out the threads itself
    summary = "a draft model drafts the next window while the target checks the last one, where that is faster"
    source = "Mirror-SD (Bhendawade 2025)"
    skips = True
    counters = (*InTurns.counters, *COUNTERS)
    requires = (
        "a draft model, best with the target's tokenizer, by name or folder, and a core or device to spare for it"
    )
    unfit = "machines without a core or device to spare: it drafts in turns there, as assistant does"
    presets = MappingProxyType(
        {"paper": MappingProxyType({"branches": FULL, "noise": "none", "overlap": ALWAYS, "proxies": TOP})}
    )

    def __init__(
        self,
        *,
        model: Model,
        draft: str = DRAFTS[0],
        head: str | None = None,
        gamma: int = 7,
        kappa: int = 8,
        exit: float = 0.5,
        branches: str = BEST,
        anew: int | None = None,
        top: int = 1,
        confidence: float = 0.0,
        noise: str = "shared",
        overlap: str = BEST,
        proxies: str = NEW,
        translate: str | None = None,
        device: str | None = None,
    ) -> None:
        anew = gamma if anew is None else anew
        for name, value in (("gamma", gamma), ("kappa", kappa), ("anew", anew), ("top", top)):
            if value < 1:
                raise InputError(f"option {name!r} of method 'mirror' is at least 1, not {value}")
        if not 0 < exit < 1:
            raise InputError(f"option 'exit' of method 'mirror' is a depth between 0 and 1, not {exit:g}")
        if not (branches in (BEST, FULL) or (branches.isdecimal() and int(branches) > 0)):
            raise InputError(f"mirror takes branches=best, branches=full or a number from 1 on, not {branches!r}")
        one_of(self.name, (BEST, ALWAYS), overlap=overlap)
        one_of(self.name, (NEW, TOP), proxies=proxies)
        self.shape = DraftShape(top=top, length=gamma, confidence=confidence, shared=wants_noise(self.name, noise))
        self.gamma, self.kappa, self.nodes = gamma, kappa, gamma * top
        self.branches, self.anew, self.proxies = branches, min(anew, gamma), proxies
        if translate is not None and Strategy.parse(translate).name in (NONE, TLI):
            raise InputError(f"mirror translates by lattice, context or naive, not {translate}")
        self._exit, self._spot, self._translate = exit, spot(device), translate
        self._head = adapter_of(self.name, draft, head, top=top, translate=translate)
        self._named: Any = model if self._head is None else drafting_model(model, self._head)
        self._foreign = ""
        """The fingerprint of the target's tokenizer, where the draft model has another one."""
        self.process: WindowSource | None = None
        self._size = 0
        self._open = 0
        self._rest = RecentMean(KEPT)
        self._lock = threading.Lock()
        self._begins, self._begun_again, self._why = False, 0, ""
        self._place: DraftPlace | None = None
        self._target = ""
        self._vocabulary: Vocabulary | None = None
        self.overlaps = Overlaps.ALWAYS if overlap == ALWAYS else Overlaps.CHOICE
        self.turns: Assistant | None = None
        if self.overlaps is Overlaps.CHOICE:
            how: dict[str, Any] = {"length": gamma, "top": top, "confidence": confidence, "noise": noise}
            self.turns = in_turns(self._named, self._head, translate=translate, **how)
            self.costly_levels = self.turns.costly_levels

    implied = staticmethod(own_model)

    # the draft model's process

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        layers = target.layers
        layer = round(self._exit * layers)
        if not 0 < layer < layers:
            raise InputError(f"exit={self._exit:g} is layer {layer} of {layers}, which leaves nothing to overlap")
        place = place_of(self._named, target, *self._spot, head=self._head)
        moved, self._place, self.needs = place != self._place, place, Want(early_exit=layer)
        self._target, self._size, self._vocabulary = target.name, target.vocab_size, vocabulary
        if self.turns is not None:
            self.turns.fit(target, vocabulary)
            if self.process is None:
                return
        if self.process is None or moved:
            self.process = self._started(place)
        self._meet(self.process)

    def _started(self, place: DraftPlace) -> WindowSource:
        """The process at this place."""
        return DraftProcess.at(place, stamp(place.model))

    def _meet(self, process: WindowSource) -> None:
        """Have the process draft the target's tokens."""
        facts, vocabulary, self._foreign = process.facts, self._vocabulary, ""
        if vocabulary is None or facts["fingerprint"] is None:
            if facts["vocab_size"] != self._size or self._translate is not None:
                raise InputError(
                    f"mirror cannot translate the drafts of {self._named} for {self._target}: one of them came without "
                    "its tokenizer"
                )
        elif self._translate is not None or facts["fingerprint"] != vocabulary.fingerprint:
            if self._head is not None:
                said = f"drafts in the tokens of {self._target}, and {self._named} has another tokenizer"
                raise InputError(f"mirror:draft=streaming {said}; leave draft out")
            if not process.lost:  # else the next one is taught
                process.teach(vocabulary)
            self._foreign = vocabulary.fingerprint

    @property
    def overlap_setup(self) -> str:
        if self.turns is None or self._place is None:
            return ""
        own = self.gamma, self.kappa, self._exit, self.branches, self.anew, self.shape, self.proxies, self._translate
        return f"{self.name} {stamp(self._place.model)} {self._place.facts()} {own}"

    def prepare_overlap(self) -> None:
        assert self._place is not None, "the method is fitted"
        if self.process is None or self.process.lost:
            process = self._started(self._place)
            self._meet(process)
            self.process = process

    def end_overlap(self) -> None:
        if self.turns is not None:
            self.process = None  # with the last text that had drafts from it, it ends

    @property
    def models(self) -> tuple[Target, ...]:
        return () if self.turns is None else self.turns.models

    @property
    def translates(self) -> bool:
        """Whether the draft model has another tokenizer than the target."""
        return bool(self._foreign)

    def dispose(self) -> None:
        self.process = self._place = None
        if self.turns is not None:
            self.turns.dispose()

    def _begin_again(self, lost: str) -> None:
        """For this text and those behind it; not for ever. In a separate thread: it takes seconds, and this one may
        write other texts."""
        with self._lock:
            if self._begins or self._begun_again == OFTEN:
                return
            self._begins, self._begun_again, self._why = True, self._begun_again + 1, ""
        threading.Thread(target=self._begin, args=(self._place,), name="draft process begins", daemon=True).start()
        said = f"the process of the draft model was lost ({lost}) and is begun again; drafts come once it is there"
        warnings.warn(f"mirror: {said}", DrafterWarning, stacklevel=2)

    def _begin(self, place: DraftPlace) -> None:
        try:
            begun = self._started(place)
            if self._foreign and self._vocabulary is not None:
                begun.teach(self._vocabulary)
            if self._place == place:  # not disposed of meanwhile
                self.process = begun  # texts begin there behind the tokenizer
        except Exception as error:
            self._why = str(error)
        finally:
            self._begins = False

    def levels(self, nodes: int) -> int:
        return min(self.gamma, -(-nodes // self.shape.top))

    # texts

    def open(self, context: Context) -> MirrorState:
        state = MirrorState(context, Outlook(context.sampling, context.prompt_length))
        if self.turns is not None:
            state.turns = self.turns.open(context)
            state.turns.tally = state.tally
        else:
            assert self.process is not None, "the method is fitted"
            if lost := self.process.lost:
                self._begin_again(lost)
            self._join(state)
        self._open += 1
        return state

    def _join(self, state: MirrorState) -> None:
        """Begin the text in the draft model's process, if that is there."""
        process = self.process
        if process is None or self._begins:
            return
        if process.lost:
            raise self._lost(self._why or process.lost)
        translate = self._translate or ""
        facts = facts_of(state.context, self._size, self.shape, self.name, foreign=self._foreign, translate=translate)
        try:
            state.remote = RemoteText(process, state.context, facts, nodes=self.nodes, tally=state.tally)
        except Lost as error:
            raise self._lost(error) from None

    def _lost(self, why: object) -> DrafterError:
        """The error that ends the drafts of a text: with it the text has no more of this method's costs."""
        error = failure(self, f"has lost the process of its draft model ({why})")
        error.own = False  # the system ended it, or its user
        return error

    def close(self, state: MirrorState) -> None:
        self._open -= 1
        self._leave(state)
        if self.turns is not None and state.turns is not None:
            self.turns.close(state.turns)

    def _leave(self, state: MirrorState) -> None:
        """End the text in the draft model's process."""
        if state.remote is not None:
            state.remote.forget()
            state.remote = None

    def counts(self, state: MirrorState) -> Mapping[str, float]:
        """It is asked for each text by itself, so here a text learns that it has no more drafts."""
        if state.remote is None:
            if self.turns is None:
                self._join(state)
        elif lost := state.remote.lost:
            if self.turns is None:
                raise self._lost(lost)
            self._leave(state)
            self.process = None
            said = f"the process of the draft model was lost ({lost}); drafts are made in turns"
            warnings.warn(f"mirror: {said}", DrafterWarning, stacklevel=2)
        elif not state.drafts:
            state.remote.rest()
        state.drafts = False  # until one is asked for again
        return state.tally.take()

    # drafts

    def on_early(self, state: MirrorState, tree: DraftTree, logits: torch.Tensor) -> None:
        """The window of the text as it is was taken, or is not wanted: what follows now are those behind the draft."""
        remote = state.remote
        if remote is None or not state.drafts or not remote.free:
            return
        kappa = min([self.kappa, *(most for texts, most in NARROWER if self._open >= texts)])
        how: dict[str, Any] = {"kappa": kappa, "shared": self.shape.shared, "drafted": self.proxies == TOP}
        found = outcomes(logits, tree, state.context, state.outlook, **how)
        chosen = found.first(self._worth(remote.source, len(found)))
        remote.ahead(Ahead(self.gamma, tree.tokens, tree.parents, chosen.stops, chosen.proxies))
        state.early = time.perf_counter()
        state.foreseen = chosen if len(chosen) else None

    def begin(self, states: Sequence[MirrorState]) -> list[InFlight]:
        now = time.perf_counter()
        for state in states:
            if state.left:
                state.round, state.left = now - state.left, 0.0
            if state.early:
                spent, state.early = now - state.early, 0.0
                self._rest.add(spent)
        return [self._begun(state) or InFlight() for state in states]

    def _begun(self, state: MirrorState) -> WindowInFlight | None:
        """The next window of a text that has drafts from the process, if that can take a message."""
        return remote.go(self.anew) if (remote := state.remote) and state.drafts and remote.free else None

    def observe(self, seen: Sequence[Seen]) -> None:
        if self.turns is not None:
            self.turns.observe([each._replace(state=each.state.turns) for each in seen])
        for state, verdict, scores in seen:  # the next window is begun
            foreseen, state.foreseen = state.foreseen, None
            if foreseen is not None and verdict.accepted < len(verdict.tokens):
                state.tally.add(ROUNDS_FORESEEN)
                state.tally.add(OVERLAP_MASS, overlap_mass(state, verdict, scores, foreseen))

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return self.finish([Awaited(state, budget, InFlight()) for state, budget in asks])

    def finish(self, asks: Sequence[Awaited]) -> list[DraftTree]:
        """Overlapped windows are asked for first, those in turns drafted meanwhile. A window is waited for as long as
        the target would take to write its tokens: longer is never worth it."""
        flights = [self._flight(ask) for ask in asks]
        in_turns = [ask for ask, flight in zip(asks, flights, strict=True) if flight is None and ask.state.turns]
        drafts = iter(self._in_turns(in_turns))
        rounds = max((ask.state.round for ask, flight in zip(asks, flights, strict=True) if flight), default=0)
        until, found = time.monotonic() + max(WAIT, self.gamma * rounds), list[DraftTree]()
        for ask, flight in zip(asks, flights, strict=True):
            if flight is None:
                found.append(next(drafts) if ask.state.turns else EMPTY)
                continue
            window = flight.result(until)
            found.append(EMPTY if window is None else window.tree.top(ask.budget.nodes))
            ask.state.left = time.perf_counter()
        return found

    def _flight(self, ask: Awaited) -> WindowInFlight | None:
        """The window of a text in flight; None where it drafts in turns, or has no draft."""
        state, budget, flight = ask
        if self.overlaps is Overlaps.CHOICE:
            if not budget.overlapped or self.process is None or self.process.lost:
                return None
            if state.remote is None:
                with suppress(DrafterError):  # lost just now: drafts are made in turns
                    self._join(state)
        state.drafts, remote = True, state.remote
        if remote is None:
            return None
        remote.wake()
        state.tally.add(ROUNDS_OVERLAPPED)
        if isinstance(flight, WindowInFlight) and flight.place == len(state.context):
            return flight
        return self._begun(state)

    def _in_turns(self, asks: Sequence[Awaited]) -> list[DraftTree]:
        """Drafts of the draft model in this process, with all of its cores."""
        for state, *_ in asks:
            if self.process is None:
                self._leave(state)
            elif state.remote is not None:
                state.remote.rest()
        assert self.turns is not None or not asks, "the states are its own"
        return self.turns.propose([Ask(ask.state.turns, ask.budget) for ask in asks]) if self.turns and asks else []

    def _worth(self, source: WindowSource, count: int) -> int | None:
        """How many outcomes get a window."""
        if self.branches == FULL:
            return None
        if self.branches != BEST:
            return int(self.branches)
        fits = 1
        while fits < count and self.gamma * source.seconds(2 * fits * max(1, self._open)) <= self._rest.value:
            fits *= 2
        return fits
