"""What other engines call our methods: the flags or the Python that draft alike, or why there are none.

Nobody's drafts are quite ours. What does not carry over is said beside every answer, and changes only how many tokens
are accepted: these engines, too, let the target decide every token.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.drafters import Drafter, make_drafter
from paceline.drafters.spec import BUILT_IN, MODEL
from paceline.errors import InputError
from paceline.targets.pocket.names import NAMES

VERSIONS = {"vllm": "vLLM 0.33", "llama.cpp": "llama.cpp b11004", "transformers": "transformers 5.23"}
"""Engine -> the version that its answers hold for."""
FOREIGN = "pocket-foreign"
"""The one draft model that is known to have another tokenizer without looking into it."""

LIVE = ("adaptive", "calibrated")
"""Planners that choose sizes themselves."""

TURNS = ("fallback", "hybrid")
"""Methods whose parts take turns."""

NO_COUPLING = (
    "draft and target share no coins there: at a temperature above 0 fewer tokens are accepted than here, and a seed "
    "gives another text"
)
NO_TREE = "it scores no trees: in place of {} it drafts one chain of {} tokens"
VLLM_SUFFIX = (
    "it wants the package arctic-inference",
    "it drafts one chain, and ranks it without the public noise, where ours is a tree",
    "it also learns from what other requests wrote, as remember=N does here",
)
VLLM_UNSURE = "its drafts end at their full length, also where the model is unsure"
SIZED = "the {} planner chose the size of every draft here; there it is {} tokens"
PER_TOKEN = "its confidence is of one token, ours of all up to it"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A method to be found elsewhere."""

    spec: str
    drafter: Drafter
    draft_model: str | None = None
    apart: bool = False
    """Whether the draft model is given beside the spec, and not in it."""
    draft_tokens: int | None = None
    """None for as many as the method drafts where nobody says."""
    planner: str | None = None
    """Who sized its drafts, where that was no fixed number."""

    @property
    def tokens(self) -> int:
        """How long a draft is."""
        return self.drafter.levels(self.draft_tokens or self.drafter.nodes)

    @property
    def model(self) -> str:
        """Where the draft model is, for whoever loads it."""
        assert self.draft_model is not None, "a method that drafts with a model has one"
        return self.draft_model

    def told(
        self,
        engine: str,
        lines: tuple[str, ...] = (),
        settings: dict[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Equivalent:
        """An engine's answer to this."""
        if settings and self.planner is not None:
            notes = (*notes, SIZED.format(self.planner, self.tokens))
        return Equivalent(engine=engine, method=self.spec, lines=lines, settings=settings or {}, notes=notes)


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """An engine's answer."""

    engine: str
    method: str
    lines: tuple[str, ...] = ()
    """Flags, or Python. Empty where there is nothing to write."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The same as data, under the names that the engine has for them."""
    notes: tuple[str, ...] = ()
    """Sentences: why there is nothing, and what does not carry over."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def equivalent(
    engine: str,
    spec: str,
    *,
    draft_model: str | None = None,
    draft_tokens: int | None = None,
    planner: str | None = None,
) -> Equivalent:
    """What ``engine`` has for a method. ValueError where there is no such engine or method."""
    if engine not in VERSIONS:
        raise InputError(f"unknown engine {engine!r}; choose {', '.join(VERSIONS)}")
    if draft_tokens is not None and draft_tokens < 1:
        raise InputError(f"a draft has at least 1 token, not {draft_tokens}")
    drafter, apart = make_drafter(spec, draft_model), draft_model is not None
    wish = Wish(spec=spec, drafter=drafter, draft_model=_named(drafter), apart=apart, draft_tokens=draft_tokens)
    return ANSWERS[engine](replace(wish, planner=planner))


def equivalents_of_run(engine: str, entries: Sequence[Mapping[str, Any]], origin: Path) -> list[Equivalent]:
    """The same for every method of ours that a benchmark's record lists, sized as it was there."""
    found = []
    for entry in entries:
        if entry.get("ours"):
            spec = str(entry.get("method") or entry["name"])
            planner = str(entry.get("planner", ""))
            tokens, live = planner.removeprefix("fixed:"), planner in LIVE
            drafts = None if "model=" in spec else entry.get("draft_model")
            sized = int(tokens) if tokens.isdecimal() and int(tokens) else None
            sizing = planner if live else None
            try:
                found.append(equivalent(engine, spec, draft_model=drafts, draft_tokens=sized, planner=sizing))
            except ValueError as error:
                raise InputError(
                    f"{origin} has {spec!r}, which cannot be exported ({error}); name a METHOD in place of --run"
                ) from None
    return found


def _vllm(wish: Wish) -> Equivalent:
    drafter, answer = wish.drafter, partial(wish.told, "vllm")
    if drafter.name == "plain":
        return answer(notes=("vLLM decodes plainly where --speculative-config is left out",))
    if drafter.parts:
        return answer(notes=("there is none: vLLM drafts by one method at a time",))
    refused = "requests with min_p or logit_bias are refused while it drafts"
    if drafter.name == "lookup":
        settings = {
            "method": "ngram",
            "num_speculative_tokens": wish.tokens,
            "prompt_lookup_min": drafter.spec_options["min_ngram"],
            "prompt_lookup_max": drafter.spec_options["max_ngram"],
        }
        earliest = "it goes on from the first place where the longest n-gram stands, where ours takes the last"
        return answer(_vllm_flags(settings), settings, (earliest, *_reaching(drafter), refused))
    if drafter.name == "suffix":
        settings = {"method": "suffix", "num_speculative_tokens": wish.tokens}
        return answer(_vllm_flags(settings), settings, (*VLLM_SUFFIX, refused))
    if drafter.name != "assistant":
        return answer(notes=(_none(wish, "vLLM"),))
    settings = {"method": "draft_model", "model": wish.model, "num_speculative_tokens": wish.tokens}
    other = 'where the draft model has another tokenizer, add "use_heterogeneous_vocab": true, which drafts greedily'
    if wish.model == FOREIGN:
        settings["use_heterogeneous_vocab"] = True
        other = "across tokenizers it drafts greedily, and only tokens that both have"
    sampling = 'at a temperature above 0, "draft_sample_method": "probabilistic" samples drafts, too'
    notes = (*_lost(wish), *_unsure(drafter, VLLM_UNSURE), sampling, other, refused, *_boxed(wish))
    return answer(_vllm_flags(settings), settings, notes)


def _vllm_flags(settings: dict[str, Any]) -> tuple[str, ...]:
    return (f"--speculative-config {shlex.quote(json.dumps(settings, ensure_ascii=False))}",)


def _llama_cpp(wish: Wish) -> Equivalent:
    drafter, answer = wish.drafter, partial(wish.told, "llama.cpp")
    if drafter.name == "plain":
        return answer(notes=("llama.cpp decodes plainly where --spec-type is left out",))
    if drafter.name in TURNS:
        return _llama_cpp_fallback(wish)
    if drafter.parts:
        return answer(notes=("there is none: llama.cpp scores no trees, so no two methods draft for one round",))
    if drafter.name == "lookup":
        flags = _ngram_flags(drafter, wish.tokens)
        return answer((_joined({"--spec-type": "ngram-simple", **flags}),), flags, _ngram_notes(drafter))
    if drafter.name != "assistant":
        return answer(notes=(_none(wish, "llama.cpp"),))
    if wish.model == FOREIGN:
        return answer(notes=("there is none: llama.cpp wants a draft model with the target's vocabulary",))
    flags = _draft_flags(wish, drafter)
    return answer((_joined({"--spec-type": "draft-simple", **flags}),), flags, _draft_notes(wish))


def _llama_cpp_fallback(wish: Wish) -> Equivalent:
    """``lookup,assistant``: of those it is given it asks the ones without a model first. Each part of ours drafts as
    much as the largest of them would alone."""
    answer = partial(wish.told, "llama.cpp")
    if [part.name for part in wish.drafter.parts] != ["lookup", "assistant"] or wish.model == FOREIGN:
        return answer(notes=("there is none: llama.cpp asks n-grams before draft models, one of each",))
    lookup, assistant = wish.drafter.parts
    alone = Wish(spec="assistant", drafter=assistant, draft_model=wish.draft_model, draft_tokens=wish.tokens)
    flags = {**_ngram_flags(lookup, wish.tokens), **_draft_flags(alone, assistant)}
    notes = (*_ngram_notes(lookup), *_draft_notes(alone))
    return answer((_joined({"--spec-type": "ngram-simple,draft-simple", **flags}),), flags, notes)


def _ngram_flags(drafter: Drafter, tokens: int) -> dict[str, Any]:
    return {"--spec-ngram-simple-size-n": drafter.spec_options["max_ngram"], "--spec-ngram-simple-size-m": tokens}


def _draft_flags(wish: Wish, drafter: Drafter) -> dict[str, Any]:
    sure = {"--spec-draft-p-min": confidence} if (confidence := drafter.spec_options["confidence"]) else {}
    return {"--spec-draft-model": wish.model, "--spec-draft-n-max": wish.tokens, **sure}


def _ngram_notes(drafter: Drafter) -> tuple[str, ...]:
    longest, shortest = drafter.spec_options["max_ngram"], drafter.spec_options["min_ngram"]
    if longest == shortest:
        return _reaching(drafter)
    sizes = f"{longest} down to {shortest}"
    single = f"it looks for n-grams of one length only, where ours tries {sizes}, so it drafts less often"
    return single, *_reaching(drafter)


def _reaching(drafter: Drafter) -> tuple[str, ...]:
    """Options of ours that change what is copied."""
    options = [name for name in ("chain", "next") if drafter.spec_options[name]]
    return (f"it has nothing like {' and '.join(options)}",) if options else ()


def _draft_notes(wish: Wish) -> tuple[str, ...]:
    file = "the draft model is a GGUF file there, with the target's vocabulary; write its path"
    sampling = "at a temperature above 0, --spec-draft-sampling probabilistic samples drafts, too"
    return (*_lost(wish), *_unsure(wish.drafter, PER_TOKEN), sampling, file, *_boxed(wish))


def _joined(flags: dict[str, Any]) -> str:
    return shlex.join(str(word) for pair in flags.items() for word in pair)


def _transformers(wish: Wish) -> Equivalent:
    drafter, answer = wish.drafter, partial(wish.told, "transformers")
    ours = _custom_generate(wish)
    if drafter.name == "plain":
        return answer(("model.generate(**inputs)",), {}, ("nothing is to be added",))
    if drafter.name == "lookup":
        settings = {
            "prompt_lookup_num_tokens": wish.tokens,
            "max_matching_ngram_size": drafter.spec_options["max_ngram"],
        }
        first = "it goes on from the first place where the n-gram stands, where ours takes the last"
        shortest = () if drafter.spec_options["min_ngram"] == 1 else ("it always goes down to n-grams of one token",)
        return answer((_generate(settings), *ours), settings, (first, *shortest, *_reaching(drafter)))
    if drafter.name == "assistant":
        return answer((*_assisted(wish, drafter), *ours), _assistants(wish, drafter), _assisted_notes(wish))
    own = "transformers itself has none" if drafter.parts else _none(wish, "transformers")
    return answer(ours, {}, (f"{own}; our loop runs inside its generate",))


def _assisted(wish: Wish, drafter: Drafter) -> tuple[str, ...]:
    model = f"AutoModelForCausalLM.from_pretrained({wish.model!r})"
    arguments = "assistant_model=draft"
    tokenizers: tuple[str, ...] = ()
    if wish.model == FOREIGN:
        tokenizers = (f"theirs = AutoTokenizer.from_pretrained({wish.model!r})",)
        arguments += ", tokenizer=tokenizer, assistant_tokenizer=theirs"
    of_draft = ((name, value) for name, value in _assistants(wish, drafter).items() if name != "assistant_model")
    return (
        f"draft = {model}",
        *tokenizers,
        *(f"draft.generation_config.{name} = {value!r}" for name, value in of_draft),
        f"model.generate(**inputs, {arguments})",
    )


def _assistants(wish: Wish, drafter: Drafter) -> dict[str, Any]:
    """Of the draft model: transformers reads how to draft from its settings, not from the call's."""
    return {
        "assistant_model": wish.model,
        "num_assistant_tokens": wish.tokens,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": drafter.spec_options["confidence"],
    }


def _assisted_notes(wish: Wish) -> tuple[str, ...]:
    other = "where the draft model has another tokenizer, give both: tokenizer=..., assistant_tokenizer=..."
    if wish.model == FOREIGN:
        other = "across tokenizers keep to do_sample=False: version 5.23 samples by another law there"
    return (*_lost(wish), *_unsure(wish.drafter, PER_TOKEN), other, *_boxed(wish))


def _custom_generate(wish: Wish) -> tuple[str, ...]:
    """Our own loop in their `generate`, which has every method as it is here."""
    model = "" if not wish.apart else f", draft_model={wish.draft_model!r}"
    planner = wish.planner if wish.draft_tokens is None else f"fixed:{wish.draft_tokens}"
    size = "" if planner is None else f', planner="{planner}"'
    return (
        "# our own loop, with nothing lost:",
        f"model.generate(**inputs, custom_generate=paceline.custom_generate({wish.spec!r}{model}{size}))",
    )


def _generate(settings: dict[str, Any]) -> str:
    return f"model.generate(**inputs, {', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def _lost(wish: Wish) -> tuple[str, ...]:
    """What no other engine has of drafts by a model."""
    options = wish.drafter.spec_options
    trees = [f"{name}={options[name]}" for name in ("beams", "top") if options[name] > 1]
    lost = (NO_TREE.format(" and ".join(trees), wish.tokens),) if trees else ()
    return (*lost, NO_COUPLING) if options["noise"] == "shared" else lost


def _unsure(drafter: Drafter, difference: str) -> tuple[str, ...]:
    """A sentence for drafts that end where the model is unsure."""
    return (difference,) if drafter.spec_options["confidence"] else ()


def _boxed(wish: Wish) -> tuple[str, ...]:
    return (
        (f"{wish.model} lies in this package, and has to be saved or converted first",) if wish.model in NAMES else ()
    )


def _none(wish: Wish, engine: str) -> str:
    """For methods that an engine does not have, our own or another package's."""
    if wish.spec.partition(":")[0] in BUILT_IN:
        return f"there is none: {engine} has no method like {wish.spec}"
    return f"there is none: {wish.spec} is a method of another package"


def _named(drafter: Drafter) -> str | None:
    """The draft model that a spec names itself."""
    if isinstance(named := drafter.spec_options.get(MODEL), (str, Path)):
        return str(named)
    return next((name for part in drafter.parts if (name := _named(part)) is not None), None)


ANSWERS: dict[str, Callable[[Wish], Equivalent]] = {
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "transformers": _transformers,
}
