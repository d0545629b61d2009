"""The files of a run: `About` is ``run.json``, which describes it; a `Record` is a line of ``records.jsonl``, one text
that one contestant wrote."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, Required, TypedDict

from paceline.engine.counters import Round
from paceline.errors import InputError
from paceline.files.shape import Amount, Bounds, Count, LogProbability, shaped


class TextVerdict(StrEnum):
    """How a text compares with plain decoding's."""

    REFERENCE = "reference"
    """It is plain decoding's."""
    EQUAL = "equal"
    NEAR_TIE = "near tie"
    BUG = "bug"
    NOT_RESCORED = "not re-scored"
    DIFFERENT = "different"
    """It is another library's and differs, and rounding does not explain it."""
    FOLLOWED = "followed"
    """It followed plain decoding's text; `flips` counts tokens that it would have chosen otherwise."""
    OWN = "own"
    """It need not be equal: sampled with other random numbers."""


NO_COLUMNS = ("why", "prefill", "unasked", "counts")
"""Fields of a `Round` that are not recorded."""
ROUND_COLUMNS = tuple(f.name for f in fields(Round) if f.name not in NO_COLUMNS)
EXPECTED = {f"expected_{name}": name for name in ("tokens", "seconds", "seconds_plain", "rate")}
"""The planner's expectations of the round, by the names that it has there; absent where none of a text's rounds says,
and 0 of a round that does not."""
InRound = Annotated[float, Bounds(0, 2**24)]
"""A count of a round, or its seconds."""
DEEPEST = 2**16
"""Tokens on the longest path of a draft."""
SPLIT = ("prefill", "draft", "score", "read", "judge", "rest")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One text. Texts of equal ``unit``, ``turn`` and ``repeat`` were written right after one another by all entries:
    they are what is compared."""

    entry: str
    prompt: str
    task: str
    language: str
    unit: Count
    """The number of the prompt in the run, or of the batch that it was written in."""
    turn: Count = 0
    """Which turn of a conversation, from 0."""
    repeat: Count = 0
    place: Count = 0
    """Its place in the order of entries: 0 went first."""
    prompt_tokens: Count
    text: str
    tokens: list[Count]
    finish: str
    seconds: Amount
    """The whole call, or from the arrival to the last token where prompts arrive on their own."""
    seconds_first: Amount
    """Until the first token was there."""
    seconds_waited: Amount = 0.0
    """Of these, in a queue."""
    decoded: Count
    """Tokens of `seconds_decode`: the speed of a text is their ratio."""
    seconds_decode: Amount
    """Decoding: from the first token on. Of a text in a batch, its share of the time in which all texts of the batch
    had their first token, by its tokens of that time."""
    split: dict[str, Amount] | None = None
    """Seconds by phase (`SPLIT`); None of a peer."""
    rounds: dict[str, list[InRound]] | None = None
    """Column -> one value per round (`ROUND_COLUMNS`, and `EXPECTED` if known); None of a peer."""
    forwards: Count | None = None
    drafted: Count | None = None
    """Drafted tokens, and accepted ones, of a peer that counts them; of ours the rounds say it."""
    accepted: Count | None = None
    metrics: dict[str, Amount] = field(default_factory=dict)
    """A peer's metrics of the text, by its own names."""
    sources: list[str] = field(default_factory=list)
    """Per token, its source; empty of a peer, "" for the model's own tokens."""
    scores: list[LogProbability] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Per token, the text that became certain with it."""
    verdict: TextVerdict
    parts_at: Count | None = None
    """The first token that is not plain decoding's."""
    flips: Count = 0
    joules: Amount | None = None
    peak_bytes: Count | None = None
    batch: Count = 1

    @property
    def speed(self) -> float | None:
        """Tokens per second; None where all tokens came at once."""
        return self.decoded / self.seconds_decode if self.decoded and self.seconds_decode > 0 else None

    @property
    def pair(self) -> tuple[int, int, int]:
        """Equal for the texts of several entries that are compared."""
        return self.unit, self.turn, self.repeat

    @classmethod
    def of(cls, row: Any) -> Record:
        """From a line's data. ValueError where it is none."""
        record = shaped(cls, row)
        if (columns := record.rounds) is not None:
            odd = (set(columns) - set(EXPECTED)) ^ set(ROUND_COLUMNS)
            if odd:
                raise InputError(f"'rounds' {'has' if min(odd) in columns else 'lacks'} {min(odd)!r}")
            if len(set(map(len, columns.values()))) > 1:
                raise InputError("the columns of 'rounds' are not of one length")
            if (depth := max(columns["depth"], default=0)) > DEEPEST:
                raise InputError(f"'rounds.depth' has {depth}")
        return record


FORMAT = 3


class RunRecipe(TypedDict, total=False):
    """The fields read of a run's options."""

    suite: str
    methods: list[str]
    peers: list[str]
    temperature: Amount | None
    seed: Annotated[int, Bounds(0, 2**64)]
    repeat: Count
    warm: bool
    batch: Count | None
    qps: Amount | None
    follow: bool | None


class ModelFacts(TypedDict, total=False):
    """The fields read of the measured model."""

    model: str
    name: str
    dtype: str
    fingerprint: str
    device: str
    threads: Count
    ballast: str | None


class EntryFacts(TypedDict, total=False):
    """The fields read of a contestant."""

    name: Required[str]
    ours: bool
    method: str | None
    planner: str | None
    draft_model: str | None


class WorkloadFacts(TypedDict, total=False):
    """The fields read of the workload."""

    suite: str
    cells: dict[str, dict[str, Count]] | None
    notes: list[str] | None
    sources: dict[str, str] | None
    units: Count
    shortened: list[str]


class WarmUp(TypedDict, total=False):
    """The result of a warm-up: whether a greedy text is plain decoding's, and where it parts from it."""

    tokens: Count
    same: bool
    verdict: TextVerdict
    parts_at: Count


class EnergyFacts(TypedDict, total=False):
    """The fields read of the meter."""

    source: str | None
    measured: bool
    watts: Amount | None


class MachineFacts(TypedDict, total=False):
    """The fields read of the machine."""

    cores: Count | None


class GitFacts(TypedDict, total=False):
    """The fields read of the sources."""

    commit: str | None
    changed: bool


class Sitting(TypedDict, total=False):
    """The fields read of a session in which a run was begun or continued."""

    started: str | None
    when: str | None
    command: str | None
    versions: dict[str, Any] | None
    machine: Annotated[dict[str, Any], MachineFacts] | None
    load: Amount | None
    git: Annotated[dict[str, Any], GitFacts] | None


@dataclass(kw_only=True)
class About:
    """The conditions of a run. ``recipe``, ``model``, ``entries`` and the meter of ``energy`` are the run's identity:
    it goes on only where they are equal."""

    recipe: Annotated[dict[str, Any], RunRecipe]
    """Every option that decides what is written and by whom: suite, methods, peers, limit, temperature, and so on."""
    model: Annotated[dict[str, Any], ModelFacts]
    """Name, dtype, fingerprint, device, and its shape where it carries ballast."""
    entries: list[Annotated[dict[str, Any], EntryFacts]]
    """Of each contestant: ``name``, ``ours``, and its facts. The first is plain decoding."""
    workload: Annotated[dict[str, Any], WorkloadFacts]
    """``suite``, ``cells``, ``notes``, ``sources``, and ``units``: how many there are to write."""
    missing: dict[str, str] = field(default_factory=dict)
    """Contestants that were asked for and cannot take part -> why."""
    warm_up: dict[str, Annotated[dict[str, Any], WarmUp]] = field(default_factory=dict)
    """Entry -> what its warm-up found: whether it writes plain decoding's greedy text."""
    energy: Annotated[dict[str, Any], EnergyFacts] = field(default_factory=dict)
    """``source`` (nvml, rapl, powermetrics, stated, none), ``measured``, ``watts``."""
    sittings: list[Annotated[dict[str, Any], Sitting]] = field(default_factory=list)
    """Each beginning or continuation: when, versions, machine, threads, load, git state."""
    finished: bool = False
    format: int = FORMAT

    def check(self) -> None:
        """ValueError where parts that have the right shape do not go together."""
        names = [entry["name"] for entry in self.entries]
        if not names:
            raise InputError("'entries' is empty")
        if len(set(names)) < len(names):
            raise InputError(f"'entries' has {next(name for name in names if names.count(name) > 1)!r} twice")
        for name, found in self.warm_up.items():
            if "verdict" in found and "parts_at" not in found:
                raise InputError(f"it lacks 'warm_up.{name}.parts_at'")
