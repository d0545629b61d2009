"""Every causal LM of the installed transformers, tiny and random: does it write here what it writes there?

Transformers' own greedy text, one prompt at a time, is the reference. It is compared with plain decoding, with drafts
that know the text and give every true token false siblings, with all prompts in one batch, and with `custom_generate`.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from logging import CRITICAL
from typing import Any

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import get_verbosity, set_verbosity

from paceline.check.adversaries import OracleDrafter
from paceline.check.tiny import VARIANTS, VOCABULARY, build, configuration
from paceline.context import Context, Ending, Ints
from paceline.drafters import Plain
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.errors import InputError
from paceline.integrations.transformers import custom_generate
from paceline.law import Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.hf.load import load_target
from paceline.targets.hf.target import HFTarget, refuse_recurrent

PROMPTS = (3, 13, 21)
"""Lengths: before the positions where a tiny model starts to compute differently, between them, and past some."""
NEW_TOKENS = 24
NODES = 10
SEEDS = 4
VARIED = 5
"""A text of fewer different tokens would hide mistakes; another seed is tried."""
TIE = 1e-4
"""Two best tokens closer than this share of the logits' deviation may change places between kernels."""


class Support(StrEnum):
    """The verdict on a configuration, best first."""

    EXACT = "exact"
    CHAINS = "chains"
    """Exact, with drafts clipped to chains."""
    ALONE = "alone"
    """Exact, with one sequence per forward."""
    SHORT = "short"
    """Exact up to a position, past which the model is not used."""
    DISAGREES = "transformers disagrees"
    """Our text is what the model's own forward over the whole text gives; `generate` gives another one, because it
    keeps its cache in another way."""
    REFUSED = "refused"
    UNAVAILABLE = "not tried"
    """No tiny model of it could be built, or transformers fails to write with it."""
    WRONG = "wrong"
    CRASH = "crash"


FAILURES = frozenset({Support.WRONG, Support.CRASH})


@dataclass(frozen=True)
class Examined:
    """One configuration and what became of it."""

    model_type: str
    variant: str
    verdict: Support
    reason: str = ""


def sweep(types: Sequence[str] = (), progress: Callable[[str, int, int], None] = lambda *_: None) -> Iterator[Examined]:
    """Try every variant of every type; all types that transformers knows unless some are named."""
    if unknown := sorted(set(types) - set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        raise InputError(f"transformers has no causal language model of type {unknown[0]!r}")
    names = list(types or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    verbosity = get_verbosity()
    set_verbosity(CRITICAL)
    try:
        for number, name in enumerate(names):
            for variant in VARIANTS:
                progress(f"{name} {variant}", number, len(names))
                if (found := examine(name, variant)) is not None:
                    yield found
    finally:
        set_verbosity(verbosity)


def examine(model_type: str, variant: str) -> Examined | None:
    """One variant of a type; None where the type has no such variant."""
    try:
        config = configuration(model_type, variant)
    except Exception as error:  # whatever a configuration class may raise
        return Examined(model_type, variant, Support.UNAVAILABLE, _said(error))
    if config is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Examined(model_type, variant, *_verdict(config))


def _verdict(config: PreTrainedConfig) -> tuple[Support, str]:
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if_value_error, if_other = Support.REFUSED, Support.CRASH
    try:
        refuse_recurrent(config, model_class)
        if_value_error = if_other = Support.UNAVAILABLE
        seed, references = _references(config)
        model = build(config, seed)
        if_value_error, if_other = Support.REFUSED, Support.CRASH
        target = load_target(model)
        if_value_error = Support.CRASH
        fitting = [each for each in references if each.prompt < (target.context_length or np.inf)]
        texts = dict(_texts(target, fitting))
    except Exception as error:  # whatever a model may raise
        return if_value_error if isinstance(error, ValueError) else if_other, _said(error)
    if differing := [way for way, written in texts.items() if not _equal(written, fitting)]:
        own = [_without_cache(config, seed, each) for each in fitting]
        agreed = all(_equal(written, own) for written in texts.values())
        return Support.DISAGREES if agreed else Support.WRONG, ", ".join(differing)
    how = f"{target.mode}{'' if target.limits.trees else ', chains'}"
    if target.context_length is not None and target.context_length < len(references[-1].tokens):
        return Support.SHORT, f"{how}, up to position {target.context_length}"
    if target.limits.alone:
        return Support.ALONE, how
    return (Support.EXACT if target.limits.trees else Support.CHAINS), how


@dataclass(frozen=True)
class Reference:
    """The text of transformers after a prompt, and the logits it chose from."""

    tokens: Ints
    prompt: int
    logits: torch.Tensor


def _references(config: PreTrainedConfig) -> tuple[int, list[Reference]]:
    """A seed and transformers' greedy texts under it; a seed whose texts do not repeat, if there is one."""
    for seed in range(SEEDS):
        references = [_generated(config, seed, length) for length in PROMPTS]
        if all(len(np.unique(each.tokens[each.prompt :])) >= VARIED for each in references):
            break
    return seed, references


def _generated(config: PreTrainedConfig, seed: int, length: int) -> Reference:
    """A reference by a new model, since a rotary embedding may remember the longest text that it has seen."""
    prompt = np.random.default_rng(length).integers(2, VOCABULARY, length)
    found = _generate(build(config, seed), prompt, NEW_TOKENS, return_dict_in_generate=True, output_logits=True)
    logits = torch.cat(found.logits)
    if not logits.isfinite().any(dim=-1).all() or logits.isnan().any():
        raise InputError("the tiny model's logits are not numbers")
    return Reference(found.sequences[0].numpy(), length, logits)


def _generate(model: Any, prompt: Ints, count: int, **options: Any) -> Any:
    ids = torch.from_numpy(prompt)[None]
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **options)


def _without_cache(config: PreTrainedConfig, seed: int, reference: Reference) -> Reference:
    """The greedy text by the model's forward over all of it, again for each token."""
    tokens, rows = reference.tokens[: reference.prompt], []
    for _ in range(NEW_TOKENS):
        ids = torch.from_numpy(tokens)[None]
        model: Any = build(config, seed)
        with torch.no_grad():
            rows.append(model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1:])
        tokens = np.append(tokens, int(rows[-1].argmax()))
    return Reference(tokens, reference.prompt, torch.cat(rows))


def _texts(target: HFTarget, references: Sequence[Reference]) -> Iterator[tuple[str, list[Ints]]]:
    """Every way of writing, with its texts."""
    for way, tree in (("plain", None), ("chains", False), ("trees", True)):
        sessions = [_session(target, each, tree) for each in references]
        for session in sessions:
            list(run(session))
        yield way, [session.context.tokens for session in sessions]
        sessions = [_session(target, each, tree) for each in references]
        with Batch(target) as batch:
            for session in sessions:
                batch.join(session)
            while len(batch):
                batch.step()
        yield f"{way} in a batch", [session.context.tokens for session in sessions]
    yield "inside generate", [_inside_generate(target, each) for each in references]


def _session(target: HFTarget, reference: Reference, tree: bool | None) -> Session:
    """About to write a text, by drafts of it in trees or chains, or by none."""
    ending = Ending(max_new_tokens=NEW_TOKENS, context_length=target.context_length)
    context = Context(reference.tokens[: reference.prompt], Sampling(), ending)
    drafter = Plain() if tree is None else OracleDrafter(reference.tokens, VOCABULARY, tree=tree)
    return Session(context, target, target.open(), drafter, Fixed(0 if tree is None else NODES), checked=True)


def _inside_generate(target: HFTarget, reference: Reference) -> Ints:
    room = NEW_TOKENS if target.trusted is None else target.trusted - reference.prompt
    ours = custom_generate(OracleDrafter(reference.tokens, VOCABULARY, tree=True), planner=f"fixed:{NODES}")
    prompt = reference.tokens[: reference.prompt]
    tokens: Ints = _generate(target.model, prompt, min(NEW_TOKENS, room), custom_generate=ours)[0].numpy()
    return tokens


def _equal(texts: Sequence[Ints], references: Sequence[Reference]) -> bool:
    return all(_same(text, reference) for text, reference in zip(texts, references, strict=True))


def _same(text: Ints, reference: Reference) -> bool:
    """Whether a text is the reference, as far as it goes, or leaves it where the two best tokens tie."""
    n = min(len(text), len(reference.tokens))
    differ = np.flatnonzero(text[:n] != reference.tokens[:n])
    if not len(differ):
        return n > reference.prompt
    row = reference.logits[int(differ[0]) - reference.prompt].double()
    best = row.topk(2).values
    return bool(best[0] - best[1] < TIE * row[row.isfinite()].std())


def _said(error: Exception) -> str:
    said = str(error).partition("\n")[0] or type(error).__name__
    where = traceback.extract_tb(error.__traceback__)[-1]
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said} ({where.name})"
