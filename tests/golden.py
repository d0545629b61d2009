"""Golden texts: about 200 texts of every kind, as token ids, and what it takes to write them again.

Only names that users have are called here, so that everything behind them can be moved. ``python tests/golden.py``
prints the texts as the installed code writes them; `golden.json` holds them as they must be. Under the coupled rule a
text is a function of model, prompt, settings and seed. Under rejection it also depends on the drafts: there the size of
drafts is fixed, and everything learnt from earlier texts is forgotten first.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import paceline
from paceline.cli import main

FILE = Path(__file__).with_name("golden.json")
DRAFT = "pocket-draft"
LENGTH, SHORT = 16, 10
"""New tokens per text; of those that many methods write alike, fewer."""


class Text(NamedTuple):
    """One text as the file holds it."""

    finish: str
    tokens: list[int]


Texts = dict[str, Text]


@dataclass(frozen=True)
class Case:
    """One text to write alone: the name without its group, and the arguments of `generate`."""

    name: str
    prompt: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "pocket"
    dtype: str = "float64"


# --- prompts and methods -----------------------------------------------------------------------------------

ENGLISH = "Once upon a time there was an old man who"
POLISH = "Dawno temu w małym domu nad rzeką mieszkała"
UKRAINIAN = "Старий будинок стояв край дороги, і"
REPETITIVE = "The king went to the river. The king went to the forest. The king went to the"
POLISH_REPETITIVE = "Kot siedzi na dachu. Pies siedzi na dachu. Kot siedzi na"

SITUATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "en greedy": (ENGLISH, {}),
    "en T=0.8": (ENGLISH, {"temperature": 0.8, "seed": 1}),
    "pl T=1": (POLISH, {"temperature": 1.0, "seed": 2}),
    "uk T=0.8 top-p": (UKRAINIAN, {"temperature": 0.8, "top_p": 0.9, "seed": 3}),
    "repetitive greedy": (REPETITIVE, {}),
    "uk greedy": (UKRAINIAN, {"repetition_penalty": 1.1}),
    "repetitive T=0.8": (REPETITIVE, {"temperature": 0.8, "seed": 4}),
    "pl repetitive T=1 top-k": (POLISH_REPETITIVE, {"temperature": 1.0, "top_k": 20, "seed": 5}),
}

WITHOUT_MODEL = (
    *("plain", "lookup", "lookup:max_ngram=5,min_ngram=2", "lookup:chain=true", "lookup:next=2"),
    *("suffix", "suffix:noise=none", "suffix:remember=1000", "suffix:remember=1000,memory='{memory}'"),
    *("suffix:corpus='{corpus}'", "rest:corpus='{corpus}'", "rest:corpus='{corpus}',noise=none"),
    *("dictionary", "dictionary:branches=3", "hybrid", "recycling", "recycling:noise=none,prefill=true"),
    *("lookahead", "lookahead:noise=none,window=5", "spectra", "spectra:noise=none,corpus='{corpus}'"),
    *("unispec", "unispec:noise=none,store=private", "unispec:prefill=true,next=others"),
    *("foresight", "foresight:noise=none,store=private", "auto", "auto:dictionary=none,noise=none"),
    *("lookup,unispec", "dictionary,lookup,recycling", "suffix+unispec", "dictionary+lookup"),
)
WITH_MODEL = (
    *("assistant", "assistant:top=4", "assistant:beams=3", "assistant:noise=none", "assistant:confidence=0.3"),
    *("assistant:length=2", "auto", "lookup,assistant", "suffix+assistant"),
)
METHODS: tuple[dict[str, Any], ...] = (
    *({"method": spec} for spec in WITHOUT_MODEL),
    *({"method": spec, "draft_model": DRAFT} for spec in WITH_MODEL),
)
PLANNERS = (None, "fixed:6", "adaptive")


def label(settings: Mapping[str, Any]) -> str:
    """The method of some settings in words."""
    parts = [settings["method"], "with a model" if "draft_model" in settings else "", settings.get("planner") or ""]
    return " ".join(filter(None, parts))


# --- groups of texts written alone -------------------------------------------------------------------------


def coupled() -> list[Case]:
    """Every method in two situations, each time under another planner."""
    cases = []
    for number, method in enumerate(METHODS):
        for turn in range(2):
            situation = list(SITUATIONS)[(number + turn * 3) % len(SITUATIONS)]
            prompt, settings = SITUATIONS[situation]
            how = {**method, "planner": PLANNERS[(number + turn) % len(PLANNERS)], "max_new_tokens": SHORT}
            cases.append(Case(f"{situation}/{label(how)}", prompt, settings | how))
    return cases


def rejection() -> list[Case]:
    """Every method once under the other rule."""
    cases = []
    for number, method in enumerate(METHODS):
        situation = list(SITUATIONS)[(number * 3 + 1) % len(SITUATIONS)]
        prompt, settings = SITUATIONS[situation]
        how = {**method, "planner": f"fixed:{(4, 8)[number % 2]}", "rule": "rejection"}
        cases.append(Case(f"{situation}/{label(how)}", prompt, settings | how))
    return cases


def settings() -> list[Case]:
    """What a caller may ask of sampling and of the end, with a method and with none, and with several seeds."""
    sampled: dict[str, Any] = {"temperature": 0.8, "seed": 11}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "repetition penalty": (REPETITIVE, {"repetition_penalty": 1.3}),
        "presence and frequency": (REPETITIVE, sampled | {"presence_penalty": 0.6, "frequency_penalty": 0.4}),
        "top-k": (POLISH, sampled | {"top_k": 5}),
        "top-p": (ENGLISH, {"temperature": 1.0, "top_p": 0.7, "seed": 12}),
        "min-p": (UKRAINIAN, {"temperature": 1.0, "min_p": 0.05, "seed": 13}),
        "all warps": (ENGLISH, sampled | {"top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}),
        "bias": (ENGLISH, sampled | {"logit_bias": {300: 6.0, 301: 5.0, 302: -20.0}}),
        "banned": (REPETITIVE, {"banned": tuple((token,) for token in range(300, 600, 2))}),
        "processor": (POLISH, sampled | {"processors": (even_only,)}),
        "criterion": (ENGLISH, sampled | {"criteria": (ends_on_seventh,)}),
        "stop string": (ENGLISH, {"stop": ["in the"]}),
        "stop string, sampled": (UKRAINIAN, sampled | {"stop": "е"}),
        "own eos": (ENGLISH, {"eos": list(range(260, 1000, 9))}),
        "eos ignored": (POLISH_REPETITIVE, sampled | {"ignore_eos": True}),
        "logprobs": (POLISH, {"temperature": 0.7, "seed": 14, "logprobs": 3}),
        "one token": (ENGLISH, sampled | {"max_new_tokens": 1}),
        **{f"seed {seed}": (UKRAINIAN, {"temperature": 1.0, "seed": seed}) for seed in (0, 7, 2**63)},
    }
    methods: list[dict[str, Any]] = [{"method": "plain"}, {"method": "assistant:top=3", "draft_model": DRAFT}]
    return [
        Case(f"{name}/{label(method)}", prompt, how | method)
        for name, (prompt, how) in asked.items()
        for method in methods
    ]


def even_only(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor that makes odd tokens impossible after even positions."""
    forbidden = (torch.arange(scores.shape[1]) % 2 == 1) & (ids.shape[1] % 2 == 0)
    return scores.masked_fill(forbidden, -torch.inf)


def ends_on_seventh(tokens: Any) -> bool:
    """A criterion that ends a text at a token divisible by seven."""
    return int(tokens[-1]) % 7 == 0


def models() -> list[Case]:
    """The other bundled models, and single precision where texts are short."""
    found = []
    for model, dtype in (("pocket-draft", "float64"), ("pocket-foreign", "float64"), ("pocket", "float32")):
        for number, method in enumerate(("plain", "auto", "suffix+unispec")):
            situation = list(SITUATIONS)[number * 2]
            prompt, how = SITUATIONS[situation]
            how = how | {"method": method}
            found.append(Case(f"{model} {dtype}/{situation}/{label(how)}", prompt, how, model, dtype))
    return found


# --- groups of texts written together or by others ---------------------------------------------------------


def batches(_: Path) -> Texts:
    """Batches of two to eight texts, of mixed lengths, with settings of their own, and samples of one prompt."""
    lm = model("pocket", "float64")
    found: Texts = {}

    def keep(name: str, texts: Iterable[Iterable[paceline.Generation]]) -> None:
        for place, samples in enumerate(texts):
            found.update({f"{name}/{place}.{number}": text_of(text) for number, text in enumerate(samples)})

    everything = [ENGLISH, POLISH, UKRAINIAN, REPETITIVE, POLISH_REPETITIVE, "A", REPETITIVE * 3, UKRAINIAN * 2]
    each: list[dict[str, Any]] = [
        {"max_new_tokens": 6 + 3 * place, "temperature": 0.8 * (place % 2), "seed": place}
        for place in range(len(everything))
    ]
    sampled: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_new_tokens": LENGTH}
    keep("eight auto", lm.generate_batch(everything, each=each, draft_model=DRAFT))
    keep("eight foresight, three at once", lm.generate_batch(everything, each=each, method="foresight", at_once=3))
    keep("two of two plain", lm.generate_batch(everything[:2], n=2, method="plain", **sampled))
    keep("four of one", lm.generate_batch([POLISH], n=4, method="assistant:top=4", draft_model=DRAFT, **sampled))
    lm.forget()
    chained: dict[str, Any] = {"method": "assistant", "draft_model": DRAFT, "rule": "rejection", "planner": "fixed:4"}
    keep("three rejection", lm.generate_batch(everything[:3], **chained, **sampled))
    keep("samples", [lm.sample(UKRAINIAN, n=3, method="suffix", **sampled)])
    keep("joined late", [joined_late(lm, {"method": "suffix+unispec", **sampled})])
    return found


def joined_late(lm: paceline.LanguageModel, how: dict[str, Any]) -> list[paceline.Generation]:
    """Texts of a batch that a third one joins after three steps, when the second is cancelled unfinished."""
    with lm.batch(at_once=2) as batch:
        written = [batch.add(ENGLISH, **how), batch.add(POLISH, **how)]
        for _ in range(3):
            batch.step()
        batch.cancel(written.pop())
        written.append(batch.add(REPETITIVE, **how))
        for _ in batch:
            pass
    return [writing.result() for writing in written]


def chat(_: Path) -> Texts:
    """Two turns of a transcript; the second begins with the tokens of the first."""
    lm = model("pocket", "float64")
    found: Texts = {}
    for method, rule in (("plain", "coupled"), ("auto", "coupled"), ("assistant", "coupled"), ("lookup", "rejection")):
        how: dict[str, Any] = {
            "method": method,
            "rule": rule,
            "temperature": 0.8,
            "seed": 31,
            "stop": "\nUser:",
            "planner": "fixed:5",
        }
        how |= {"draft_model": DRAFT} if method == "assistant" else {}
        lm.forget()
        prompt = lm.encode("User: Tell me about the old house.\nAssistant:").tolist()
        for turn, reply in enumerate(("\nUser: І що було далі?\nAssistant:", "")):
            written = lm.generate(prompt, max_new_tokens=LENGTH, **how)
            found[f"turn {turn + 1}/{label(how)} {rule}"] = text_of(written)
            prompt = [*prompt, *written.tokens, *lm.encode(reply).tolist()]
    return found


def transformers(_: Path) -> Texts:
    """Rows that `generate` of transformers wrote by our engine, their padding left out."""
    lm = model("pocket", "float64")
    theirs = copy.deepcopy(lm.target.model)
    theirs.tie_weights()
    rows = [lm.encode(prompt).tolist() for prompt in (ENGLISH, POLISH)]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    sampled: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 0}
    single: dict[str, Any] = {"planner": "fixed:4"}
    calls: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "lookup greedy": ({"method": "lookup"}, {"do_sample": False}),
        "auto sampled": ({"method": "auto"}, sampled),
        "assistant penalty": ({"draft_model": DRAFT} | single, sampled | {"repetition_penalty": 1.2}),
        "assistant rejection": ({"draft_model": DRAFT, "rule": "rejection"} | single, sampled),
        "suffix, two each": ({"method": "suffix"}, sampled | {"num_return_sequences": 2}),
        "unispec warped": ({"method": "unispec"}, {"do_sample": True, "temperature": 1.0, "top_k": 10, "top_p": 0.8}),
    }
    found: Texts = {}
    for name, (ours, asked) in calls.items():
        torch.manual_seed(41)
        drafting = paceline.custom_generate(**ours)
        how = {"attention_mask": mask, "pad_token_id": 0, "max_new_tokens": LENGTH, **asked}
        written = theirs.generate(ids, custom_generate=drafting, **how)
        new = written[:, width:].tolist()
        found |= {f"{name}/row {place}": Text("returned", tokens) for place, tokens in enumerate(new)}
    return found


# --- writing and comparing ---------------------------------------------------------------------------------

ALONE: dict[str, Callable[[], list[Case]]] = {
    "coupled": coupled,
    "rejection": rejection,
    "settings": settings,
    "models": models,
}
TOGETHER: dict[str, Callable[[Path], Texts]] = {"batches": batches, "chat": chat, "transformers": transformers}
GROUPS = (*ALONE, *TOGETHER)


@cache
def model(name: str, dtype: str) -> paceline.LanguageModel:
    return paceline.load(name, dtype=dtype, generation_config=False)


def write(group: str, folder: Path) -> Texts:
    """The texts of a group by their full names, as the installed code writes them; ``folder`` is for its files."""
    if group in TOGETHER:
        texts = TOGETHER[group](folder)
    else:
        cases = ALONE[group]()
        texts = {case.name: alone(case, folder) for case in cases}
        assert len(texts) == len(cases), f"two texts of {group} have the same name"
    return {f"{group}/{name}": text for name, text in texts.items()}


def alone(case: Case, folder: Path) -> Text:
    lm = model(case.model, case.dtype)
    asked = {"max_new_tokens": LENGTH, **case.settings}
    if asked.get("rule") == "rejection":
        lm.forget()
    if "{corpus}" in asked["method"]:
        asked["method"] = asked["method"].replace("{corpus}", str(corpus(folder)))
    asked["method"] = asked["method"].replace("{memory}", str(folder / "texts.memory"))
    return text_of(lm.generate(case.prompt, **asked))


def text_of(text: paceline.Generation) -> Text:
    return Text(text.finish, [int(token) for token in text.tokens])


def corpus(folder: Path) -> Path:
    """A datastore of a few sentences, built by its command where it is not there yet."""
    out = folder / "sentences.rest"
    if not out.exists():
        plain = folder / "sentences.txt"
        plain.write_text("\n".join([ENGLISH, POLISH, UKRAINIAN, REPETITIVE, POLISH_REPETITIVE] * 2), encoding="utf8")
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["datastore", "build", "--text", str(plain), "--out", str(out)]) == 0
    return out


def differences(expected: Texts, found: Texts) -> list[str]:
    """A line for each text that is not as it must be, with the place of the first other token."""
    told = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            told.append(f"{name}: {'not written' if name not in found else 'not in the file'}")
        elif expected[name] != found[name]:
            told.append(f"{name}: {_difference(expected[name], found[name])}")
    return told


def _difference(expected: Text, found: Text) -> str:
    if expected.tokens == found.tokens:
        return f"ends by {found.finish!r} and should by {expected.finish!r}"
    pairs = zip(expected.tokens, found.tokens, strict=False)
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return f"has {len(found.tokens)} tokens and should have {len(expected.tokens)}"
    return f"token {first} is {found.tokens[first]} and should be {expected.tokens[first]}"


def dumped(texts: Texts) -> str:
    """JSON, a line per text."""
    lines = (f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(text)}" for name, text in texts.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path = FILE) -> Texts:
    stored = json.loads(path.read_text(encoding="utf8"))
    return {name: Text(finish, tokens) for name, (finish, tokens) in stored.items()}


def print_texts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        texts: Texts = {}
        for group in GROUPS:
            texts |= write(group, Path(folder))
    sys.stdout.write(dumped(texts))


if __name__ == "__main__":
    print_texts()
