"""The base class of drafters. A third party needs one method::

    class Echo(Drafter):
        name = "echo"

        def propose_one(self, context, budget):
            return DraftTree.chain([context.root] * budget.nodes, source=self.name)

A draft can never be wrong, only useless: the target decides every token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from paceline.context import Context
from paceline.drafters.counters import NOTHING_COUNTED, Counter
from paceline.errors import InputError
from paceline.law.scores import Array
from paceline.targets.base import NOTHING, Target, Want
from paceline.targets.scores import Scores, read_wanted
from paceline.tree import EMPTY, DraftTree
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary


@dataclass(frozen=True)
class Budget:
    """How much a draft may hold: ``nodes`` in all, no path longer than ``depth``."""

    nodes: int
    depth: int
    reason: str = ""
    """Why it is empty, where that is worth saying."""
    shown: bool = True
    """Whether a drafter that `skips` is shown the round. While a planner has stopped drafting most rounds are not, so
    that they cost what plain decoding costs."""
    rounds: int = 1
    """For how many rounds an empty budget is; the planner has no part in those behind the first."""
    overlapped: bool = False
    """Whether the draft may be made while the target works, by a drafter that `overlaps`; else in turns with it."""

    def __post_init__(self) -> None:
        assert min(self.nodes, self.depth) >= 0, f"a budget is not negative: {self}"

    @property
    def empty(self) -> bool:
        return self.nodes == 0 or self.depth == 0

    def within(self, depth: int) -> Budget:
        """The same for drafts that are no deeper than this."""
        return self if self.depth <= depth else replace(self, depth=depth)


class Ask(NamedTuple):
    """One sequence waiting for a draft."""

    state: Any
    budget: Budget


class Overlaps(StrEnum):
    """Whether a drafter drafts while its target works."""

    NEVER = "never"
    CHOICE = "choice"
    """If the budget says so (`Budget.overlapped`)."""
    ALWAYS = "always"


class InFlight:
    """A draft that is being made while its caller goes on: what `Drafter.begin` returns. Only its drafter looks into
    it. The caller holds it until `Drafter.finish`, or drops it."""


class Awaited(NamedTuple):
    """One sequence waiting for a draft that is in flight."""

    state: Any
    budget: Budget
    flight: InFlight


class Ahead(NamedTuple):
    """One sequence as if tokens of a draft followed, waiting for what follows those."""

    state: Any
    budget: Budget
    """Of what follows."""
    tokens: Sequence[int]


class Enrich(NamedTuple):
    """One sequence with the draft of the cheap part, waiting for that of the expensive part."""

    state: Any
    budget: Budget
    draft: DraftTree
    depth: int | None = None
    """How deep the whole draft may go, where the expensive part is asked for fewer levels."""

    @property
    def whole(self) -> Budget:
        """The budget of the whole draft."""
        return self.budget if self.depth is None else replace(self.budget, depth=self.depth)


class Seen(NamedTuple):
    """The scored rows of one sequence's round. The first row and those on the verdict's path were kept.

    A piece of the prompt looks like a chain that was accepted whole and emitted nothing.
    """

    state: Any
    verdict: Verdict
    scores: Scores


class Drafter:
    """Proposes continuations. It is kept and serves text after text, also several at a time from several threads: what
    belongs to one text belongs into the state that `open` returns and `close` ends.

    Overriding `propose_one` suffices; a drafter that gains from several sequences at once overrides `propose`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One line for ``paceline methods``."""
    source: ClassVar[str] = ""
    """The paper or project the method comes from."""
    requires: ClassVar[str] = ""
    """Its requirements, in a few words for ``paceline methods``."""
    unfit: ClassVar[str] = ""
    """Unsuitable uses, in a few words for ``paceline methods``."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Options by a name that stands for them in a spec: ``paper`` for the method as its authors have it. Its drafts
    then have its own size."""
    nodes: int = 10
    """The default size of a draft: as many nodes as are worth their cost on most machines."""
    spec: str = ""
    """The spec that it was made from, if any: measurements of it are stored under this name."""
    spec_options: Mapping[str, Any] = MappingProxyType({})
    """The options of its method, defaults included, if it was made from a spec."""
    parts: tuple[Drafter, ...] = ()
    """The drafters that it is composed of."""
    counters: tuple[Counter, ...] = ()
    """Its counters besides the engine's own, those of its parts included."""
    leaves: int = 1
    """The number of drafters in it that are not composed; a draft holds the budget's nodes times this, at most."""
    planner: str = "adaptive"
    """The default planner of its drafts, as a spec."""
    sized: bool = True
    """Whether measurements draft its own size by default, as papers do, and not what its planner chooses."""
    needs: Want = NOTHING
    """What `observe` needs beyond tokens of the rows of a draft, its root's among them; read after `fit`. Hidden states
    come of the prompt's rows, too, but for those that are cached."""
    prompt_needs: Want = NOTHING
    """Its needs of every row of a prompt. With any, no cached row of an earlier text can be reused."""
    nested: bool = True
    """Whether a small draft is the best part of a large one, so that rounds with large drafts tell of small ones."""
    skips: bool = False
    """Whether rounds may go by unseen in which nothing is drafted; read after `fit`. What it knows of the text's last
    token it then knows together with the text's length."""
    light: bool = True
    """Whether one thread makes its drafts about as fast as several; read after `fit`."""
    surroundings: Callable[[], AbstractContextManager[None]] = nullcontext
    """What its work between two forwards of its target is done in (`Target.beside`); set when it is fitted."""
    keeps: bool = False
    """Whether measurements let it keep from prompt to prompt what it learns. In a composition nothing is kept."""
    copies: bool = False
    """Whether it can go on `behind` drafts of others, at next to no cost."""
    enriches: bool = False
    """Whether it has an expensive part: `propose` leaves it out, and `enrich` is called where the planner finds that,
    beside the draft that is there, it is worth its time."""
    overlaps: Overlaps = Overlaps.NEVER
    """Whether drafts are made while the target works. Then the engine calls `begin` as soon as the target has decided,
    and `finish` where it would call `propose`."""
    costly_levels: int = 0
    """The levels of that part if each takes additional time, so that the planner may request fewer. A drafter without
    such a part gives its own levels. How many these are is read after `fit`."""

    def __repr__(self) -> str:
        parts = f" of {', '.join(map(repr, self.parts))}" if self.parts and not self.spec else ""
        return f"<drafter {self.spec or self.name or type(self).__name__}{parts}>"

    @property
    def models(self) -> tuple[Target, ...]:
        """The models that it drafts with, those of its parts included."""
        return tuple(model for part in self.parts for model in part.models)

    def levels(self, nodes: int) -> int:
        """The most levels that a draft of ``nodes`` nodes has."""
        return nodes

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        """Prepare for a model, before any `open`; perhaps again for the same one.

        A drafter that cannot draft for it raises a ValueError that says why.
        """

    def reset(self) -> None:
        """Forget what was learnt from texts. Open texts go on."""

    def dispose(self) -> None:
        """Give back what it holds: processes, files, models. Its maker calls this once, when no text uses it."""

    def open(self, context: Context) -> Any:
        """Start a sequence and return its state. Work that grows with the prompt is done here, or in `observe` while
        the target reads the prompt: its time then counts as reading the prompt, not as decoding."""
        return context

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """One draft per sequence; empty where nothing is known."""
        return [self.propose_one(state, budget) for state, budget in asks]

    def propose_one(self, state: Any, budget: Budget) -> DraftTree:
        """The draft of one sequence."""
        raise TypeError(f"drafter {type(self).__name__} overrides neither propose nor propose_one")

    def begin(self, states: Sequence[Any]) -> list[InFlight]:
        """Begin the next draft of each sequence, whose tokens of this round are in its context, and return at once.
        Called if it `overlaps`, after rounds whose drafts were overlapped."""
        return [InFlight() for _ in states]

    def finish(self, asks: Sequence[Awaited]) -> list[DraftTree]:
        """The drafts that are in flight, waited for as long as is worth it; empty where one is late."""
        return self.propose([Ask(state, budget) for state, budget, _ in asks])

    @property
    def overlap_setup(self) -> str:
        """All that the seconds of overlapped drafts depend on beside the target; read after `fit`. Measurements of them
        are stored under this key."""
        return ""

    def prepare_overlap(self) -> None:
        """Get what overlapped drafts need, such as a process, which may take seconds. InputError where that fails."""

    def end_overlap(self) -> None:
        """Give it back: no more overlapped drafts are asked for."""

    def behind(self, asks: Sequence[Ahead]) -> list[DraftTree]:
        """What follows tokens of a draft, for each: the draft for the text as if they were emitted. Called only if it
        `copies`, and changes nothing but counters."""
        return [EMPTY] * len(asks)

    def sure(self, state: Any) -> bool:
        """Whether the next draft is very likely right, such as a long copy that was right so far. It then may be as
        large as the budget, and wakes a planner that has stopped drafting; asked every few rounds while it has."""
        return False

    @property
    def may_be_sure(self) -> bool:
        """Whether `sure` need be called."""
        return type(self).sure is not Drafter.sure

    def enrich(self, asks: Sequence[Enrich]) -> list[DraftTree]:
        """Each draft joined with that of the expensive part; called only if `enriches`."""
        return [ask.draft for ask in asks]

    def read(self, seen: Sequence[Seen]) -> None:
        """Read from the scores what `observe` will need: the best tokens of every row, where it `needs` any.

        Called before `observe`, if it is overridden or any are needed. It is apart since its time counts as the
        target's and not as drafting: on a device that works ahead of the host it waits for the forward.
        """
        if self.needs.top:
            read_wanted([each.scores for each in seen])

    def observe(self, seen: Sequence[Seen]) -> None:
        """Learn from a round. The context has its new tokens already; of one that `skips`, also those of rounds that it
        was not shown."""

    @property
    def observes(self) -> bool:
        """Whether anything is learnt from rounds: else `observe` need not be called."""
        return type(self).observe is not Drafter.observe

    def counts(self, state: Any) -> Mapping[str, float]:
        """The counts of this text since the last call, by the names of `counters`; asked once a round, for its
        record."""
        return NOTHING_COUNTED

    def on_early(self, state: Any, tree: DraftTree, logits: Array) -> None:
        """Early-exit logits of the rows of a draft, the root's first, while the target's later layers still compute.

        Called if `needs` names an early exit; not in the first round of a text, which has no draft. ``tree`` is the
        draft as it is scored. It runs inside the target's forward, which waits for it.
        """

    @property
    def hears_early(self) -> bool:
        """Whether `on_early` should be called."""
        return type(self).on_early is not Drafter.on_early and self.needs.early_exit is not None

    def close(self, state: Any) -> None:
        """End a sequence: called exactly once for every `open`, also when a generation is cut short."""


def at_least(method: str, least: int, **options: int) -> None:
    """Refuse options of a method that are less."""
    for name, value in options.items():
        if value < least:
            raise InputError(f"{method} needs {name} of at least {least}, not {value}")


def one_of(method: str, choices: Collection[str], **options: str) -> None:
    """Refuse options of a method that are none of these choices."""
    for name, value in options.items():
        if value not in choices:
            *others, last = (f"{name}={choice}" for choice in choices)
            raise InputError(f"{method} takes {', '.join(others)} or {last}, not {value!r}")


class Plain(Drafter):
    """Never drafts, so every round is one row and one token: the baseline of all measurements."""

    name = "plain"
    summary = "no draft: one token per forward"
    source = "autoregressive decoding"
    planner = "fixed"

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.chain([])
