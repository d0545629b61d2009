"""The parts of `papers.device`: what each runs, how its output is read, and what it found in a few words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from papers.device.findings import KEY, Finding
from papers.device.running import Part

TESTS = "tests/test_fixed_cuda.py", "tests/test_gpu_kernels.py", "tests/test_gpu_race.py"
"""In the root of the checkout, where scripts are run."""
KINDS = "forwards", "rounds", "check", "tests", "transformers", "mirror", "energy", "loading"
"""Most important first."""
NO_GPU = "it needs a GPU, and {} is none"
LARGE = "8b"
FEW = 3
"""Names of failures that a line shows."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The work to run, and its amount."""

    model: str = "pocket"
    """Of the check and of the first start."""
    draft: str = "pocket-draft"
    shapes: Sequence[str] = ("random:8b", "random:1b")
    """Models of forwards."""
    rows: Sequence[int] = (1, 8, 2, 4, 16, 32, 64, 128, *(n for n in range(3, 16) if n not in (4, 8)))
    """Most important first."""
    rows_of_many: Sequence[int] = (1, 8, 2, 4, 16, 32)
    """Where many texts are scored at once."""
    many: int = 16
    context: int = 512
    repeats: int = 6
    targets: Sequence[str] = ("pocket+ballast:8B", "pocket+ballast:1500M")
    """Models of rounds; the first one is that of all parts after them."""
    dtype: str = "bfloat16"
    tokens: int = 96
    texts: int = 4
    methods: Sequence[str] = ("plain", "auto", "assistant", "redrafter", "unispec", "lookup")
    profiled: Sequence[str] = ("plain", "auto")
    checked: Sequence[str] = ("auto", "lookup", "assistant", "redrafter")
    batches: Sequence[int] = (1, 4)
    check_tokens: int = 12
    rules: Sequence[str] = ("coupled", "rejection")


SMALL = Sizes(
    shapes=("random:tiny",),
    rows=(1, 2, 4),
    rows_of_many=(1, 2),
    many=2,
    context=32,
    repeats=2,
    targets=("pocket",),
    dtype="float32",
    tokens=12,
    texts=3,
    methods=("plain", "lookup", "assistant"),
    profiled=("plain",),
    checked=("lookup",),
    batches=(1,),
    check_tokens=4,
    rules=("coupled",),
)
"""Seconds rather than minutes, on any machine."""


def parts_of(sizes: Sizes, device: str) -> list[Part]:
    """All parts for a device, most important first: the first one of each kind, then what is left."""
    makers = (forwards, rounds, check, tests, transformers, mirror, energy, loading)
    of_kinds = [list(make(sizes, device)) for make in makers]
    return [kind[0] for kind in of_kinds] + [part for kind in of_kinds for part in kind[1:]]


def texts_of(strings: Sequence[object]) -> list[str]:
    return [str(one) for one in strings]


def share(model: str, large: float, other: float) -> float:
    """Seconds of a part by the size of its model."""
    return large if LARGE in model.lower() else other


def on_gpu(device: str) -> bool:
    return device.startswith("cuda")


# --- tests and check


def tests(sizes: Sizes, device: str) -> Iterator[Part]:
    workers = ["-n", str(min(8, os.cpu_count() or 1))] if find_spec("xdist") else []
    flags = ["-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-o", "filterwarnings=ignore", *workers]
    obstacle = "" if on_gpu(device) else NO_GPU.format(device)
    yield Part("tests", ["-m", "pytest", *TESTS, *flags], _tests_in_words, 90, read_tests, obstacle, codes=(0, 1))


COUNTED = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)


def read_tests(said: str) -> list[Finding]:
    """The last line of pytest's output, and the names of failures before it."""
    counts = next((found for line in reversed(said.splitlines()) if (found := COUNTED.findall(line))), [])
    if not counts:
        return []
    failed = {name.partition("::")[2] or name: why for name, why in FAILED.findall(said)}
    return [{KEY: "tests", **{word.removesuffix("s"): int(count) for count, word in counts}, "failures": failed}]


def _tests_in_words(found: Sequence[Finding]) -> str:
    (one,) = found
    counts = ", ".join(f"{one[word]} {word}" for word in ("passed", "failed", "error", "skipped") if word in one)
    names = list(one["failures"])
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return counts + (f" ({', '.join(names[:FEW])}{more})" if names else "")


def check(sizes: Sizes, device: str) -> Iterator[Part]:
    command = ["-m", "paceline", "check", "--model", sizes.model, "--draft-model", sizes.draft, "--device", device]
    command += ["--dtype", "float32", "--sizes", "9", "-n", str(sizes.check_tokens), "--rule", *sizes.rules]
    command += ["--method", *sizes.checked, "--batch", *texts_of(sizes.batches), "--json"]
    yield Part("check", command, _check_in_words, 45, codes=(0, 1), warm=True)


def _check_in_words(found: Sequence[Finding]) -> str:
    one = found[-1]
    return (
        f"{one['equal']} of {one['cases']} equal, {one['flips_per_1000']:g} flips per 1,000 tokens, {one['bugs']} bugs"
        + (f": {one['faults'][0]}" if one["faults"] else "")
    )


# --- forwards


def forwards(sizes: Sizes, device: str) -> Iterator[Part]:
    for texts, rows in ((1, sizes.rows), (sizes.many, sizes.rows_of_many)):
        for shape in sizes.shapes:
            command = ["-m", "paceline", "bench", "time", "forwards", "--model", shape, "--device", device]
            command += ["--dtype", sizes.dtype, "--context", str(sizes.context), "--sequence", str(texts)]
            command += ["--rows", *texts_of(rows), "--rounds", str(sizes.repeats), "--json"]
            name = f"forwards {shape} {texts} {'text' if texts == 1 else 'texts'}"
            seconds = share(shape, 75, 35) if texts == 1 else share(shape, 45, 30)
            yield Part(name, command, _forwards_in_words, seconds, warm=True)


def timed(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Every forward: its path, its rows and its milliseconds."""
    return [one | {"milliseconds": one["milliseconds"]["forward"]} for one in found[-1]["lines"]]


def fastest(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Of each number of rows, the fastest of our paths."""
    ours = [one for one in timed(found) if one["path"] != "transformers"]
    counts = sorted({one["rows"] for one in ours})
    return [min((o for o in ours if o["rows"] == n), key=lambda one: float(one["milliseconds"])) for n in counts]


def _forwards_in_words(found: Sequence[Finding]) -> str:
    best, refused = fastest(found), found[-1]["refused"]
    apart = max(one["apart"] for one in timed(found))
    share = best[0]["least"] / best[0]["milliseconds"]
    said = f"1 row {best[0]['milliseconds']:.2f} ms ({best[0]['path']}), {share:.0%} of the memory's speed"
    more = f", {best[-1]['rows']} rows {best[-1]['milliseconds'] / best[0]['milliseconds']:.2f} of it"
    return f"{said}{more}, paths {apart:.0e} apart" + (f"; NOT recorded: {refused}" if refused else "")


# --- rounds, and what is measured as rounds are


def rounds(sizes: Sizes, device: str) -> Iterator[Part]:
    for target in sizes.targets:
        profiled = ["--profile", *specs(sizes.profiled, sizes.draft)] if sizes.profiled else []
        seconds = share(target, 105, 70)
        yield _rounds(f"rounds {target}", sizes, device, target, sizes.methods, seconds, *profiled)


def mirror(sizes: Sizes, device: str) -> Iterator[Part]:
    """Both places of its draft model beside the method that drafts in turns. On a CPU there is only one place."""
    forced = "mirror:overlap=always"
    ways = ["assistant", "mirror", forced, *([f"{forced},device='{device}'"] if on_gpu(device) else [])]
    target = sizes.targets[0]
    yield _rounds(f"mirror {target}", sizes, device, target, ways, 35, "--temperatures", "0.8")


def energy(sizes: Sizes, device: str) -> Iterator[Part]:
    target, ways = sizes.targets[0], [name for name in ("plain", "auto", "assistant") if name in sizes.methods]
    yield _rounds(f"energy {target}", sizes, device, target, ways, 35, "--temperatures", "0.8", "--energy")


def _rounds(
    name: str, sizes: Sizes, device: str, target: str, methods: Sequence[str], seconds: float, *more: str
) -> Part:
    command = ["-m", "papers.device.rounds", "--model", target, "--device", device, "--dtype", sizes.dtype]
    command += ["-n", str(sizes.tokens), "--texts", str(sizes.texts), "--methods", *specs(methods, sizes.draft), *more]
    return Part(name, command, _rounds_in_words, seconds, continues=True, warm=True)


def specs(methods: Sequence[str], draft: str) -> list[str]:
    """Methods as specs: those that need a draft model get it by its name."""
    named = {one: f"{one}{',' if ':' in one else ':'}model='{draft}'" for one in methods}
    return [named[one] if one.partition(":")[0] in ("assistant", "mirror") else one for one in methods]


def _rounds_in_words(found: Sequence[Finding]) -> str:
    timed = [one for one in found if "tokens_per_second" in one]
    hottest = max((one["temperature"] for one in timed), default=0.0)
    speeds = [f"{one['method']} {one['tokens_per_second']:.0f}" for one in timed if one["temperature"] == hottest]
    said = [f"tokens/s at {hottest:g}: {', '.join(speeds)}"] if speeds else []
    joules = [f"{one['method']} {one['joules_per_token']:.2f}" for one in timed if one["joules_per_token"]]
    said += [f"J/token: {', '.join(joules)}"] if joules else []
    said += [f"idle {one['watts']:.0f} W" for one in found if one.get("watts")]
    said += [f"{one[KEY]} failed: {one['failed']}" for one in found if "failed" in one]
    said += [f"NOT recorded: {one['why']}" for one in found if one.get(KEY) == "refused"]
    return "; ".join(said)


# --- transformers and loading


def transformers(sizes: Sizes, device: str) -> Iterator[Part]:
    target = sizes.targets[0]
    command = ["-m", "papers.device.theirs", "--model", target, "--device", device, "--dtype", sizes.dtype]
    command += ["-n", str(sizes.tokens)]
    yield Part(f"transformers {target}", command, _theirs_in_words, 60, continues=True, warm=True)


def _theirs_in_words(found: Sequence[Finding]) -> str:
    return "; ".join(
        f"{one[KEY]} {one['milliseconds']:.2f} ms" if "milliseconds" in one else f"{one[KEY]}: {one['failed']}"
        for one in found
    )


def loading(sizes: Sizes, device: str) -> Iterator[Part]:
    for target in dict.fromkeys((sizes.model, sizes.targets[0])):
        command = ["-m", "papers.device.loading", "--model", target, "--device", device, "--dtype", sizes.dtype]
        yield Part(f"loading {target}", command, _loading_in_words, share(target, 30, 25))


def _loading_in_words(found: Sequence[Finding]) -> str:
    return ", ".join(f"{one[KEY]} {one['seconds']:.1f} s" for one in found)
