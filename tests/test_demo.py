"""The demo: what it shows is so, and what is not so it tells."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import families
import paceline
from clock import MadeClock
from paceline.api.model import LanguageModel
from paceline.api.writing import Generation
from paceline.cli import options
from paceline.drafters import Plain
from paceline.engine.counters import Totals
from paceline.law import Sampling
from paceline.targets.pocket import open as pocket
from paceline_lab import demo as bench_demo
from paceline_lab.bench.race import Heat, Lap
from paceline_lab.commands import demo
from paceline_lab.demo import LEAST, DemoMethod, DemoTask, Shown, shown
from test_cli import say


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the demo leaves prompts out; two passes are as good as five here."""
    monkeypatch.setattr(bench_demo, "PASSES", 2)
    for limit in ("ALTOGETHER", "SECONDS", "SECONDS_WITH_BALLAST"):
        monkeypatch.setattr(demo, limit, float("inf"))


DEMO = ["demo", "--max-new-tokens", "12", "--method", "plain", "lookup"]


def test_the_demo_shows_any_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "demo.html"
    command = [*DEMO, "assistant", "--model", model, "--draft-model", model, "--html", str(page), "--json"]
    code, out, error = say(command, capsys)
    assert (code, error) == (0, "")
    found = json.loads(out.splitlines()[-1])
    rows = found["models"][0]["methods"]
    assert [row["method"] for row in rows] == ["plain", "lookup", "assistant"]
    assert all(row["identical"] for row in rows)
    assert found["models"][0]["dtype"] == "float32"
    assert found["models"][0]["fingerprint"] in out.splitlines()[2]
    assert out.count("identical") >= 2
    assert page.read_text(encoding="utf8").count('<div class="text"') == len(found["prompts"]) == 3


def test_the_demo_needs_nothing_but_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The bundled models and a slow twin: the same texts, by every method and with ballast."""
    code, out, error = say(["demo", "--ballast", "20M", "-n", "16", "--num-draft-tokens", "4", "--json"], capsys)
    assert (code, error) == (0, "")
    found = json.loads(out.splitlines()[-1])
    twin, small = found["models"]
    assert twin["ballast"].startswith("pocket+ballast:20M (")
    assert twin["texts"] == small["texts"]
    assert "The texts above are those of pocket, token for token." in " ".join(out.split())
    assert all(row["identical"] for part in (small, twin) for row in part["methods"])
    [assistant] = [row for row in small["methods"] if row["method"] == "assistant"]  # `auto` goes by the clock
    assert assistant["tokens_per_round"] > 1.2


def test_the_demo_tells_a_text_that_differs(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method that changes what is written is told in the table, and by the exit code."""
    proper = LanguageModel.generate

    def tampering(lm: LanguageModel, prompt: str, **settings: object) -> Generation:
        text = proper(lm, prompt, **settings)
        if type(settings["method"]).__name__ == "Lookup" and prompt == "second":
            text.tokens[5] += 1
        return text

    monkeypatch.setattr(LanguageModel, "generate", tampering)
    code, out, _ = say([*DEMO, "--model", model, "--prompt", "first", "--prompt", "second"], capsys)
    assert code == 1
    assert "parts at token 6 of prompt 2" in out
    assert f"Not every text is the same. 'paceline check --model {model} --dtype float32' tells" in out


def test_the_demo_tells_a_base_that_does_not_repeat_itself(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proper, written = LanguageModel.generate, [0]

    def wavering(lm: LanguageModel, prompt: str, **settings: object) -> Generation:
        text = proper(lm, prompt, **settings)
        written[0] += type(settings["method"]).__name__ == "Plain"
        if written[0] == 3:  # the warm-up is the first
            text.tokens[2] += 1
        return text

    monkeypatch.setattr(LanguageModel, "generate", wavering)
    code, out, _ = say(
        ["demo", "--max-new-tokens", "12", "--method", "plain", "--model", model, "--prompt", "a"], capsys
    )
    assert code == 1
    assert "not reproducible: parts at token 3 of prompt 1" in out
    assert "(plain decoding)" not in out
    assert "Not every text is the same" in out


def twin_of(model: str, monkeypatch: pytest.MonkeyPatch, opened: Callable[[str], Any]) -> None:
    """Give a model a slow twin, which `opened` makes of its name."""
    proper = options.load_model

    def load(given: argparse.Namespace) -> Any:
        return opened(given.model) if "+" in given.model else proper(given)

    monkeypatch.setattr(demo, "load_model", load)
    monkeypatch.setattr(demo, "_models", lambda options: [f"{model}+ballast:20M", model])
    monkeypatch.setattr(pocket, "describe", lambda name: name)


def test_the_demo_tells_ballast_that_is_none(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow twin that writes something else is told with the place, in the JSON and by the exit code."""
    families.save("llama", tmp_path, seed=7)
    twin_of(model, monkeypatch, lambda _: paceline.load(tmp_path, dtype="float32"))
    code, out, _ = say([*DEMO, "--model", model, "--json"], capsys)
    first, second = json.loads(out.splitlines()[-1])["models"]
    texts = [first["texts"][0], second["texts"][0]]
    assert texts[0] != texts[1]
    place = second["parts_from_its_twin_at"]
    assert first["parts_from_its_twin_at"] is None
    assert code == 1
    told = f"are NOT those of {model}, which ballast must leave alone: parts at token {place['token'] + 1} of prompt 1"
    assert told in " ".join(out.split())
    assert "Not every text is the same" in out


@pytest.mark.parametrize("asked", [True, False])
def test_the_demo_tells_a_twin_that_it_left_out(
    asked: bool, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: str) -> Any:
        raise MemoryError

    twin_of(model, monkeypatch, full)
    code, out, _ = say([*DEMO, "--model", model, "--json", *(["--ballast", "20M"] if asked else [])], capsys)
    found = json.loads(out.splitlines()[-1])
    assert list(found["left_out"]) == [f"{model}+ballast:20M"]
    assert "not enough memory" in found["left_out"][f"{model}+ballast:20M"]
    assert len(found["models"]) == 1
    assert code == (2 if asked else 0)
    assert f"{model}+ballast:20M is left out: there is not enough memory" in out
    assert "plain decoding)" in out, "the model itself is shown in full"


def written(tokens: list[int], seconds: float = 1.0, rounds: int | None = None) -> Generation:
    rounds = max(len(tokens) // 2, 1) if rounds is None else rounds
    totals = Totals(
        rounds=rounds,
        tokens=len(tokens),
        drafted=12,
        accepted=len(tokens) - rounds,
        drafting_rounds=rounds,
        seconds_prefill=9.0,
        seconds_score=seconds,
    )
    return Generation("", tokens, "length", 1, 0, [], [], totals, Sampling())


def seen(*passes: tuple[Generation, Generation]) -> Shown:
    """Passes over a prompt by plain decoding and another method."""
    heats = [Heat(0, n, {"plain": Lap(one, 0.0), "x": Lap(other, 0.0)}) for n, (one, other) in enumerate(passes)]
    return Shown(heats, "plain", ["plain", "x"], ["a"], 0, 12)


def test_speeds_are_medians_of_passes_and_ratios_within_them() -> None:
    """A pass in which the whole machine is slow moves neither."""
    found = seen(*((written([1] * 10, 2 * slow), written([1] * 10, 1 * slow)) for slow in (1, 10, 1)))
    assert [row["tokens_per_second"] for row in found.rows()] == [5, 10]
    assert [row["slowest_pass"] for row in found.rows()] == [0.5, 1]
    assert found.rows()[1]["speed_up"] == 2
    assert found.rows()[1]["tokens_per_round"] == 2
    assert found.rows()[1]["mean_accepted"] == 1
    assert found.spread == 10
    assert seen((written([1]), written([1]))).spread is None, "one pass says nothing of how steady a machine is"


def test_a_difference_in_any_pass_counts_and_so_does_a_base_that_does_not_repeat_itself() -> None:
    one, other = written([1, 2]), written([1, 3])
    for passes, same in ((((one, one), (one, one)), [True, True]), (((one, one), (one, other)), [True, False])):
        assert [row["identical"] for row in seen(*passes).rows()] == same
    wavering = seen((one, one), (other, one))
    assert [row["identical"] for row in wavering.rows()] == [False, True]
    assert str(wavering.parting("plain")) == "parts at token 2 of prompt 1"


def test_a_method_forgets_before_a_prompt_and_writes_as_long_as_it_is_asked(model: str) -> None:
    resets: list[int] = []

    class Forgetful(Plain):
        def reset(self) -> None:
            resets.append(1)

    method = DemoMethod(
        "plain", paceline.load(model), {"method": Forgetful(), "max_new_tokens": 99, "ignore_eos": True}
    )
    for count in (1, 2):
        method.begin()
        assert len(method.do(DemoTask("a", 5), lambda: 0.0).tokens) == 5
        assert len(resets) == count


def part(*passes: tuple[Generation, Generation], slow: demo.ModelDemo | None = None) -> demo.ModelDemo:
    facts = {"model": "m", "dtype": "float32", "fingerprint": "f", "device": "cpu", "threads": 1}
    return demo.ModelDemo(facts, ["a"], seen(*passes), "" if slow else "twin", slow)


def lap(ratio: float, rounds: int = 12) -> tuple[Generation, Generation]:
    """A text by plain decoding, and by a method that is faster by a ratio."""
    return written([1] * 12, ratio, rounds=12), written([1] * 12, 1.0, rounds=rounds)


def test_faster_is_what_won_each_of_several_comparisons() -> None:
    wins = part(lap(1.5), lap(1.2), lap(1.8))
    assert wins.found.fastest == "x"
    assert demo._headline(wins) == (
        "x writes 1.50 times as fast as plain decoding, and the same text: from 1.20 to 1.80 times in each of 3 "
        "comparisons."
    )
    mixed = part(lap(1.5), lap(0.9), lap(1.8))
    assert mixed.found.fastest is None
    assert demo._headline(mixed) == "No method was faster than plain decoding in each of 3 comparisons."
    few = part(lap(9.0), lap(9.0))
    assert few.found.fastest is None
    assert demo._headline(few) == "There was time for 2 comparisons, which says little of speed."


def test_of_the_small_model_only_what_was_seen_is_said() -> None:
    """That drafts save rounds is said where they do; a single pass is told to be one."""
    slow = part(lap(1.5), lap(1.2), lap(1.8))
    said = {ratio: demo._beside(part(*[lap(ratio, 4)] * 3, slow=slow)) for ratio in (0.5, 1.5)}
    assert "x 0.50x; drafts save rounds but no time" in said[0.5]
    assert "x 1.50x; x is faster here, too" in said[1.5]
    assert "drafts save hardly any rounds" in demo._beside(part(lap(0.9, 12), slow=slow))
    assert "no method was faster in every comparison" in demo._beside(part(lap(1.1), lap(1.2), lap(0.9), slow=slow))
    assert "one pass, so the noise of the speeds is unknown" in list(demo._notes(part(lap(1.0))))
    assert "medians of 2 passes, methods taking turns" in list(demo._notes(part(lap(1.0), lap(1.0))))


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.3, 1.2])
def test_the_demo_keeps_its_time_on_a_slow_machine(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer prompts and tokens, the same for every method, on a machine of so many seconds per forward."""
    clock = MadeClock()
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, clock)

    class Slow:
        def generate(self, prompt: str, *, method: Plain, max_new_tokens: int, **_: Any) -> Generation:
            forwards = max_new_tokens if type(method) is Plain else -(-max_new_tokens // 2)
            clock.sleep(forwards * seconds)
            return written([1] * max_new_tokens, (forwards - 1) * seconds, forwards)

    class Other(Plain):
        pass

    lm: Any = Slow()
    methods = {"plain": {"method": Plain()}, "x": {"method": Other()}}
    found = shown(lm, methods, ["a", "b", "c"], 48, seconds=30.0, progress=lambda *_: None)
    assert {len(text.tokens) for name in methods for text in found.texts(name)} == {found.tokens}
    assert found.shortened == (found.tokens < 48) == (seconds > 0.1)
    heat = 1.5 * found.tokens * seconds
    assert clock.now <= 30 + (heat if found.tokens == LEAST else 1)
    assert len(found.texts("x")) == len(found.texts("plain")) >= 1
    if seconds < 0.2:
        assert found.left_out == 0
    if seconds < 0.1:
        assert found.faster("x"), "there is time for several comparisons"


def test_a_loop_is_seen() -> None:
    assert seen((written([1, 2] * 40), written([]))).repetition > 0.9
    assert seen((written(list(range(80))), written([]))).repetition == 0
