"""The seconds of a round in which draft and target work at the same time: its parts, each measured by itself, and their
law.

The paper's law (equations 10 and 14) is lower layers + exit + max(upper layers, drafts) + end. Four things are added:
how much target and draft slow one another down, the share of rounds that nothing was drafted ahead for, what finishing
the right draft takes once the others are dropped, and the wait for the forward of the draft model that is under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from paceline.api.model import LanguageModel
from paceline.api.settings import Options
from paceline.api.writing import Generation
from paceline.context import Context, Ending
from paceline.drafters.base import Drafter
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.mirror.drafter import Mirror
from paceline.drafters.networks.mirror.messages import Ahead, Go, MessageKind, Window
from paceline.drafters.networks.mirror.process import DraftProcess
from paceline.drafters.networks.mirror.proxies import Outcomes, outcomes
from paceline.drafters.networks.mirror.worker import facts_of
from paceline.engine.counters import Totals
from paceline.errors import InputError
from paceline.law import Outlook, Sampling
from paceline.targets.base import Request, Target, Want
from paceline.tree import DraftTree
from paceline_lab.bench.machine import threads
from paceline_lab.bench.times.steps import read_text
from paceline_lab.machine.measuring import Measuring, RoundSeconds

PATIENCE = 20.0
POLL = 2e-4


@dataclass(frozen=True, kw_only=True)
class RoundParts:
    """Seconds, with the other side at rest unless said otherwise."""

    lower: float
    """The target up to its exit, which includes the exit's norm and head."""
    exit: float
    """Reading the exit, choosing outcomes, and telling the draft model."""
    upper: float
    """The target from there on."""
    end: float
    """From the target's last layer to the next draft that is there already: judging, and a message each way."""
    first: float
    """The draft model's first forward: the draft in flight and the outcomes behind it."""
    level: float
    """Each later one: a row for every outcome."""
    single: float
    """One of one row, where only one draft goes on."""
    target_slows: float = 1.0
    """How much longer the upper layers take while the draft model works."""
    draft_slows: float = 1.0
    judged: float = 0.0
    """The part of the end in which the target's choices are read and judged; the rest is the exchange of messages."""

    def ahead(self, levels: int) -> float:
        """Seconds of drafts of ``levels`` tokens for all outcomes, beside the target."""
        return self.draft_slows * (self.first + (levels - 1) * self.level)

    @property
    def window(self) -> float:
        """How long the target is busy behind its exit."""
        return self.target_slows * self.upper

    def left(self, levels: int) -> tuple[float, int]:
        """When the target has decided: the seconds of the draft model's forward under way, and the forwards that the
        right draft needs behind it."""
        first, level = self.draft_slows * self.first, self.draft_slows * self.level
        if self.ahead(levels) <= self.window:
            return 0.0, 0
        if self.window < first:
            return (first - self.window) / self.draft_slows, levels - 1
        done, begun = divmod(self.window - first, level)
        return (level - begun) / self.draft_slows, levels - 2 - int(done)

    def step(self, levels: int, anew: float, short: int | None = None) -> float:
        """Seconds of a round with drafts of ``levels`` tokens. The share ``anew`` of them begins after the target has
        decided; those have ``short`` tokens."""
        return sum(self.spent(levels, anew, short).values())

    def spent(self, levels: int, anew: float, short: int | None = None) -> dict[str, float]:
        """The same, by what the seconds are spent on. Only the target's layers and the judging would be spent without
        drafts, too."""
        waiting, behind = self.left(levels)
        return {
            "target": self.lower + self.upper,
            "target slowed": self.window - self.upper,
            "outcomes": self.exit,
            "waiting for a forward": waiting,
            "finishing": (1 - anew) * behind * self.single,
            "drafts anew": anew * (levels if short is None else short) * self.single,
            "exchange": self.end - self.judged,
            "judging": self.judged,
        }

    def turns(self, levels: int) -> float:
        """Seconds of a round whose draft is made in turns with the target, on the same devices."""
        return self.lower + self.upper + levels * self.single + self.judged


class Bench:
    """A target and a draft process at one place of one text, timed apart and together."""

    def __init__(self, target: Target, mirror: Mirror, text: Context, levels: int, branches: int) -> None:
        process, layer = mirror.process, mirror.needs.early_exit
        assert isinstance(process, DraftProcess) and layer is not None, "the method is fitted"
        if mirror.translates:
            raise InputError("the parts of a round are timed with draft models of the target's tokenizer only")
        self.target, self.process, self.layer, self.levels, self.branches = target, process, layer, levels, branches
        self.kappa, self.shape = mirror.kappa, mirror.shape
        place = len(text) - levels - 1
        sampling = text.sampling
        self.context = Context(text.tokens[:place], sampling, text.ending)
        self.outlook = Outlook(sampling, text.prompt_length)
        self.tree = DraftTree.chain(text.tokens[place : place + levels])
        self.number = process.open(
            facts_of(self.context, target.vocab_size, mirror.shape, mirror.name), text.tokens[:place]
        )
        try:
            self.rows = read_text(target, text.tokens[: place - 1], 256)
            self.turn(levels)
        except BaseException:
            process.forget(self.number)
            raise

    def close(self) -> None:
        self.process.forget(self.number)
        self.rows.close()

    # the draft model

    def turn(self, levels: int = 0) -> float:
        """The seconds from the request for a draft of ``levels`` tokens behind the text to its arrival."""
        began, place, asked = time.perf_counter(), len(self.context), time.monotonic()
        self.process.tell(MessageKind.GO, self.number, place, Go(levels, np.empty(0, np.int64)).said())
        read = partial(Window.of, size=self.target.vocab_size, most=10**6, source="mirror")
        if self.process.window(self.number, place, read, asked=asked, until=asked + PATIENCE) is None:
            raise InputError(f"the draft model takes over {PATIENCE:g} s for {levels} tokens; choose a smaller one")
        return time.perf_counter() - began

    def _ahead(self, found: Outcomes, levels: int) -> None:
        ahead = Ahead(levels, self.tree.tokens, self.tree.parents, found.stops, found.proxies)
        self.process.tell(MessageKind.AHEAD, self.number, len(self.context), ahead.said())

    def _heard(self, count: int) -> list[float]:
        """The seconds of the next forwards of the draft model."""
        found: list[float] = []
        ends = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < ends:
            found += [each.seconds for each in self.process.heard()]
            time.sleep(POLL)
        return found

    def drafting(self, found: Outcomes) -> tuple[float, float, float]:
        """First, later and single forwards of the draft model with the target at rest."""
        self.process.heard()
        self._ahead(found, self.levels)
        first, *later = self._heard(self.levels)
        self._ahead(found.first(1), self.levels)
        _, *single = self._heard(self.levels)
        return first, median(later or [first]), median(single or [first])

    # the target

    def forward(self, on_early: Callable[[torch.Tensor], None] | None = None) -> tuple[float, float]:
        """When a forward over the draft comes to its exit, and when it ends."""
        left = [0.0]

        def early(logits: torch.Tensor) -> None:
            if logits.is_cuda:  # a recorded forward has been launched to its end by now
                torch.cuda.current_stream(logits.device).synchronize()
            left[0] = time.perf_counter()
            if on_early is not None:
                on_early(logits)

        want = Want(early_exit=self.layer)
        request = Request.of_tree(self.rows, self.context.root, self.tree, want, early)
        began = time.perf_counter()
        (scores,) = self.target.submit([request]).result()
        scores.choices()
        return left[0] - began, time.perf_counter() - began

    @property
    def _records(self) -> bool:
        """Whether forwards are CUDA graphs. None was measured yet."""
        path = getattr(self.target, "fixed", None)
        return self.target.device.startswith("cuda") and path is not None and path.refused is None

    def found(self, logits: torch.Tensor) -> Outcomes:
        chosen = outcomes(logits, self.tree, self.context, self.outlook, kappa=self.kappa, shared=self.shape.shared)
        return chosen.first(self.branches)

    def round(self) -> RoundParts:
        """All parts once, one behind the other."""
        kept: list[Outcomes] = []
        spent: list[float] = []
        end = self.turn()

        def alone(logits: torch.Tensor) -> None:
            began = time.perf_counter()
            found = self.found(logits)
            self._ahead(found.first(0), 0)
            kept.append(found)
            spent.append(time.perf_counter() - began)

        lower, whole = self.forward(alone)
        found = kept[0]
        first, level, single = self.drafting(found)
        exit, upper = spent[0], whole - lower - spent[0]
        if self._records:  # the later layers run while the exit is read, and only drafts wait for that
            exit, upper, first = 0.0, whole - lower, first + spent[0]
        enough = self.levels + ceil(1.5 * upper / max(level, 1e-4))
        loaded_lower, loaded = self.forward(lambda _: self._ahead(found, enough))
        beside = [each.seconds for each in self.process.heard()][1:]
        self._ahead(found.first(0), 0)
        self._settle()
        return RoundParts(
            lower=lower,
            exit=exit,
            upper=upper,
            end=end,
            first=first,
            level=level,
            single=single,
            target_slows=(loaded - loaded_lower) / upper,
            draft_slows=median(beside) / level if beside else 1.0,
        )

    def _settle(self) -> None:
        """Until the draft model is at rest."""
        self.turn()  # whose answer comes behind the forward that is under way
        self.process.heard()


def joined(rounds: Sequence[RoundParts], judged: float) -> RoundParts:
    """The medians of several rounds; ``judged`` is what the target's choices take behind its forward."""
    middle = {name: median(getattr(each, name) for each in rounds) for name in RoundParts.__dataclass_fields__}
    slows = {name: max(1.0, middle[name]) for name in ("target_slows", "draft_slows")}
    return RoundParts(**{**middle, **slows, "end": middle["end"] + judged, "judged": judged})


# --- held against what happens ------------------------------------------------------------------------------


class Pair(NamedTuple):
    """As the law has it, and as it was: the seconds of a round, or a gain."""

    predicted: float
    observed: float

    @property
    def ratio(self) -> float:
        return self.observed / self.predicted


@dataclass(frozen=True)
class OverlapCell:
    """One draft model with drafts of one length."""

    draft: str
    levels: int
    branches: int
    parts: RoundParts
    anew: float
    """The share of rounds whose draft began after the target had decided."""
    emitted: float
    """Tokens a round."""
    emitted_in_turns: float
    together: Pair
    turns: Pair
    """In turns, both models on the cores that the target has here."""
    turns_everywhere: Pair
    """In turns, both models on all cores."""

    def gain(self, over: Pair) -> Pair:
        """How many times as many tokens a second as in turns."""
        tokens = self.emitted / self.emitted_in_turns
        return Pair(tokens * over.predicted / self.together.predicted, tokens * over.observed / self.together.observed)


@dataclass(frozen=True, kw_only=True)
class OverlapTrial:
    """The texts with which the law is compared: by which target, from which prompts."""

    lm: LanguageModel
    prompts: Sequence[Any]
    """Texts, or their tokens."""
    tokens: int = 48
    temperature: float = 0.8
    exit: float = 0.5
    repeats: int = 3
    seed: int = 0
    anew: int | None = None
    """Tokens of drafts that begin after the target has decided; None for as many as others have."""

    def cell(self, draft: str, levels: int, branches: int) -> OverlapCell:
        """Parts and runs in turns, several times; the medians of each."""
        target, everywhere = self.lm.target, torch.get_num_threads()
        mirror = Mirror(
            model=draft, gamma=levels, branches=str(branches), exit=self.exit, anew=self.anew, overlap="always"
        )
        mirror.fit(target, self.lm.vocabulary)
        assistant = Assistant(model=DraftModel.load(draft, target), length=levels)
        begun = ExitStack()
        assistant.fit(target, self.lm.vocabulary)
        try:
            text = self.text
            bench = Bench(target, mirror, text, levels, branches)
            begun.callback(bench.close)
            measured, judged = list[RoundParts](), list[float]()
            alone, wide = list[float](), list[float]()
            runs: dict[str, list[Totals]] = {"together": [], "turns": [], "everywhere": []}
            for _ in range(self.repeats):
                measured.append(bench.round())
                judged.append(self.judged())
                alone.append(self.turns(assistant, [levels])[levels].whole)
                runs["together"].append(self._run(mirror, levels))
                runs["turns"].append(self._run(assistant, levels))
                with threads(everywhere):
                    wide.append(self.turns(assistant, [levels])[levels].whole)
                    runs["everywhere"].append(self._run(assistant, levels))
        finally:
            begun.close()
            for each in (mirror, assistant):
                each.dispose()
        whole = sum(runs["together"], Totals())
        parts = joined(measured, judged=median(judged))
        anew = whole.counts["drafts_anew"] / max(1, whole.drafting_rounds)
        seconds = {name: median(one.seconds / one.rounds for one in found) for name, found in runs.items()}
        return OverlapCell(
            draft,
            levels,
            branches,
            parts,
            anew,
            whole.tokens_per_round,
            sum(runs["turns"], Totals()).tokens_per_round,
            Pair(parts.step(levels, anew, self.anew), seconds["together"]),
            Pair(median(alone), seconds["turns"]),
            Pair(median(wide), seconds["everywhere"]),
        )

    @cached_property
    def text(self) -> Context:
        """A text of the target's own to time the parts on."""
        prompt, vocabulary = self.prompts[0], self.lm.vocabulary
        found = self._plain(prompt, self.tokens)
        if isinstance(prompt, str):
            assert vocabulary is not None, "the prompts are words"
            prompt = vocabulary.encode_prompt(prompt).tolist()
        ids = [*prompt, *found.tokens]
        return Context(ids, Sampling(temperature=self.temperature, seed=self.seed), Ending(max_new_tokens=4096))

    def _plain(self, prompt: Any, tokens: int) -> Generation:
        how = Options(method="plain", temperature=self.temperature, seed=self.seed, max_new_tokens=tokens)
        return self.lm.generate(prompt, **how)

    def judged(self) -> float:
        """From logits to a choice: what a round of plain decoding takes behind the forward."""
        found = self._plain(self.prompts[0], 8)
        return median(each.seconds_read + each.seconds_judge for each in found.rounds[1:])

    def turns(self, assistant: Assistant, sizes: Sequence[int], repeats: int = 1) -> dict[int, RoundSeconds]:
        """Rounds in turns with the target, on the threads that there are, by the length of their drafts."""
        measuring = Measuring(target=self.lm.target, sampling=self.text.sampling)
        how: dict[str, Any] = {"length": len(self.text), "seconds": 0.0, "cap": None, "repeats": repeats}
        return measuring.rounds(assistant, self.text.tokens, sizes, **how)

    def _run(self, drafter: Drafter, levels: int) -> Totals:
        """All prompts, each by itself."""
        found = []
        for prompt in self.prompts:
            written = self.lm.generate(
                prompt,
                method=drafter,
                planner=f"fixed:{levels}",
                temperature=self.temperature,
                seed=self.seed,
                max_new_tokens=self.tokens,
                ignore_eos=True,
            )
            found.append(written.totals)
        return sum(found, Totals())
