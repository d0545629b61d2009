"""Draft and target at the same time.

While the target computes its later layers, an early exit says what it is likely to choose behind each node of the draft
in flight. For the likeliest of these outcomes the draft model, in a process of its own, already drafts the next window.
When the target has decided, the window of what came is there or nearly so; where none fits, one is drafted then.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.context import Context
from paceline.drafters.assistant.drafter import Model
from paceline.drafters.assistant.growth import DraftShape
from paceline.drafters.assistant.model import DraftModel
from paceline.drafters.base import NO_WORK, Ask, Drafter, Seen, Work
from paceline.drafters.mirror.frames import Ahead, Go, Kind, Window
from paceline.drafters.mirror.place import Place, place_named
from paceline.drafters.mirror.process import PATIENCE, DraftProcess, Lost
from paceline.drafters.mirror.proxies import Outcomes, outcomes
from paceline.drafters.mirror.worker import facts_of
from paceline.drafters.noise import wants_noise
from paceline.drafters.sharing import stamp
from paceline.errors import DrafterWarning, InputError
from paceline.law import Outlook
from paceline.targets.base import Target, Want
from paceline.targets.scores import Scores
from paceline.translate import NONE, TLI, Strategy
from paceline.tree import EMPTY, ROOT, DraftTree, Ints
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

BEST, FULL = "best", "full"
DRAWN = 8
"""Outcomes with a window where nothing may depend on a clock."""
NARROWER = ((64, 1), (32, 2), (16, 4))
"""From so many texts at once on, at most so many proxies of each node (the paper's appendix D.1)."""
OFTEN = 3
"""How often a drafter begins its draft model's process again."""
NEWEST = 0.3
"""The weight of the newest forward in the running mean of the target's rest."""


@dataclass(eq=False)
class MirrorState:
    """One text."""

    context: Context
    outlook: Outlook
    process: DraftProcess | None
    number: int
    known: int
    """How many of its tokens the draft model knows."""
    opened: DraftProcess | None = None
    """The process that knows of it, also once that is lost."""
    waits: bool = False
    """Whether a window for the text as it is was asked for."""
    began: float = 0.0
    """When the later layers of the forward under way began; 0 between forwards."""
    foreseen: Outcomes | None = None
    """The outcomes of that forward that are drafted behind."""
    work: Work = NO_WORK


class Mirror(Drafter):
    """Windows of a draft model that runs beside the target."""

    name = "mirror"
    summary = "a draft model in a process of its own drafts the next window while the target checks the last one"
    source = "Mirror-SD (Bhendawade 2025)"
    requires = (
        "a draft model, best with the target's tokenizer, by name or folder, and a core or device to spare for it"
    )
    unfit = "cores that the target needs itself: assistant drafts with all of them, in turns"
    presets = MappingProxyType({"paper": MappingProxyType({"branches": FULL, "noise": "none"})})

    def __init__(
        self,
        *,
        model: Model,
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
        if not (branches in (BEST, FULL) or (branches.isdigit() and int(branches) > 0)):
            raise InputError(f"mirror takes branches=best, branches=full or a number from 1 on, not {branches!r}")
        self.shape = DraftShape(top=top, length=gamma, confidence=confidence, shared=wants_noise(self.name, noise))
        self.gamma, self.kappa, self.nodes = gamma, kappa, gamma * top
        self.branches, self.anew = branches, min(anew, gamma)
        if translate is not None and Strategy.parse(translate).name in (NONE, TLI):
            raise InputError(f"mirror translates by lattice, context or naive, not {translate}")
        self._exit, self._device, self._translate = exit, device, translate
        self._foreign = ""
        """The fingerprint of the target's tokenizer, where the draft model has another one."""
        self._named: Any = model
        self.process: DraftProcess | None = None
        self._size = 0
        self._open = 0
        self._rest = 0.0
        self._said, self._begun_again = False, 0
        self._place: Place | None = None
        self._vocabulary: Vocabulary | None = None
        self.patience = PATIENCE

    # the draft model's process

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        layers = target.layers
        layer = round(self._exit * layers)
        if not 0 < layer < layers:
            raise InputError(f"exit={self._exit:g} is layer {layer} of {layers}, which leaves nothing to overlap")
        self._place = place = place_of(self._named, target, self._device)
        self.process = DraftProcess.at(place, stamp(place.model))
        self.needs = Want(early_exit=layer)
        self._size, facts = target.vocab_size, self.process.facts
        theirs, self._foreign, self._vocabulary = facts["fingerprint"], "", None
        if vocabulary is None or theirs is None:
            if facts["vocab_size"] != target.vocab_size or self._translate is not None:
                raise InputError(
                    f"mirror cannot translate the drafts of {place.model} for {target.name}: one of them came without "
                    "its tokenizer"
                )
        elif self._translate is not None or theirs != vocabulary.fingerprint:
            self.process.teach(vocabulary)
            self._foreign = vocabulary.fingerprint
            self._vocabulary = vocabulary

    @property
    def translates(self) -> bool:
        """Whether the draft model has another tokenizer than the target."""
        return bool(self._foreign)

    def dispose(self) -> None:
        self.process = None

    def _begin_again(self) -> None:
        """For the next text, where the process was lost with the last one; not for ever."""
        if self.process is None or not self.process.lost or self._begun_again == OFTEN:
            return
        assert self._place is not None, "the method is fitted"
        self._begun_again += 1
        try:
            begun = DraftProcess.at(self._place, stamp(self._place.model))
            if self._vocabulary is not None:
                begun.teach(self._vocabulary)
            self.process = begun  # another thread's text begins behind the tokenizer
        except InputError as error:
            warnings.warn(f"mirror: {error}; the text goes on without drafts", DrafterWarning, stacklevel=2)

    def levels(self, nodes: int) -> int:
        return min(self.gamma, -(-nodes // self.shape.top))

    # texts

    def open(self, context: Context) -> MirrorState:
        self._begin_again()
        outlook = Outlook(context.sampling, context.prompt_length)
        state = MirrorState(context, outlook, self.process, 0, len(context))
        if (process := state.process) is not None:
            facts = facts_of(
                context,
                self._size,
                self.shape,
                self.name,
                foreign=self._foreign,
                translate=self._translate or "",
            )
            state.opened = process
            self._asking(state, lambda: setattr(state, "number", process.open(facts, context.tokens)))
        self._open += 1
        return state

    def close(self, state: MirrorState) -> None:
        self._open -= 1
        if state.opened is not None:
            state.opened.forget(state.number)

    def work(self, state: MirrorState) -> Work:
        work, state.work = state.work, NO_WORK
        return work

    def on_early(self, state: MirrorState, tree: DraftTree, logits: torch.Tensor) -> None:
        """The window of the text as it is was taken, or is not wanted: what follows now are those behind the draft."""
        if state.process is None or not state.number:
            return
        kappa = min([self.kappa, *(most for texts, most in NARROWER if self._open >= texts)])
        found = outcomes(logits, tree, state.context, state.outlook, kappa=kappa, shared=self.shape.shared)
        chosen = found.first(self._worth(state, len(found)))
        body = Ahead(self.gamma, tree.tokens, tree.parents, chosen.stops, chosen.proxies).body()
        self._tell(state, Kind.AHEAD, len(state.context), body)
        state.began = time.perf_counter()
        state.foreseen = chosen if len(chosen) and state.process is not None else None

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, _ in seen:
            if state.began:
                spent, state.began = time.perf_counter() - state.began, 0.0
                self._rest += NEWEST * (spent - (self._rest or spent)) if self._rest else spent
            if verdict.tokens and state.context.finish is None:
                self._go(state)
        for state, verdict, scores in seen:  # only now: the draft model is at work
            foreseen, state.foreseen = state.foreseen, None
            if foreseen is not None and verdict.accepted < len(verdict.tokens):
                state.work = state.work.plus(foreseen=1, overlap=_overlap(state, verdict, scores, foreseen))

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        for state, _ in asks:
            if not state.waits or state.known < len(state.context):
                self._go(state)
        return [_cut(self._window(state), budget.nodes) for state, budget in asks]

    def _go(self, state: MirrorState) -> None:
        """Tell what followed, and ask for the window behind it."""
        text: Ints = state.context.tokens[state.known :]
        levels = self.anew if state.context.foreseeable else self.gamma
        self._tell(state, Kind.GO, len(state.context), Go(levels, text).body())
        state.known, state.waits = len(state.context), True

    def _window(self, state: MirrorState) -> DraftTree:
        if (process := state.process) is None:
            return EMPTY
        read = partial(Window.of, size=self._size, most=self.nodes, source=self.name)
        found: list[tuple[Window, int]] = []
        self._asking(state, lambda: found.append(process.window(state.number, len(state.context), read, self.patience)))
        state.waits = False
        if not found:
            return EMPTY
        window, size = found[0]
        state.work = state.work.plus(
            forwards=window.forwards,
            tokens=window.drafted,
            ahead=max(window.ready, 0),
            anew=window.ready < 0,
            exchanged=size,
        )
        return window.tree

    def _worth(self, state: MirrorState, count: int) -> int | None:
        """How many outcomes get a window."""
        if self.branches == FULL:
            return None
        if self.branches != BEST:
            return int(self.branches)
        if not state.context.foreseeable:
            return DRAWN
        fits = 1
        assert state.process is not None, "there is a process to draft them"
        while fits < count and self.gamma * state.process.seconds(2 * fits * max(1, self._open)) <= self._rest:
            fits *= 2
        return fits

    def _tell(self, state: MirrorState, kind: Kind, place: int, body: bytes) -> None:
        if (process := state.process) is not None:
            state.work = state.work.plus(exchanged=len(body))
            self._asking(state, lambda: process.tell(kind, state.number, place, body))

    def _asking(self, state: MirrorState, ask: Callable[[], None]) -> None:
        """Where the process is lost, the text goes on without drafts, and that is said once."""
        try:
            ask()
        except Lost as error:
            state.process = None
            if not self._said:
                self._said = True
                warnings.warn(
                    f"mirror: the process of the draft model is lost ({error}); the text goes on without drafts: it "
                    "becomes slower, not different",
                    DrafterWarning,
                    stacklevel=2,
                )


def _overlap(state: MirrorState, verdict: Verdict, scores: Scores, foreseen: Outcomes) -> float:
    """The paper's overlap mass: what the target gives to the foreseen tokens of the node where the walk stopped. Its
    law is taken without the noise, and of a greedy text as at temperature 1."""
    stop = verdict.path[-1] if verdict.path else ROOT
    there = foreseen.proxies[foreseen.stops == stop].tolist()
    if not there:
        return 0.0
    (law,) = state.outlook.laws(scores.row(stop)[None], [state.context.tokens[:-1]])
    return sum(float(law.probability(token)) for token in there)


def _cut(tree: DraftTree, nodes: int) -> DraftTree:
    """Sampled nodes in the order in which they were drawn: chosen by their values they would have another law."""
    return tree.head(nodes) if tree.drawn else tree.top(nodes)


def place_of(named: Any, target: Target, device: str | None) -> Place:
    """Where a draft model runs: on a core of its own, unless a device says otherwise."""
    if sys.platform == "win32":
        raise InputError("mirror's process inherits a socket, which Windows does not do; use assistant")
    origin = named.origin if isinstance(named, DraftModel) else named
    if not isinstance(origin, (str, Path)):
        raise InputError(
            "mirror's draft model is loaded by a process of its own; give its name or folder, not a loaded model"
        )
    quantize = "int8" if target.dtype_name == "int8" else None
    return place_named(device, str(origin), None if quantize else target.dtype_name, quantize)
