"""Our methods in other engines: the flags or the Python that draft alike, or why there are none.

No other engine drafts quite as we do. What does not carry over is said beside every answer, and changes only how many
tokens are accepted: these engines, too, let the target decide every token.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.drafters import Drafter, make_drafter
from paceline.drafters.auto import NONE
from paceline.drafters.auto import SHIPPED as SHIPPED_DICTIONARIES
from paceline.drafters.spec import BUILT_IN, MODEL, absolute, file_names, methods_in
from paceline.errors import InputError
from paceline.integrations.vllm.settings import SERVED, VLLMSettings
from paceline.targets.pocket.names import POCKET_NAMES

VERSIONS = {"vllm": "vLLM 0.33", "llama.cpp": "llama.cpp b11004", "transformers": "transformers 5.24"}
"""Engine -> the version that its answers hold for."""
FOREIGN = "pocket-foreign"
"""The one draft model that is known to have another tokenizer without looking into it."""
LIVE = ("adaptive", "calibrated")
"""Planners that choose sizes themselves."""
TURNS = ("fallback", "hybrid")
"""Methods whose parts take turns."""

NO_COUPLING = (
    "draft and target share no noise there: at a temperature above 0 fewer tokens are accepted than here, and a seed "
    "gives another text"
)
NO_TREE = "it scores no trees: in place of {} it drafts one chain of {} tokens"
VLLM_SUFFIX = (
    "it needs the package arctic-inference",
    "it drafts one chain, and ranks it without the public noise, where ours is a tree",
    "it also learns from what other requests wrote, as remember=N does here",
)
ONE_LINE = "it drafts one chain there, of a tree the best one"
NO_NOISE = (
    "vLLM's own rule accepts drafts: greedy text is plain vLLM's; sampled text has its law, and a seed another text"
)
CHAIN = 10
"""Tokens of a chain where ours is a tree of many."""
INSTALLED = "paceline is installed beside vLLM, and files are named as they are found on this machine"
COST = (
    "a proposer costs: vLLM schedules no step ahead with one, and where next to nothing was accepted it ran at 0.85 to "
    "0.93 of plain vLLM (docs/engines.md)"
)
INSIDE: tuple[str, ...] = (ONE_LINE, INSTALLED, NO_NOISE, COST)
AUTO = "suffix+foresight"
VLLM_MODEL = ("vLLM drafts with that model itself: paceline export vllm assistant, with the same options",)
AUTO_INSIDE = f"of auto these parts draft inside vLLM: {AUTO}, and dictionaries that you name; no draft model, no head"
SHIPPED = "the dictionaries that come with paceline are for its own models; name those of your model with --dict"
REFUSED = "requests with min_p or logit_bias are refused while it drafts"
VLLM_UNSURE = "its drafts end at their full length, also where the model is unsure"
SIZED = "the {} planner chose the size of every draft here; there it is {} tokens"
PER_TOKEN = "its confidence is of one token, ours of all up to it"

Answer = tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]
"""Lines, settings and notes, as in `Equivalent`."""


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """An engine's counterpart of a method."""

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


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A method to export."""

    spec: str
    drafter: Drafter
    draft_model: str | None = None
    target: str | None = None
    """The model that is served, as a command names it."""
    apart: bool = False
    """Whether the draft model is given beside the spec, and not in it."""
    draft_tokens: int | None = None
    """None for as many as the method drafts by itself."""
    planner: str | None = None
    """The planner that sized its drafts, where that was no fixed number."""

    @property
    def tokens(self) -> int:
        """How long a draft is."""
        return self.drafter.levels(self.draft_tokens or self.drafter.nodes)

    @property
    def options(self) -> Mapping[str, Any]:
        return self.drafter.spec_options


def equivalent(
    engine: str,
    spec: str,
    *,
    draft_model: str | None = None,
    draft_tokens: int | None = None,
    planner: str | None = None,
    target: str | None = None,
) -> Equivalent:
    """What ``engine`` has for a method. ValueError where there is no such engine or method."""
    if engine not in VERSIONS:
        raise InputError(f"unknown engine {engine!r}; choose {', '.join(VERSIONS)}")
    if target is not None and engine != "vllm":
        raise InputError(f"--model is of the command for vllm, and what {engine} is given names no model; leave it out")
    if draft_tokens is not None and draft_tokens < 1:
        raise InputError(f"a draft has at least 1 token, not {draft_tokens}")
    drafter = make_drafter(spec, draft_model)
    ours = Exported(
        spec=spec,
        drafter=drafter,
        draft_model=_found(_named(drafter)),
        target=_found(target),
        apart=draft_model is not None,
        draft_tokens=draft_tokens,
        planner=planner,
    )
    lines, settings, notes = ANSWERS[engine](ours)
    if settings and planner is not None and "additional_config" not in settings:  # there it is chosen as well
        notes = (*notes, SIZED.format(planner, ours.tokens))
    return Equivalent(engine=engine, method=spec, lines=lines, settings=settings, notes=notes)


def equivalents_of_run(
    engine: str, entries: Sequence[Mapping[str, Any]], origin: Path, target: str | None = None
) -> list[Equivalent]:
    """The same for every method of ours that a benchmark's record lists, sized as it was there."""
    found = list[Equivalent]()
    for entry in entries:
        if entry.get("ours"):
            spec = str(entry.get("method") or entry["name"])
            planner = str(entry.get("planner", ""))
            size = planner.removeprefix("fixed:")
            drafts = None if "model=" in spec else entry.get("draft_model")
            tokens = int(size) if size.isdecimal() and int(size) else None
            live = planner if planner in LIVE else None
            try:
                found += [
                    equivalent(engine, spec, draft_model=drafts, draft_tokens=tokens, planner=live, target=target)
                ]
            except ValueError as error:
                raise InputError(
                    f"{origin} has {spec!r}, which cannot be exported ({error}); name a METHOD in place of --run"
                ) from None
    return found


# --- vLLM ---


def _vllm(ours: Exported) -> Answer:
    """Our own drafter inside vLLM, and as a comment vLLM's own method of the same kind; that alone where ours cannot
    serve."""
    serve = f"vllm serve {shlex.quote(ours.target) if ours.target else 'MODEL'}"
    notes = () if ours.target else ("write the name or folder of your model in place of MODEL, or give --model",)
    if ours.drafter.name == "plain":
        return (serve,), {}, ("vLLM decodes plainly where --speculative-config is left out", *notes)
    inside, own = _inside_vllm(ours), _own_of_vllm(ours)
    if inside is None and own is None:
        composed = "vLLM has no equivalent: it drafts by one method at a time"
        return _none(composed if ours.drafter.parts else _no_method("vLLM", ours))
    (first, *others) = [one for one in (inside, own) if one is not None]
    lines = [f"{serve} {first[0][0]}"]
    for (flags,), _, said in others:
        lines += ["# vLLM's own, in place of ours:", f"# {serve} {flags}"]
        notes = (*(f"vLLM's own: {note}" for note in said), *notes)
    return tuple(lines), first[1], (*first[2], REFUSED, *notes)


def _own_of_vllm(ours: Exported) -> Answer | None:
    settings: dict[str, Any]
    match ours.drafter.name:
        case "lookup":
            settings = {
                "method": "ngram",
                "num_speculative_tokens": ours.tokens,
                "prompt_lookup_min": ours.options["min_ngram"],
                "prompt_lookup_max": ours.options["max_ngram"],
            }
            earliest = "it copies from the first place with the longest n-gram, and ours from the last"
            notes = (earliest, *_reaching(ours))
        case "suffix":
            settings, notes = {"method": "suffix", "num_speculative_tokens": ours.tokens}, VLLM_SUFFIX
        case "assistant":
            settings = {"method": "draft_model", "model": ours.draft_model, "num_speculative_tokens": ours.tokens}
            add = '"use_heterogeneous_vocab": true, which drafts greedily'
            other = f"where the draft model has another tokenizer, add {add}"
            if ours.draft_model == FOREIGN:
                settings["use_heterogeneous_vocab"] = True
                other = "across tokenizers it drafts greedily, and only tokens that both have"
            sampling = 'at a temperature above 0, "draft_sample_method": "probabilistic" samples drafts, too'
            notes = (*_lost(ours, VLLM_UNSURE), sampling, other, *_boxed(ours))
        case _:
            return None
    return (f"--speculative-config {shlex.quote(json.dumps(settings, ensure_ascii=False))}",), settings, notes


def _inside_vllm(ours: Exported) -> Answer | None:
    """Our own drafter as a class of vLLM's; None for methods that cannot serve there."""
    spec, notes = absolute(ours.spec), INSIDE
    if ours.drafter.name == "auto":
        spec, notes = _auto_inside(ours), (AUTO_INSIDE, *(VLLM_MODEL if ours.draft_model else ()), *notes)
    names = {*methods_in(spec)}
    if not names <= {*SERVED}:
        return None
    settings = VLLMSettings(method=spec)
    settings.drafter()
    if names & {"dictionary", "hybrid"} and not re.search(r"file\s*=", spec):
        notes = (SHIPPED, *notes)
    tokens = ours.draft_tokens or min(ours.tokens, CHAIN)
    data = {"speculative_config": settings.speculative(tokens), "additional_config": settings.additional()}
    return (settings.flags(tokens),), data, notes


def _auto_inside(ours: Exported) -> str:
    """The parts of `auto` that serve inside vLLM."""
    named = ours.options["dictionary"]
    return AUTO if named in (SHIPPED_DICTIONARIES, NONE) else f"{AUTO}+dictionary:file={file_names(named)}"


# --- llama.cpp ---


def _llama_cpp(ours: Exported) -> Answer:
    """``lookup,assistant`` carries over, since llama.cpp asks methods without a model first. Each part of ours drafts
    as much as the largest of them would alone."""
    drafter, parts = ours.drafter, ours.drafter.parts or (ours.drafter,)
    names = [part.name for part in parts]
    foreign = ours.draft_model == FOREIGN
    if drafter.name == "plain":
        return _none("llama.cpp decodes plainly where --spec-type is left out")
    if drafter.name in TURNS and (names != ["lookup", "assistant"] or foreign):
        return _none("llama.cpp has no equivalent: it asks n-grams before draft models, one of each")
    if drafter.parts and drafter.name not in TURNS:
        return _none("llama.cpp has no equivalent: it scores no trees, so no two methods draft for one round")
    if not {*names} <= {"lookup", "assistant"}:
        return _none(_no_method("llama.cpp", ours))
    if foreign:
        return _none("llama.cpp has no equivalent: its draft model needs the target's vocabulary")
    flags, notes, kinds = dict[str, Any](), list[str](), list[str]()
    for part in parts:
        one = replace(ours, drafter=part, draft_tokens=ours.tokens) if drafter.parts else ours
        if part.name == "lookup":
            kinds.append("ngram-simple")
            sizes = ("--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m")
            flags |= dict(zip(sizes, (one.options["max_ngram"], ours.tokens), strict=True))
            notes += _ngram_notes(one)
        else:
            kinds.append("draft-simple")
            flags |= {"--spec-draft-model": one.draft_model, "--spec-draft-n-max": one.tokens}
            flags |= {"--spec-draft-p-min": confidence} if (confidence := one.options["confidence"]) else {}
            sampling = "at a temperature above 0, --spec-draft-sampling probabilistic samples drafts, too"
            file = "the draft model is a GGUF file there, with the target's vocabulary; write its path"
            notes += [*_lost(one, PER_TOKEN), sampling, file, *_boxed(one)]
    words = {"--spec-type": ",".join(kinds), **flags}
    return (shlex.join(str(word) for pair in words.items() for word in pair),), flags, tuple(notes)


def _ngram_notes(ours: Exported) -> tuple[str, ...]:
    longest, shortest = ours.options["max_ngram"], ours.options["min_ngram"]
    if longest == shortest:
        return _reaching(ours)
    sizes = f"{longest} down to {shortest}"
    single = f"it looks for n-grams of one length only, where ours tries {sizes}, so it drafts less often"
    return single, *_reaching(ours)


# --- transformers ---


def _transformers(ours: Exported) -> Answer:
    drafter, inside = ours.drafter, _custom_generate(ours)
    if drafter.name == "plain":
        return ("model.generate(**inputs)",), {}, ("nothing to add",)
    if drafter.name == "lookup":
        settings = {"prompt_lookup_num_tokens": ours.tokens, "max_matching_ngram_size": ours.options["max_ngram"]}
        call = f"model.generate(**inputs, {', '.join(f'{name}={value!r}' for name, value in settings.items())})"
        first = "it copies from the first place with the n-gram, and ours from the last"
        shortest = () if ours.options["min_ngram"] == 1 else ("it always goes down to n-grams of one token",)
        return (call, *inside), settings, (first, *shortest, *_reaching(ours))
    if drafter.name == "assistant":
        return _assisted(ours, inside)
    own = f"transformers has no equivalent of {ours.spec}" if drafter.parts else _no_method("transformers", ours)
    return inside, {}, (f"{own}; our loop runs inside its generate",)


def _assisted(ours: Exported, inside: tuple[str, ...]) -> Answer:
    """transformers reads how to draft from the settings of the draft model, not from the call's."""
    settings = {
        "num_assistant_tokens": ours.tokens,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": ours.options["confidence"],
    }
    lines = [f"draft = AutoModelForCausalLM.from_pretrained({ours.draft_model!r})"]
    arguments = "assistant_model=draft"
    other = "where the draft model has another tokenizer, give both: tokenizer=..., assistant_tokenizer=..."
    if ours.draft_model == FOREIGN:
        lines.append(f"theirs = AutoTokenizer.from_pretrained({ours.draft_model!r})")
        arguments += ", tokenizer=tokenizer, assistant_tokenizer=theirs"
        other = "across tokenizers keep to do_sample=False: version 5.24 samples by another law there"
    lines += [f"draft.generation_config.{name} = {value!r}" for name, value in settings.items()]
    lines += [f"model.generate(**inputs, {arguments})", *inside]
    notes = (*_lost(ours, PER_TOKEN), other, *_boxed(ours))
    return tuple(lines), {"assistant_model": ours.draft_model, **settings}, notes


def _custom_generate(ours: Exported) -> tuple[str, ...]:
    """Our own loop in their `generate`, which has every method as it is here."""
    model = "" if not ours.apart else f", draft_model={ours.draft_model!r}"
    planner = ours.planner if ours.draft_tokens is None else f"fixed:{ours.draft_tokens}"
    size = "" if planner is None else f', planner="{planner}"'
    return (
        "# our own loop, with nothing lost:",
        f"model.generate(**inputs, custom_generate=paceline.custom_generate({ours.spec!r}{model}{size}))",
    )


# --- what does not carry over ---


def _none(note: str) -> Answer:
    return (), {}, (note,)


def _no_method(engine: str, ours: Exported) -> str:
    """For methods that an engine does not have, our own or another package's."""
    if ours.spec.partition(":")[0] in BUILT_IN:
        return f"{engine} has no equivalent of {ours.spec}"
    return f"{engine} has no equivalent of {ours.spec}, a method of another package"


def _reaching(ours: Exported) -> tuple[str, ...]:
    """Options of ours that change what is copied."""
    options = [name for name in ("chain", "next") if ours.options[name]]
    return (f"it has no equivalent of {' and '.join(options)}",) if options else ()


def _lost(ours: Exported, unsure: str) -> tuple[str, ...]:
    """Features of model drafts that no other engine has; ``unsure`` is about drafts that end where the model is
    unsure."""
    options = ours.options
    trees = [f"{name}={options[name]}" for name in ("beams", "top") if options[name] > 1]
    return (
        *((NO_TREE.format(" and ".join(trees), ours.tokens),) if trees else ()),
        *((NO_COUPLING,) if options["noise"] == "shared" else ()),
        *((unsure,) if options["confidence"] else ()),
    )


def _boxed(ours: Exported) -> tuple[str, ...]:
    named = ours.draft_model
    return (f"{named} is bundled with paceline; save or convert it first",) if named in POCKET_NAMES else ()


def _found(model: str | None) -> str | None:
    """A model's folder by its absolute path; the name of one on a hub as it is."""
    if model is None or not (Path(model).exists() or model.startswith((".", "/", "~"))):
        return model
    if not Path(model).is_dir():
        raise InputError(f"there is no folder {model} of a model")
    return str(Path(model).absolute())


def _named(drafter: Drafter) -> str | None:
    """The draft model that a spec names itself."""
    if isinstance(named := drafter.spec_options.get(MODEL), (str, Path)):
        return str(named)
    return next((name for part in drafter.parts if (name := _named(part)) is not None), None)


ANSWERS: dict[str, Callable[[Exported], Answer]] = {
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "transformers": _transformers,
}
