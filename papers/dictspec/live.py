"""Table 5: four configurations inside vLLM: plain, its own prompt n-grams, a dictionary, and both (hybrid)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import paceline
from paceline_lab import VLLMEngine, open_suite, ordinary
from papers.driver import Given, progress
from papers.report import UNBOUNDED, Claim, Report, Table

LANGUAGES = "uk", "crh-Cyrl", "crh-Latn"
PLAIN, NGRAM, DICTIONARY, HYBRID = "plain", "prompt n-gram", "dictionary", "hybrid"
PAPER = {NGRAM: "1.07 to 2.15 times", DICTIONARY: "1.01 to 1.25 times", HYBRID: "1.18 to 1.76 times"}
RIVALS = {
    "uk": ("faster", "1.01 to 1.18 times, in one of 5 rows the printed speed-ups are equal"),
    "crh-Cyrl": ("slower", "0.82 and 0.94 times"),
    "crh-Latn": ("slower", "0.94 times in both rows"),
}
"""Hybrid beside prompt n-grams, by the tokens/s of the paper's Table 5: n-grams are ahead in 4 of 9 rows."""


class Run(NamedTuple):
    """One configuration in one language."""

    texts: Sequence[Sequence[int]]
    seconds: float
    drafted: int
    accepted: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def steps(self) -> int:
        return self.tokens - self.accepted

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


Runs = Mapping[str, Mapping[str, Run]]
"""By language and configuration."""


def engine_of(given: Given, folder: str, way: str, dictionary: Path | None) -> dict[str, Any]:
    """The arguments of vLLM."""
    engine: dict[str, Any] = {"model": folder, "dtype": given.dtype, "seed": 0, "max_num_seqs": given.batch}
    engine |= {"max_model_len": given.context, "enforce_eager": True, "disable_log_stats": False}
    if way == NGRAM:
        sizes = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
        engine["speculative_config"] = {"method": "ngram", "num_speculative_tokens": given.draft, **sizes}
    elif way != PLAIN:
        file = "" if dictionary is None else f":file='{dictionary.absolute()}'"
        command = ["export", "vllm", f"{way}{file}", "--num-draft-tokens", str(given.draft), "--json"]
        engine |= settings_of(command)
        engine["additional_config"]["paceline"]["lengths"] = "fixed"  # as the paper's, and so that steps compare
    return engine


def settings_of(command: Sequence[str]) -> dict[str, Any]:
    """The settings that `paceline export` prints."""
    done = subprocess.run([sys.executable, "-m", "paceline", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip().removeprefix("paceline export: error: "))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["methods"][0]["settings"]
    return found


def written(given: Given, engine: dict[str, Any], prompts: Sequence[str]) -> Run:
    """Texts by a separate engine."""
    vllm = VLLMEngine(given.vllm, engine)
    try:
        vllm.write(prompts[:1], temperature=0.0, max_tokens=8)
        found = vllm.write(prompts, temperature=0.0, max_tokens=given.max_new_tokens)
    finally:
        vllm.close()
    _, drafted, accepted = found["counts"].values()
    return Run(found["texts"], found["seconds"], drafted, accepted)


def table(runs: Runs) -> Table:
    head = ("language, configuration", "tokens/s", "x plain", "steps", "x fewer steps", "accepted of drafted")
    rows = list[Sequence[str]]()
    for language, ways in runs.items():
        plain = ways[PLAIN]
        for way, run in ways.items():
            share = f"{run.accepted / run.drafted:.1%}" if run.drafted else ""
            times = f"{run.speed / plain.speed:.2f}", f"{run.steps}", f"{plain.steps / run.steps:.2f}"
            rows.append((f"{language}, {way}", f"{run.speed:.1f}", *times, share))
    return head, rows


def claims(runs: Runs) -> Iterator[Claim]:
    for way in (NGRAM, DICTIONARY, HYBRID):
        yield faster(runs, way, PLAIN, f"{way} is faster than plain decoding", PAPER[way])
    yield faster(runs, HYBRID, DICTIONARY, "hybrid is faster than the dictionary alone", "in every row")
    for language, (word, paper) in RIVALS.items():
        if language in runs:
            one, claim = {language: runs[language]}, f"hybrid is {word} than prompt n-grams in {language}"
            yield faster(one, HYBRID, NGRAM, claim, paper, slower=word == "slower")
    same = [run.texts == ways[PLAIN].texts for ways in runs.values() for run in ways.values()]
    yield Claim("all configurations write the same texts", "", f"{sum(same)} of {len(same)} runs", all(same))


def faster(runs: Runs, way: str, base: str, claim: str, paper: str, *, slower: bool = False) -> Claim:
    """A claim about two configurations in these languages."""
    times = [ways[way].speed / ways[base].speed for ways in runs.values()]
    steps = [ways[base].steps / ways[way].steps for ways in runs.values()]
    ours = f"{span(times)} times, with {span(steps)} times fewer steps"
    return Claim(claim, paper, ours, max(times) < 1 if slower else min(times) > 1, UNBOUNDED)


def span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def report(runs: Runs, notes: Sequence[str]) -> Report:
    return Report("DictSpec, Table 5: live in vLLM", [table(runs)], list(claims(runs)), notes)


def live(given: Given) -> Report:
    """Table 5: four configurations inside vLLM: plain, its own prompt n-grams, a dictionary, and both (hybrid).

    ``--vllm`` is the Python of an environment with vLLM and paceline's dependencies. Prompts are those of the suite
    ``dictspec``. Texts are greedy, so all configurations write the same. A step of a text writes what it accepts and
    one token more, so steps and acceptance hold on any machine, and times only on this one. The paper's claims are
    about time, so time decides them; it is that of one run and has no interval. The steps stand beside it.
    """
    if not given.vllm:
        raise ValueError("name the Python of an environment with vLLM: --vllm DIR/bin/python")
    dictionaries = dict(given.dict)
    found = open_suite("dictspec", data=given.data, languages=given.langs, limit=given.limit).prompts
    runs: dict[str, dict[str, Run]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.model
        if not Path(folder).is_dir():
            lm = paceline.load(folder, dtype=given.dtype)
            ordinary(lm.target).save_pretrained(scratch)
            assert lm.vocabulary is not None, "a bundled model has a tokenizer"
            lm.vocabulary.tokenizer.save_pretrained(scratch)
            folder = scratch
        ways, total = (PLAIN, NGRAM, DICTIONARY, HYBRID), 4 * len(given.langs)
        for number, language in enumerate(given.langs):
            prompts = [prompt.turns[0] for prompt in found if prompt.language == language]
            for place, way in enumerate(ways):
                progress(f"{language}, {way}", 4 * number + place, total)
                engine = engine_of(given, folder, way, dictionaries.get(language))
                runs.setdefault(language, {})[way] = written(given, engine, prompts)
    named = ", ".join(f"{language} {file.name}" for language, file in dictionaries.items()) or "those shipped"
    notes = [
        f"{given.model}, {given.dtype}, greedy, {given.limit} prompts a language, {given.max_new_tokens} tokens each",
        f"dictionaries: {named}; drafts of at most {given.draft} tokens",
        "the paper's models are of 3 to 70 billion parameters, on GPUs",
    ]
    return report(runs, notes)
