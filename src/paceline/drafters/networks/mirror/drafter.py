"""Draft and target at the same time.

While the target computes its later layers, an early exit predicts its choice behind each node of the draft in flight.
For the likeliest of these outcomes the draft model, in a separate process, already drafts the next window. When the
target has decided, the window behind its choice is there or nearly so; if none fits, one is drafted then.

No text depends on that process. A window that takes too long is left out of its round, and the text goes on without it;
if the process is lost, texts that had drafts from it have none from then on, and the next one starts it again.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from paceline.context import Context
from paceline.drafters.asking import failure
from paceline.drafters.base import Ask, Drafter, Seen
from paceline.drafters.counters import Counter, Tally
from paceline.drafters.networks.assistant.drafter import Model
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.mirror.messages import Ahead, Go, MessageKind, Said, Window
from paceline.drafters.networks.mirror.place import DRAFTS, DraftPlace, drafting, place_of, spot
from paceline.drafters.networks.mirror.process import KEPT, DraftProcess, Lost
from paceline.drafters.networks.mirror.proxies import Outcomes, outcomes
from paceline.drafters.networks.mirror.worker import facts_of
from paceline.drafters.networks.reading import DRAFT_FORWARDS, DRAFT_TOKENS
from paceline.drafters.noise import wants_noise
from paceline.drafters.sharing import stamp
from paceline.errors import DrafterError, DrafterWarning, InputError
from paceline.law import Outlook
from paceline.recent import RecentMean
from paceline.targets.base import Target, Want
from paceline.targets.scores import Scores
from paceline.translate import NONE, TLI, Strategy
from paceline.tree import EMPTY, ROOT, DraftTree, Ints
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

BEST, FULL = "best", "full"
WAIT = 1.0
"""Seconds that a window is waited for, also where the target would write its tokens in less."""
NARROWER = ((64, 1), (32, 2), (16, 4))
"""(N, M): from N texts at once on, at most M proxies of each node (the paper's appendix D.1)."""
OFTEN = 3
"""How often a drafter begins its draft model's process again."""

LEVELS_AHEAD = Counter(
    "levels_ahead", "levels of drafts that were there before the target had decided what they follow"
)
DRAFTS_ANEW = Counter("drafts_anew", "drafts that began only then: none was begun ahead for that decision")
BYTES_EXCHANGED = Counter("bytes_exchanged", "bytes to and from the process of the draft model")
ROUNDS_FORESEEN = Counter(
    "rounds_foreseen", "rounds during which tokens were foreseen and drafts behind them were made"
)
OVERLAP_MASS = Counter(
    "overlap_mass",
    "the target's probability of these tokens where the round ended, without the noise; over rounds_foreseen a mean",
    zero=0.0,
)


@dataclass(eq=False)
class MirrorState:
    """One text."""

    context: Context
    outlook: Outlook
    process: DraftProcess | None = None
    """None until one that was begun again is there."""
    number: int = 0
    known: int = 0
    """How many of its tokens the draft model knows."""
    owed: int = 0
    """The length of the text whose window is awaited; 0 for none."""
    asked: float = 0.0
    """When."""
    left: float = 0.0
    """When it had its last draft; 0 until then."""
    round: float = 0.0
    """Seconds from there until the target had decided."""
    early: float = 0.0
    """When the later layers of the forward under way began; 0 between forwards."""
    foreseen: Outcomes | None = None
    """The outcomes of that forward that are drafted behind."""
    drafts: bool = False
    """Whether a draft was asked for in this round. Else the draft model rests, and the target has all cores."""
    tally: Tally = field(default_factory=Tally)


class Mirror(Drafter):
    """Windows of a draft model that runs beside the target."""

    name = "mirror"
    light = False  # it shares out the threads itself
    summary = "a draft model in a separate process drafts the next window while the target checks the last one"
    source = "Mirror-SD (Bhendawade 2025)"
    skips = True
    counters = (
        *(DRAFT_FORWARDS, DRAFT_TOKENS),
        *(LEVELS_AHEAD, DRAFTS_ANEW, BYTES_EXCHANGED, ROUNDS_FORESEEN, OVERLAP_MASS),
    )
    requires = (
        "a draft model, best with the target's tokenizer, by name or folder, and a core or device to spare for it"
    )
    unfit = "cores that the target needs itself: assistant drafts with all of them, in turns"
    presets = MappingProxyType({"paper": MappingProxyType({"branches": FULL, "noise": "none"})})

    def __init__(
        self,
        *,
        model: Model | None = None,
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
        self.shape = DraftShape(top=top, length=gamma, confidence=confidence, shared=wants_noise(self.name, noise))
        self.gamma, self.kappa, self.nodes = gamma, kappa, gamma * top
        self.branches, self.anew = branches, min(anew, gamma)
        if translate is not None and Strategy.parse(translate).name in (NONE, TLI):
            raise InputError(f"mirror translates by lattice, context or naive, not {translate}")
        self._exit, self._spot, self._translate = exit, spot(device), translate
        self._named, self._head = drafting(self.name, model, draft, head, top)
        self._foreign = ""
        """The fingerprint of the target's tokenizer, where the draft model has another one."""
        self.process: DraftProcess | None = None
        self._size = 0
        self._open = 0
        self._rest = RecentMean(KEPT)
        self._lock = threading.Lock()
        self._begins, self._begun_again, self._why = False, 0, ""
        self._place: DraftPlace | None = None
        self._vocabulary: Vocabulary | None = None

    # the draft model's process

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        layers = target.layers
        layer = round(self._exit * layers)
        if not 0 < layer < layers:
            raise InputError(f"exit={self._exit:g} is layer {layer} of {layers}, which leaves nothing to overlap")
        place = place_of(self._named, target, *self._spot, head=self._head)
        if self.process is None or place != self._place:
            self.process = DraftProcess.at(place, stamp(place.model))
        self._place, self.needs, self._size = place, Want(early_exit=layer), target.vocab_size
        facts = self.process.facts
        theirs, self._foreign, self._vocabulary = facts["fingerprint"], "", None
        if vocabulary is None or theirs is None:
            if facts["vocab_size"] != target.vocab_size or self._translate is not None:
                raise InputError(
                    f"mirror cannot translate the drafts of {place.model} for {target.name}: one of them came without "
                    "its tokenizer"
                )
        elif self._translate is not None or theirs != vocabulary.fingerprint:
            if self._head is not None:
                raise InputError(
                    f"mirror:draft=streaming drafts in the tokens of {target.name}, and {place.model} has "
                    "another tokenizer; leave draft out"
                )
            if not self.process.lost:  # else the next one is taught
                self.process.teach(vocabulary)
            self._foreign, self._vocabulary = vocabulary.fingerprint, vocabulary

    @property
    def translates(self) -> bool:
        """Whether the draft model has another tokenizer than the target."""
        return bool(self._foreign)

    def dispose(self) -> None:
        self.process = self._place = None

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
            begun = DraftProcess.at(place, stamp(place.model))
            if self._vocabulary is not None:
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
        assert self.process is not None, "the method is fitted"
        if lost := self.process.lost:
            self._begin_again(lost)
        state = MirrorState(context, Outlook(context.sampling, context.prompt_length))
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
            state.number = process.open(facts, state.context.tokens)
        except Lost as error:
            raise self._lost(error) from None
        state.process, state.known = process, len(state.context)

    def _lost(self, why: object) -> DrafterError:
        """The error that ends the drafts of a text: with it the text has no more of this method's costs."""
        error = failure(self, f"has lost the process of its draft model ({why})")
        error.own = False  # the system ended it, or its user
        return error

    def close(self, state: MirrorState) -> None:
        self._open -= 1
        if state.process is not None:
            state.process.forget(state.number)

    def counts(self, state: MirrorState) -> Mapping[str, float]:
        """It is asked for each text by itself, so here a text learns that it has no more drafts."""
        if state.process is None:
            self._join(state)
        elif state.process.lost:
            raise self._lost(state.process.lost)
        elif not state.drafts:
            state.process.rest(state.number)
        state.drafts = False  # until one is asked for again
        return state.tally.take()

    def on_early(self, state: MirrorState, tree: DraftTree, logits: torch.Tensor) -> None:
        """The window of the text as it is was taken, or is not wanted: what follows now are those behind the draft."""
        if (process := state.process) is None or not state.drafts or not self._free(state):
            return
        kappa = min([self.kappa, *(most for texts, most in NARROWER if self._open >= texts)])
        found = outcomes(logits, tree, state.context, state.outlook, kappa=kappa, shared=self.shape.shared)
        chosen = found.first(self._worth(process, len(found)))
        ahead = Ahead(self.gamma, tree.tokens, tree.parents, chosen.stops, chosen.proxies)
        self._tell(state, MessageKind.AHEAD, ahead.said())
        state.early = time.perf_counter()
        state.foreseen = chosen if len(chosen) else None

    def observe(self, seen: Sequence[Seen]) -> None:
        now = time.perf_counter()
        for state, verdict, _ in seen:
            if state.left:
                state.round, state.left = now - state.left, 0.0
            if state.early:
                spent, state.early = now - state.early, 0.0
                self._rest.add(spent)
            if verdict.tokens and state.drafts and state.context.finish is None and self._free(state):
                self._go(state)
        for state, verdict, scores in seen:  # only now: the draft model is at work
            foreseen, state.foreseen = state.foreseen, None
            if foreseen is not None and verdict.accepted < len(verdict.tokens):
                state.tally.add(ROUNDS_FORESEEN)
                state.tally.add(OVERLAP_MASS, _overlap(state, verdict, scores, foreseen))

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """A window is waited for as long as the target would take to write its tokens: longer is never worth it."""
        rounds = max((state.round for state, _ in asks), default=0.0)
        until = time.monotonic() + max(WAIT, self.gamma * rounds)
        drafts = [self._draft(state, until).top(budget.nodes) for state, budget in asks]
        for state, _ in asks:
            state.left = time.perf_counter()
        return drafts

    def _draft(self, state: MirrorState, until: float) -> DraftTree:
        state.drafts = True
        if state.process is not None:
            state.process.wake(state.number)
        if state.owed != len(state.context):
            if not self._free(state):
                return EMPTY
            self._go(state)
        window = self._window(state, until)
        return EMPTY if window is None else window.tree

    def _free(self, state: MirrorState) -> bool:
        """Whether the draft model can take a message: no window is awaited. One at a time is, so that nothing piles up
        before a process that is late; a window that has arrived and was not used is dropped."""
        return state.process is not None and (not state.owed or self._window(state) is not None)

    def _go(self, state: MirrorState) -> None:
        """Tell what followed, and ask for the window behind it."""
        text: Ints = state.context.tokens[state.known :]
        self._tell(state, MessageKind.GO, Go(self.anew, text).said())
        state.known = state.owed = len(state.context)
        state.asked = time.monotonic()

    def _window(self, state: MirrorState, until: float = 0.0) -> Window | None:
        """The window that is awaited, if it is there by then."""
        read = partial(Window.of, size=self._size, most=self.nodes, source=self.name)
        with suppress(Lost):  # `counts` says so
            if state.process is not None and (
                found := state.process.window(state.number, state.owed, read, asked=state.asked, until=until)
            ):
                window, size = found
                state.owed = 0
                state.tally.add(DRAFT_FORWARDS, window.forwards)
                state.tally.add(DRAFT_TOKENS, window.drafted)
                state.tally.add(LEVELS_AHEAD, max(window.ready, 0))
                state.tally.add(DRAFTS_ANEW, window.ready < 0)
                state.tally.add(BYTES_EXCHANGED, size)
                return window
        return None

    def _worth(self, process: DraftProcess, count: int) -> int | None:
        """How many outcomes get a window."""
        if self.branches == FULL:
            return None
        if self.branches != BEST:
            return int(self.branches)
        fits = 1
        while fits < count and self.gamma * process.seconds(2 * fits * max(1, self._open)) <= self._rest.value:
            fits *= 2
        return fits

    def _tell(self, state: MirrorState, kind: MessageKind, said: Said) -> None:
        if state.process is None:
            return
        with suppress(Lost):  # `counts` says so
            size = state.process.tell(kind, state.number, len(state.context), said)
            state.tally.add(BYTES_EXCHANGED, size)


def _overlap(state: MirrorState, verdict: Verdict, scores: Scores, foreseen: Outcomes) -> float:
    """The paper's overlap mass: what the target gives to the foreseen tokens of the node where the walk stopped. Its
    law is taken without the noise, and of a greedy text as at temperature 1."""
    stop = verdict.path[-1] if verdict.path else ROOT
    there = foreseen.proxies[foreseen.stops == stop].tolist()
    if not there:
        return 0.0
    (law,) = state.outlook.laws(scores.row(stop)[None], [state.context.tokens[:-1]])
    return sum(float(law.probability(token)) for token in there)
