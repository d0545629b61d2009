"""The protocol of a run: who writes when, what is kept, what it is compared with, and how it goes on."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import paceline
from clock import MadeClock
from engine import SIZE, habitual, tabled, write
from paceline.context import Context
from paceline.drafters import Budget, Drafter, Plain, make_drafter
from paceline.files import claimed
from paceline.law import Sampling
from paceline.planning.base import Cut, Draft, Why
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from paceline.verify import Rule
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, TextContestant, Written, cut
from paceline_lab.bench.run.directory import ABOUT, RECORDS, read
from paceline_lab.bench.run.ours import DraftedBy, Ours, parted
from paceline_lab.bench.run.protocol import Conditions
from paceline_lab.bench.run.record import ROUND_COLUMNS, SPLIT, Record, TextVerdict
from refereed import METHODS, Echo, encode, finished, prompts, refereed


def without_times(record: Record) -> dict[str, Any]:
    """What must be the same whenever it is done."""
    kept = {name: getattr(record, name) for name in ("entry", "prompt", "unit", "turn", "repeat", "place", "tokens")}
    return {**kept, "verdict": record.verdict, "accepted": record.rounds and record.rounds["accepted"]}


# --- who writes when


def test_every_prompt_is_written_by_everybody_in_turns(tmp_path: Path) -> None:
    run = finished(refereed(tmp_path / "run", repeat=2))
    assert len(run.records) == 4 * 2 * len(METHODS)
    units: dict[tuple[int, int], list[Record]] = {}
    for record in run.records:
        units.setdefault((record.repeat, record.unit), []).append(record)
    for found in units.values():
        assert sorted(record.entry for record in found) == sorted(METHODS)
        assert sorted(record.place for record in found) == [0, 1, 2]
    # over repeats and prompts everybody goes first, and nobody always
    first = Counter(record.entry for record in run.records if record.place == 0)
    assert set(first) == set(METHODS)
    followers = {
        (a.entry, b.entry)
        for found in units.values()
        for a, b in pairwise(sorted(found, key=lambda record: record.place))
    }
    assert len(followers) == len(METHODS) * (len(METHODS) - 1)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5)])
@pytest.mark.parametrize("follow", [False, True])
def test_texts_are_plain_decodings(tmp_path: Path, sampling: Sampling, follow: bool) -> None:
    run = finished(refereed(tmp_path / "run", sampling=sampling, follow=follow))
    for prompt in prompts():
        alone = write(tabled(), encode(prompt, 0, ()).tolist(), Plain(), sampling=sampling, max_new_tokens=12)
        texts = [record for record in run.records if record.prompt == prompt.key]
        assert len(texts) == len(METHODS)
        for record in texts:
            assert record.tokens == alone.context.emitted.tolist()
            assert record.flips == 0
            assert record.text == "".join(record.pieces) == "".join(map(str, record.tokens))
    verdicts = {record.entry: record.verdict for record in run.records}
    others = TextVerdict.FOLLOWED if follow else TextVerdict.EQUAL
    assert verdicts == {"plain": TextVerdict.REFERENCE, "lookup": others, METHODS[2]: others}
    assert all(record.rounds is not None and sum(record.rounds["emitted"]) == 12 for record in run.records)


class Elsewhere(Ours):
    """Writes another text than plain decoding from its third token on, as a broken method would."""

    def write(self, job: Job, clock: Clock) -> Written:
        written = super().write(job, clock)
        tokens = [(t + (place >= 2)) % self.target.vocab_size for place, t in enumerate(written.tokens)]
        return replace(written, tokens=tokens)


def test_a_method_that_writes_another_text_is_a_bug_and_another_library_is_not(tmp_path: Path) -> None:
    target = tabled()
    plain, wrong = Ours("plain", target, DraftedBy()), Elsewhere("lookup", target, DraftedBy())
    referee = refereed(tmp_path / "run", target=target, contestants=[plain, wrong, Echo([0, 1, 2])])
    run = finished(referee)
    texts = {entry: [r for r in run.records if r.entry == entry] for entry in run.entries}
    assert {record.verdict for record in texts["lookup"]} == {TextVerdict.BUG}
    assert {record.parts_at for record in texts["lookup"]} == {2}
    assert {record.verdict for record in texts["echo"]} == {TextVerdict.DIFFERENT}
    warm_up = read(tmp_path / "run").about.warm_up
    assert warm_up["plain"] == {"tokens": 12, "same": True}
    assert warm_up["lookup"] == {"tokens": 12, "same": False, "verdict": "bug", "parts_at": 2}
    assert warm_up["echo"]["verdict"] == "different"


def test_what_is_drawn_with_other_coins_is_its_own(tmp_path: Path) -> None:
    drawn = Sampling(temperature=1.0, seed=3)
    run = finished(refereed(tmp_path / "peer", sampling=drawn, peers=[Echo([0, 1, 2])]))
    assert {r.verdict for r in run.records if r.entry == "echo"} == {TextVerdict.OWN}
    run = finished(refereed(tmp_path / "rule", sampling=drawn, rule=Rule.REJECTION))
    assert {r.verdict for r in run.records if r.entry != "plain"} == {TextVerdict.OWN}
    run = finished(refereed(tmp_path / "greedy", rule=Rule.REJECTION))
    assert {r.verdict for r in run.records if r.entry != "plain"} == {TextVerdict.EQUAL}


def test_a_text_that_is_too_long_or_too_short_is_a_bug(tmp_path: Path) -> None:
    class Short(Ours):
        def write(self, job: Job, clock: Clock) -> Written:
            written = super().write(job, clock)
            return replace(written, tokens=written.tokens[:-1])

    target = tabled()
    plain, short = Ours("plain", target, DraftedBy()), Short("lookup", target, DraftedBy())
    run = finished(refereed(tmp_path / "run", target=target, contestants=[plain, short]))
    assert {r.verdict for r in run.records if r.entry == "lookup"} == {TextVerdict.BUG}


# --- what counts


def test_what_lies_behind_the_end_does_not_count(tmp_path: Path) -> None:
    job = Job(prompt=encode(prompts()[0], 0, ()), sampling=Sampling(), max_new_tokens=5, eos=frozenset({4}))
    assert cut([1, 2, 4, 3, 4], job) == [1, 2, 4]
    assert cut([1, 2, 3, 1, 2, 3, 4], job) == [1, 2, 3, 1, 2]
    assert cut([], job) == []
    run = finished(refereed(tmp_path / "run", peers=[Echo([1, 2, 4, 3, 3, 3, 3, 3])], eos=frozenset({4})))
    for record in run.records:
        assert 4 not in record.tokens[:-1]
        if record.entry == "echo":
            # the first delivery, one token, belongs to reading the prompt
            assert (record.tokens, record.decoded, record.finish) == ([1, 2, 4], 2, "eos")


def test_times_add_up(tmp_path: Path) -> None:
    run = finished(refereed(tmp_path / "run", peers=[Echo([1, 2, 3])]))
    for record in run.records:
        assert 0 < record.seconds_first <= record.seconds
        if record.entry == "echo":
            assert record.split is None
            assert record.rounds is None
            assert record.decoded == 2
            continue
        assert record.split is not None
        assert tuple(record.split) == SPLIT
        assert sum(record.split.values()) == pytest.approx(record.seconds, abs=1e-5)
        assert record.rounds is not None
        assert record.seconds_decode == pytest.approx(record.seconds - record.seconds_first, abs=1e-5)
        assert record.decoded == len(record.tokens) - record.rounds["emitted"][0]
        assert record.speed == record.decoded / record.seconds_decode


def test_a_text_that_came_at_once_has_no_speed(tmp_path: Path) -> None:
    class AtOnce(Echo):
        def write(self, job: Job, clock: Clock) -> Written:
            return replace(super().write(job, clock), deliveries=[(len(self.says), 0.1)])

    run = finished(refereed(tmp_path / "run", peers=[AtOnce([1, 2, 3])]))
    assert {r.speed for r in run.records if r.entry == "echo"} == {None}


@pytest.mark.parametrize("keeps", [False, True])
def test_a_pass_over_the_prompts_knows_nothing_of_the_one_before_and_a_run_that_goes_on_all_of_its_own(
    tmp_path: Path, keeps: bool
) -> None:
    """A text that was written in an earlier pass is the very one that is to be drafted. A method that keeps what it
    learns does so in a run that is not warm, too."""
    seen: list[tuple[str, ...]] = []

    class Listener(Drafter):
        def __init__(self) -> None:
            self.heard: list[str] = []
            self.keeps = keeps

        def open(self, context: Context) -> Context:
            seen.append(tuple(self.heard))
            self.heard.append("".join(map(str, context.tokens)))
            return context

        def propose_one(self, state: Context, budget: Budget) -> DraftTree:
            return DraftTree.chain([0])

    def make(spec: str, model: object) -> Drafter:
        return make_drafter(spec) if spec == "plain" else Listener()

    how: dict[str, Any] = {"methods": ["plain", "listener"], "make": make, "warm": not keeps, "repeat": 2}
    finished(refereed(tmp_path / "run", **how))
    said = ["".join(map(str, encode(prompt, 0, ()))) for prompt in prompts()]
    a_pass = [tuple(said[:count]) for count in range(4)]
    assert seen[2:] == 2 * a_pass  # two texts are warm-up
    file = tmp_path / "run" / RECORDS
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[: 2 * 6]))  # four units of the first pass
    seen.clear()
    finished(refereed(tmp_path / "run", **how))
    assert seen[2:] == [*a_pass[:2], *a_pass[2:]], "two units are learnt again, two written"


def test_a_draft_model_that_a_method_names_is_loaded_once_and_told() -> None:
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    for spec in ("assistant:model=pocket-draft", "lookup,lookup:max_ngram=1+assistant:model=pocket-draft,top=2"):
        who = Ours(spec, lm.target, DraftedBy(vocabulary=lm.vocabulary))
        before = models_of(who)
        who.begin()
        who.forget()
        assert models_of(who) == before != (), "another copy would be cold when the clock starts"
        assert who.facts()["draft_model"] == "pocket-draft"
        assert who.facts()["draft_fingerprint"] == before[0].fingerprint()


def models_of(who: Ours) -> tuple[Target, ...]:
    assert who._drafter is not None
    return who._drafter.models


# --- what one leaves undone


def test_shapes_that_a_device_prepares_for_are_seen_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU a little of one text is enough; elsewhere every length is written to its end."""
    short, long = prompts(2)
    long = replace(long, turns=("0314203" * 100,))
    for device, asked in (("cpu", [12, 12]), ("meta", [12, 40, 40])):
        target, echo = tabled(), Echo([1, 2, 3])
        monkeypatch.setattr(TableTarget, "device", device)
        plan: dict[str, Any] = {"max_new_tokens": 12 if device == "cpu" else 40}
        referee = refereed(tmp_path / device, target=target, workload=[short, long, short], peers=[echo], **plan)
        referee._warm_up()
        assert [job.max_new_tokens for job in echo.jobs] == [min(16, asked[0]) if device == "cpu" else 16, *asked[1:]]
        assert {len(job.prompt) for job in echo.jobs} == ({9} if device == "cpu" else {9, 700})


def test_who_writes_together_is_warmed_up_together(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Counting(TableTarget):
        def submit(self, requests: Any) -> Any:
            sizes.append(len(requests))
            return super().submit(requests)

    refereed(tmp_path / "run", target=Counting(habitual(), SIZE), batch=3)._warm_up()
    assert max(sizes) == 3


# --- conversations and limits


def test_the_next_turn_follows_plain_decodings_answer(tmp_path: Path) -> None:
    echo = Echo([1, 2, 3])
    run = finished(refereed(tmp_path / "run", workload=prompts(2, turns=2), peers=[echo]))
    for prompt in prompts(2, turns=2):
        plain = [r for r in run.records if r.entry == "plain" and r.prompt == prompt.key]
        assert [record.turn for record in plain] == [0, 1]
        asked = encode(prompt, 1, [plain[0].text])
        seen = [job for job in echo.jobs if job.prompt.tolist() == asked.tolist()]
        assert len(seen) == 1
        assert all(r.prompt_tokens == len(asked) for r in run.records if r.prompt == prompt.key and r.turn == 1)


def test_a_prompt_that_leaves_no_room_loses_its_beginning_and_that_is_told(tmp_path: Path) -> None:
    target = tabled(context_length=16)
    run = finished(refereed(tmp_path / "run", target=target, max_new_tokens=10, workload=prompts(2)))
    assert {record.prompt_tokens for record in run.records} == {6}
    assert {len(record.tokens) for record in run.records} == {10}
    assert read(tmp_path / "run").about.workload["shortened"] == ["p0", "p1"]


def test_a_text_of_which_nothing_came_is_kept_as_that(tmp_path: Path) -> None:
    class Full(Echo):
        def write(self, job: Job, clock: Clock) -> Written:
            return Written(tokens=[], deliveries=[], finish="context")

    run = finished(refereed(tmp_path / "run", peers=[Full([])]))
    for record in read(tmp_path / "run").records:
        if record.entry == "echo":
            assert (record.tokens, record.decoded, record.speed, record.finish) == ([], 0, None, "context")
            assert record.verdict is TextVerdict.DIFFERENT
    assert len(run.records) == 4 * 4


def test_a_text_that_was_to_be_walked_and_was_not_is_a_bug(tmp_path: Path) -> None:
    target = tabled()
    plain, wrong = Ours("plain", target, DraftedBy()), Elsewhere("lookup", target, DraftedBy())
    run = finished(refereed(tmp_path / "run", target=target, contestants=[plain, wrong], follow=True))
    found = {(r.verdict, r.parts_at) for r in run.records if r.entry == "lookup"}
    assert found == {(TextVerdict.BUG, 2)}


def test_a_clock_that_stands_still_tells_nothing(tmp_path: Path) -> None:
    referee = refereed(tmp_path / "run")
    referee.race.clock = lambda: 0.0
    for record in finished(referee).records:
        assert record.split is not None
        assert record.rounds is not None
        assert set(record.split.values()) == {0.0}
        assert {t for name, column in record.rounds.items() if name.startswith("seconds") for t in column} == {0.0}
        assert sum(record.rounds["emitted"]) == 12


# --- going on


class Interrupted(Exception):
    pass


def stopping_after(target: Target, texts: int) -> Echo:
    class Stopping(Echo):
        def write(self, job: Job, clock: Clock) -> Written:
            if len(self.jobs) == texts:
                raise Interrupted
            return super().write(job, clock)

    return Stopping([1, 2, 3])


@pytest.mark.parametrize("texts", [3, 6])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, texts: int) -> None:
    whole = finished(refereed(tmp_path / "whole", peers=[Echo([1, 2, 3])], repeat=2))
    halted = refereed(tmp_path / "halted", peers=[stopping_after(tabled(), texts)], repeat=2)
    with pytest.raises(Interrupted):
        halted.sit()
    written = len(read(tmp_path / "halted").records)
    assert written == 4 * (texts - 2)  # the first two are warm-up
    going_on = refereed(tmp_path / "halted", peers=[Echo([1, 2, 3])], repeat=2)
    assert len(going_on.run.records) == written
    going_on.sit()
    found = read(tmp_path / "halted")
    assert [without_times(r) for r in found.records] == [without_times(r) for r in whole.records]
    assert found.about.finished
    assert len(found.about.sittings) == 2


@pytest.mark.parametrize("batch", [1, 2])
def test_a_run_that_was_cut_anywhere_becomes_the_whole_one(tmp_path: Path, batch: int) -> None:
    """A disk may be full between two lines of a unit, too, also where a turn ends. There are two units."""

    def going_on() -> list[dict[str, Any]]:
        how: dict[str, Any] = {"workload": prompts(batch + 1, turns=2), "batch": batch, "max_new_tokens": 3}
        run = finished(refereed(tmp_path / "run", methods=METHODS[:2], **how))
        assert read(tmp_path / "run").records == run.records
        return [without_times(record) for record in run.records]

    whole, file = going_on(), tmp_path / "run" / RECORDS
    data = file.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for size in sorted({0, *ends, *(end - 1 for end in ends), *(end + 1 for end in ends[:-1])}):
        file.write_bytes(data[:size])
        assert going_on() == whole, f"cut after {size} bytes"


def test_a_disk_that_is_full_is_told_and_the_run_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = finished(refereed(tmp_path / "whole", workload=prompts(3, turns=2)))

    def full(handle: int) -> None:
        if os.fstat(handle).st_size > 6000 and RECORDS in os.readlink(f"/proc/self/fd/{handle}"):
            os.truncate(handle, os.fstat(handle).st_size - 1000)
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            refereed(tmp_path / "run", workload=prompts(3, turns=2)).sit()
    run = finished(refereed(tmp_path / "run", workload=prompts(3, turns=2)))
    assert [without_times(r) for r in run.records] == [without_times(r) for r in whole.records]


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    """No trace of who only looks: changed sources would count against numbers that they did not make."""
    finished(refereed(tmp_path / "run"))
    before = contents(tmp_path / "run")
    finished(refereed(tmp_path / "run"))
    assert contents(tmp_path / "run") == before


def test_a_run_that_is_written_on_is_not_finished(tmp_path: Path) -> None:
    finished(refereed(tmp_path / "run", peers=[Echo([1, 2, 3])]))
    file = tmp_path / "run" / RECORDS
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-4]))
    with pytest.raises(Interrupted):
        refereed(tmp_path / "run", peers=[stopping_after(tabled(), 2)]).sit()
    assert not read(tmp_path / "run").about.finished


def test_prompts_that_lost_their_beginning_are_told_also_of_a_run_that_was_interrupted(tmp_path: Path) -> None:
    target = tabled(context_length=16)
    how: dict[str, Any] = {"target": target, "max_new_tokens": 10, "workload": prompts(3)}
    with pytest.raises(Interrupted):
        refereed(tmp_path / "run", peers=[stopping_after(target, 3)], **how).sit()
    assert read(tmp_path / "run").about.workload["shortened"] == ["p0", "p1"]
    finished(refereed(tmp_path / "run", peers=[Echo([1, 2, 3])], **how))
    assert read(tmp_path / "run").about.workload["shortened"] == ["p0", "p1", "p2"]


def test_a_parting_of_the_warm_up_is_looked_into_though_all_texts_are_there(tmp_path: Path) -> None:
    target = tabled()

    def both() -> list[TextContestant]:
        return [Ours("plain", target, DraftedBy()), Elsewhere("lookup", target, DraftedBy())]

    finished(refereed(tmp_path / "run", target=target, contestants=both()))
    file = tmp_path / "run" / ABOUT
    about = json.loads(file.read_text())
    del about["warm_up"]["lookup"]["verdict"]
    file.write_text(json.dumps(about | {"finished": False}))
    run = finished(refereed(tmp_path / "run", target=target, contestants=both()))
    assert run.about.warm_up["lookup"]["verdict"] == "bug"


STATED = {"source": "stated", "measured": False, "watts": 30.0, "why": ""}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "length": ({"max_new_tokens": 7}, r"recipe: max_new_tokens was 12 and is 7\)"),
    "weights": ({"target": TableTarget(habitual(seed=9), SIZE)}, "model: fingerprint"),
    "texts": (
        {"workload": [replace(one, turns=("012345",)) for one in prompts()]},
        "the prompts of the suite",
    ),
    "order": ({"workload": prompts()[::-1]}, "the prompts of the suite"),
    "methods": ({"methods": METHODS[:2]}, "recipe: methods"),
    "power": ({"energy": STATED | {"watts": 60.0}}, r"energy: watts was 30.0 and is 60.0\)"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_run_is_not_overwritten(tmp_path: Path, other: str) -> None:
    """Nor is it gone on with: joules of two meters are not added up."""
    finished(refereed(tmp_path / "run", energy=STATED))
    refereed(tmp_path / "run", energy=STATED | {"why": "no NVML"})
    before, (how, why) = contents(tmp_path / "run"), OTHERS[other]
    with pytest.raises(ValueError, match=r"holds another run \(.*" + why):
        refereed(tmp_path / "run", **{"energy": STATED, **how})
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_folder_that_is_no_run_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("Dear")
    with pytest.raises(ValueError, match="is there and is no run"):
        refereed(tmp_path / "letters")
    assert contents(tmp_path / "letters") == {"dear.txt": b"Dear"}
    with pytest.raises(ValueError, match=r"holds no run: there is no run\.json"):
        read(tmp_path / "letters")
    with pytest.raises(ValueError, match="is there and is no run"):
        refereed(tmp_path / "letters" / "dear.txt")


@pytest.mark.parametrize("version", [1, 2, 99, "3", None])
def test_a_run_of_another_version_is_refused(version: object, tmp_path: Path) -> None:
    finished(refereed(tmp_path / "run"))
    file = tmp_path / "run" / ABOUT
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": version}))
    before = contents(tmp_path / "run")
    for act in (read, refereed):
        with pytest.raises(ValueError, match=rf"format {version!r}, and this version of Paceline reads format 3; make"):
            act(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_one_process_writes_a_run_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path / "runs" / "first"):
        with pytest.raises(ValueError, match="being written by another process"), claimed(tmp_path / "runs" / "first"):
            pass
        with claimed(tmp_path / "runs" / "second"):
            pass
    with claimed(tmp_path / "runs" / "first"):
        finished(refereed(tmp_path / "runs" / "first", workload=prompts(1)))


def test_a_folder_that_nothing_was_written_to_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place in ("there", "runs/first"):
        with claimed(tmp_path / place):
            assert (tmp_path / place).is_dir()
    assert [file.name for file in tmp_path.iterdir()] == ["there"]
    with claimed(tmp_path / "runs" / "first"):
        (tmp_path / "runs" / "first" / "kept").touch()
    assert (tmp_path / "runs" / "first" / "kept").exists()


CONTENDER = """
import sys, time
from pathlib import Path
from paceline.files import claimed

base, end = Path(sys.argv[1]), time.monotonic() + 1.2
held = 0
while (now := time.monotonic()) < end:
    turn = int(now * 100)  # that of all contenders, for a while
    path, writer = base / f"runs{turn}" / "first", base / f"writer{turn}"
    try:
        with claimed(path):
            writer.touch(exist_ok=False)
            was = path.stat().st_ino
            time.sleep(0.0002)
            assert path.stat().st_ino == was, "another folder is here"
            writer.unlink()
            held += 1
    except ValueError as refused:
        assert "being written by another process" in str(refused), refused
print(held)
"""


def test_who_claims_at_once_gets_the_folder_alone_or_is_refused(tmp_path: Path) -> None:
    """While folders are made and removed: none goes under a claim, and none is made for two."""
    (tmp_path / "there").mkdir()
    crowd = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [process.communicate()[0] for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0, 0]
    assert sum(map(int, told)) > 0
    assert (tmp_path / "there").is_dir()
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_folder_that_is_another_by_now_is_not_removed(tmp_path: Path) -> None:
    """Neither one on the way that another process has claimed nor one in the place of ours."""
    with ExitStack() as other:
        with claimed(tmp_path / "runs" / "first"):
            other.enter_context(claimed(tmp_path / "runs"))
        assert [path for path in tmp_path.rglob("*") if path.is_dir()] == [tmp_path / "runs"]
        with claimed(tmp_path / "second"):
            shutil.rmtree(tmp_path / "second")
            other.enter_context(claimed(tmp_path / "second"))
        assert (tmp_path / "second").is_dir()
    assert not (tmp_path / "second").exists()


def test_a_folder_that_never_stays_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)  # as if it were gone at once
    with pytest.raises(ValueError, match="as if another process removed it"), claimed(tmp_path / "run"):
        pass


def test_a_damaged_line_is_told_by_its_number(tmp_path: Path) -> None:
    finished(refereed(tmp_path / "run"))
    file = tmp_path / "run" / RECORDS
    lines = file.read_text().splitlines(keepends=True)
    row = json.loads(lines[1])
    for bad, said in (
        ("{}", "it lacks 'entry'"),
        ("[]", "it is [] and no object"),
        ("not json", "Expecting value"),
        ("", "Expecting value"),
        ("[" * 100_000, "nested too deep"),
        (json.dumps(row | {"who": 1}), "nothing is called 'who'"),
        (json.dumps(row | {"tokens": None}), "'tokens' is None"),
        (json.dumps(row | {"tokens": ["a"]}), "'tokens[0]' is 'a'"),
        (json.dumps(row | {"seconds": "1"}), "'seconds' is '1'"),
        (json.dumps(row | {"verdict": "fine"}), "'verdict' is 'fine'"),
        (json.dumps(row | {"rounds": row["rounds"] | {"drafted": []}}), "'rounds' are not of one length"),
        (json.dumps(row | {"entry": "nobody"}), "the run has no entry 'nobody'"),
        (lines[0].strip(), "it is the text of line 1 once more"),
    ):
        file.write_text("".join([lines[0], bad + "\n", *lines[2:]]))
        with pytest.raises(ValueError, match=r"line 2, is no record of this run: .*; cut the file off before") as error:
            read(tmp_path / "run")
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    file.write_text(lines[0])  # as it says
    assert len(finished(refereed(tmp_path / "run")).records) == len(lines)


def test_a_prompt_that_lost_a_text_is_written_again(tmp_path: Path) -> None:
    """Also where it is not the last one, which an interruption may have cut off."""
    whole = [without_times(record) for record in finished(refereed(tmp_path / "run")).records]
    file = tmp_path / "run" / RECORDS
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:1], *lines[2:]]))
    run = finished(refereed(tmp_path / "run"))
    assert sorted(map(str, map(without_times, run.records))) == sorted(map(str, whole))
    assert read(tmp_path / "run").records == run.records


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"entries": None}, "'entries' is None"),
        ({"entries": [{"ours": True}]}, r"it lacks 'entries\[0\].name'"),
        ({"recipe": []}, r"'recipe' is \[\]"),
        ({"finished": "yes"}, "'finished' is 'yes'"),
        ({"more": 1}, "nothing is called 'more'"),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, damage: dict[str, Any], said: str) -> None:
    finished(refereed(tmp_path / "run", workload=prompts(1)))
    file = tmp_path / "run" / ABOUT
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(ValueError, match=f"run.json is damaged: {said}"):
        read(tmp_path / "run")


# --- together


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("batch", [2, 3, 8])
def test_a_batch_writes_the_texts_of_each_alone(tmp_path: Path, batch: int, follow: bool) -> None:
    drawn = Sampling(temperature=1.0, seed=7)
    alone = finished(refereed(tmp_path / "alone", workload=prompts(5, turns=2), sampling=drawn))
    run = finished(
        refereed(tmp_path / "batch", workload=prompts(5, turns=2), sampling=drawn, batch=batch, follow=follow)
    )
    texts = {(r.entry, r.prompt, r.turn): r.tokens for r in alone.records}
    assert {(r.entry, r.prompt, r.turn): r.tokens for r in run.records} == texts
    assert {r.verdict for r in run.records} == {
        TextVerdict.REFERENCE,
        TextVerdict.FOLLOWED if follow else TextVerdict.EQUAL,
    }
    assert {r.batch for r in run.records} == {batch}
    units: dict[tuple[Any, ...], list[Record]] = {}
    for record in run.records:
        units.setdefault((record.entry, record.pair), []).append(record)
    assert {len(found) for found in units.values()} <= {batch, 5 % batch, 5}
    for found in units.values():
        speeds = [record.speed for record in found if record.decoded]
        assert speeds == pytest.approx([speeds[0]] * len(speeds), rel=1e-3), "each has the speed of the batch"
        assert all(record.split is not None for record in found)
        together = sum(sum((record.split or {}).values()) for record in found)
        assert together >= max(record.seconds for record in found), "shares are of all the time that passed"
        assert sum(record.seconds_decode for record in found) < together, "reading prompts is no decoding"


def test_prompts_that_arrive_wait_for_a_seat(tmp_path: Path, clock: MadeClock) -> None:
    referee = refereed(tmp_path / "run", workload=prompts(6), methods=["plain", "lookup"], qps=400.0, batch=1)
    referee.race.clock = clock
    run = finished(referee)
    texts = {(r.entry, r.prompt): r.tokens for r in run.records}
    alone = finished(refereed(tmp_path / "alone", workload=prompts(6), methods=["plain", "lookup"]))
    assert texts == {(r.entry, r.prompt): r.tokens for r in alone.records}
    assert {r.unit for r in run.records} == {0}
    for record in run.records:
        assert 0 <= record.seconds_waited <= record.seconds_first <= record.seconds
        assert record.split is not None
        assert sum(record.split.values()) >= record.seconds_decode
    assert any(record.seconds_waited > 0 for record in run.records), "one seat, and others came meanwhile"


def arrivals(count: int, qps: float | None, seed: int) -> list[float]:
    how = Conditions(sampling=Sampling(seed=seed), max_new_tokens=1, eos=frozenset(), follow=False, qps=qps)
    return how.arrivals(count, 0)


def test_arrivals_are_as_many_a_second_as_asked_and_the_same_for_all() -> None:
    times = arrivals(4000, 5.0, seed=1)
    assert times == arrivals(4000, 5.0, seed=1) != arrivals(4000, 5.0, seed=2)
    assert times[0] == 0
    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.05)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1), "exponential gaps: as wide as they are long"
    assert arrivals(3, None, seed=0) == [0, 0, 0]


def test_who_waits_is_written_when_others_have_gone(tmp_path: Path, clock: MadeClock) -> None:
    """A prompt that comes late leaves the batch idle, and its clock starts when it comes."""
    referee = refereed(tmp_path / "run", workload=prompts(3), methods=["plain"], qps=0.1, batch=8)
    referee.race.clock = clock
    run = finished(referee)
    last = arrivals(3, 0.1, 0)[-1]
    assert clock.now >= last
    assert all(record.seconds < last for record in run.records)
    for record in run.records:  # nobody computed while nobody was there
        assert record.split is not None
        assert record.split["rest"] > 0.5 * sum(record.split.values())
        assert record.seconds_decode < record.split["rest"]


def test_a_drafter_of_a_batch_that_fails_ends_the_run(tmp_path: Path) -> None:
    class Bad(Drafter):
        def propose_one(self, state: Context, budget: Budget) -> DraftTree:
            raise RuntimeError("no idea")

    def make(spec: str, model: object) -> Drafter:
        return make_drafter(spec) if spec == "plain" else Bad()

    with pytest.raises(RuntimeError, match="no idea"):
        refereed(tmp_path / "run", methods=["plain", "bad"], make=make, batch=2).sit()
    assert read(tmp_path / "run").records == []


# --- planners


class Telling(Fixed):
    """Says what it expects in every other round, and sends half of what is proposed."""

    rounds = 0

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        self.rounds += 1
        why = Why(1.5, 0.2, 0.1, 7.0) if self.rounds % 2 else None
        return [Cut(draft.tree.head(len(draft.tree) // 2), why) for draft in drafts]


def test_entries_name_their_planners(tmp_path: Path) -> None:
    methods = ("plain", "lookup", "lookup@fixed:2", "lookup:max_ngram=1@fixed:1", "lookup@default")
    run = finished(refereed(tmp_path / "run", methods=methods))
    assert run.entries == list(methods)
    assert [entry["planner"] for entry in run.about.entries] == ["fixed:4", "fixed:4", "fixed:2", "fixed:1", "adaptive"]
    assert [entry["method"] for entry in run.about.entries][1:] == ["lookup", "lookup", "lookup:max_ngram=1", "lookup"]
    deepest = {
        name: max(max(r.rounds["drafted"]) for r in run.records if r.entry == name and r.rounds) for name in methods
    }
    assert deepest == dict(zip(methods, (0, 4, 2, 1, deepest["lookup@default"]), strict=True))
    assert {r.verdict for r in run.records} == {TextVerdict.REFERENCE, TextVerdict.EQUAL}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lookup", ("lookup", None)),
        ("lookup,assistant@adaptive", ("lookup,assistant", "adaptive")),
        ("assistant:model='a@b'", ("assistant:model='a@b'", None)),
        ("assistant:model='a@b'@fixed:3", ("assistant:model='a@b'", "fixed:3")),
    ],
)
def test_a_planner_stands_behind_the_last_at(name: str, found: tuple[str, str | None]) -> None:
    assert parted(name) == found


@pytest.mark.parametrize("name", ["lookup@", "@fixed:3", " @ "])
def test_half_a_name_is_told(name: str) -> None:
    with pytest.raises(ValueError, match="write SPEC@PLANNER"):
        parted(name)


def test_what_was_proposed_and_expected_is_kept(tmp_path: Path) -> None:
    class Planned(Ours):
        def forget(self) -> None:
            super().forget()
            self._planner = Telling(4)

    target = tabled()
    contestants = [Ours("plain", target, DraftedBy()), Planned("lookup", target, DraftedBy())]
    finished(refereed(tmp_path / "run", target=target, contestants=contestants))
    for record in read(tmp_path / "run").records:
        rounds = record.rounds or {}
        if record.entry == "plain":
            assert set(rounds) == set(ROUND_COLUMNS)
            assert not any(rounds["proposed"])
            assert set(rounds["rows"]) == {1}
            continue
        assert all(sent == proposed // 2 for sent, proposed in zip(rounds["drafted"], rounds["proposed"], strict=True))
        assert any(rounds["proposed"])
        assert set(rounds["expected_tokens"]) == {0.0, 1.5}
        told = [value > 0 for value in rounds["expected_tokens"]]
        assert rounds["expected_seconds_plain"] == [0.1 * one for one in told]
        assert rounds["expected_rate"] == [7.0 * one for one in told]
