"""What is known of a machine: curves through points, the best size under them, and profiles that are found again."""

import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from paceline.files import cache_folder
from paceline.planning.acceptance import Point
from paceline.planning.curve import CurveReading, Curves, with_reading
from paceline.planning.fits import best_size, cubic, optimum, spline
from paceline.planning.stored import Profile, Unreadable, find, load, path_of
from paceline.targets.setup import Setup
from profiles import SIZES, full, method, save, timings

SETUP = Setup(model="some/model", fingerprint="0123", device="cpu", dtype="float32", threads=2, processor="a processor")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def profile() -> Profile:
    readings = tuple(CurveReading(8, rows, 1e-5 * rows) for rows in (1, 16, 129))
    made = Profile.now(SETUP, (*timings(), *timings(4)), readings)
    known = method()
    curves = made.curves(known.top)
    return made.with_methods(
        (dataclasses.replace(known, choices=tuple(known.choose(curves, *key) for key in curves.keys)),)
    )


# --- curves ---


def test_fits_recover_what_they_are_made_of() -> None:
    x = np.array(SIZES, np.float64)
    square = 0.05 + 1e-4 * x + 2e-6 * x**2
    assert np.allclose(spline(SIZES, square)(x), square, atol=1e-9)
    assert np.allclose(
        spline(SIZES, square)(np.array([5.0, 77.0])), 0.05 + 1e-4 * np.array([5, 77]) + 2e-6 * np.array([25, 77**2])
    )
    power = 1 + 0.1 * x - 1e-3 * x**2 + 3e-6 * x**3
    assert np.allclose(cubic(SIZES, power)(x), power, atol=1e-9)


@pytest.mark.parametrize("count", range(2, len(SIZES)))
def test_few_points_have_fits_too(count: int) -> None:
    x, y = SIZES[:count], [0.05 + 0.001 * size for size in SIZES[:count]]
    assert np.allclose(spline(x, y)(np.array(x, np.float64)), y)
    assert np.allclose(cubic(x, y)(np.array(x, np.float64)), y)
    assert 0 <= optimum(x, [1.0] * count, y).nodes <= x[-1]


def test_one_point_is_no_curve() -> None:
    with pytest.raises(ValueError, match="2 sizes or more"):
        spline([1], [0.1])


def test_the_search_finds_the_best_size_behind_a_hill_that_is_lower() -> None:
    def tokens(sizes: np.ndarray) -> np.ndarray:
        return 1 + np.exp(-((sizes - 10) ** 2) / 20) + 1.5 * np.exp(-((sizes - 83) ** 2) / 30)

    assert best_size(tokens, lambda sizes: np.ones_like(sizes), 0, 128) == 83
    assert best_size(lambda sizes: 1 + sizes, lambda sizes: 1 + 0.5 * sizes, 0, 64) == 64, "an end may be best"
    assert best_size(lambda sizes: 1 + sizes, lambda sizes: 1 + 5 * sizes, 0, 64) == 0
    assert best_size(tokens, tokens, 7, 7) == 7


def test_the_size_is_the_true_optimum_within_what_its_throughput_tells() -> None:
    x = np.arange(129)
    tokens, seconds = 1 + 2 * (1 - np.exp(-x / 12)), 0.05 + 0.0005 * x
    speeds = tokens / seconds
    found = optimum(SIZES, tokens[SIZES].tolist(), seconds[SIZES].tolist())
    assert speeds[found.nodes] > 0.98 * speeds.max()


def test_points_speak_against_a_fit_that_would_lose_much() -> None:
    tokens = [1.0, 1.9] + [2.0] * (len(SIZES) - 2)  # all that there is to gain is gained by the first node
    seconds = [0.05 + 0.005 * size for size in SIZES]
    found = optimum(SIZES, tokens, seconds)
    assert found.direct == found.nodes == 1
    assert found.fitted != 1
    assert found.loss > 0.02


def test_no_draft_is_better_than_one_that_the_points_hold_for_slower() -> None:
    found = optimum(SIZES, [1.0] * len(SIZES), [0.05 + 1e-5 * size for size in SIZES])
    assert found.nodes == 0


def test_seconds_are_those_of_the_batch_size_and_length_that_are_most_alike() -> None:
    curves = Curves([*timings(1, 256), *timings(4, 256), *timings(1, 2048)])
    assert curves.nearest(1, 100) == (1, 256)
    assert curves.nearest(1, 1500) == (1, 2048)
    assert curves.nearest(3, 3000) == (4, 256)
    assert curves.seconds(np.array([1, 3, 200]), 1, 256) == pytest.approx([0.05, 0.051, 0.05 + 199 * 0.0005])
    assert curves.scaled(lambda rows: 2 * np.ones_like(rows)).seconds(np.array([1])) == pytest.approx([0.1])


def test_reading_is_added_to_rounds_that_read() -> None:
    rounds, readings = timings(), [CurveReading(8, 1, 0.001), CurveReading(8, 129, 0.0138)]
    assert with_reading(rounds, readings, 0) == rounds
    assert with_reading(rounds, readings, 10)[0].seconds == pytest.approx(0.051)
    assert with_reading(rounds, readings, 10)[-1].seconds == pytest.approx(rounds[-1].seconds + 0.0138)


def test_rounds_count_as_often_as_they_are() -> None:
    half = method(points=(full(0, 1.0), Point(nodes=8, tokens=2.0, sent={0: 0.5, 8: 0.5})), drafting=())
    curves = Curves(timings())
    assert half.seconds(curves) == pytest.approx([0.05, 0.052])
    both = Curves(timings(2))
    assert half.seconds(both, 2)[1] == pytest.approx(0.05 + 0.0005 * 8), "of two texts one sends 8 rows on average"


# --- profiles on disk ---


def test_a_profile_comes_back_as_it_was() -> None:
    made = profile()
    assert save(made) == path_of(SETUP)
    assert load(SETUP) == find(SETUP) == made
    assert made.method("some") is not None
    assert made.method("some", "of a draft model") is None


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"threads": 1}, {"fingerprint": "4567"}, {"device": "cuda"}, {"processor": "b"}]
)
def test_another_setup_has_no_profile(change: dict[str, object]) -> None:
    save(profile())
    assert find(dataclasses.replace(SETUP, **change)) is None  # type: ignore[arg-type]


def test_the_same_weights_by_another_name_have_one_profile() -> None:
    save(profile())
    other = dataclasses.replace(SETUP, model="/elsewhere/copy")
    assert find(other) is not None
    save(dataclasses.replace(profile(), setup=other))
    assert [path.name for path in path_of(other).parent.iterdir()] == [path_of(other).name]


def damaged(text: str) -> str:
    return text[: len(text) // 2]


def of_another_version(text: str) -> str:
    return json.dumps(json.loads(text) | {"versions": {"paceline": "0.0.0", "torch": "1.0"}})


def of_another_setup(text: str) -> str:
    data = json.loads(text)
    return json.dumps(data | {"setup": data["setup"] | {"threads": 64}})


def without_choices(text: str) -> str:
    data = json.loads(text)
    return json.dumps(data | {"methods": [method | {"choices": []} for method in data["methods"]]})


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (damaged, "cannot be read"),
        (lambda text: "[]", "no profile of this version"),
        (lambda text: '{"format": 99}', "no profile of this version"),
        (lambda text: '{"format": 1}', "damaged"),
        (lambda text: json.dumps(json.loads(text) | {"timings": []}), "damaged"),
        (without_choices, "damaged"),
        (lambda text: "[" * 100_000, "nested too deep"),
        (lambda text: text.replace('"rows": 1,', '"rows": 1e400,'), r"'timings\[0\].rows' is inf"),
        (lambda text: text.replace('"method": "some"', '"method": 0'), r"'methods\[0\].method' is 0"),
        (lambda text: text.replace('"seconds": 0.05,', '"seconds": -1,'), r"'timings\[0\].seconds' is -1"),
        (of_another_version, "measured with paceline 0.0.0, torch 1.0"),
        (of_another_setup, "is the profile of some/model"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence_and_stays(spoil: object, told: str) -> None:
    path = save(profile())
    spoiled = spoil(path.read_text())  # type: ignore[operator]
    path.write_text(spoiled)
    with pytest.raises(Unreadable, match=told) as error:
        load(SETUP)
    assert "paceline calibrate" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.warns(UserWarning, match=told):
        assert find(SETUP) is None
    assert path.read_text() == spoiled
    save(profile())
    assert find(SETUP) == load(SETUP)


def test_nothing_is_left_of_a_profile_that_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    save(profile())

    def refuse(self: Path, *_: object) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ValueError, match="Permission denied; name a folder"):
        save(dataclasses.replace(profile(), when="later"))
    assert [path.name for path in path_of(SETUP).parent.iterdir()] == [path_of(SETUP).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(SETUP) is not None


def test_what_is_known_of_other_methods_stays() -> None:
    made = profile().with_methods((method("other"),)).with_methods((method("some", rounds=99),))
    assert [(one.method, one.rounds) for one in made.methods] == [("other", 100), ("some", 99)]


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {"PACELINE_CACHE": "/own"}, Path("/own")),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/paceline")),
        ("linux", {"XDG_CACHE_HOME": "relative"}, Path("/me/.cache/paceline")),
        ("linux", {}, Path("/me/.cache/paceline")),
        ("darwin", {}, Path("/me/Library/Caches/paceline")),
        ("win32", {"LOCALAPPDATA": "/local"}, Path("/local/paceline/Cache")),
    ],
)
def test_the_folder_is_the_systems_own(
    platform: str, variables: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PACELINE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("paceline.files.cache.sys.platform", platform)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: Path("/me")))
    assert cache_folder() == place
