"""Every causal LM of the installed transformers, tiny and random: does it write here what it writes there?

Each is saved to a folder by transformers and opened from it, here and there. Transformers' own greedy text, one prompt
at a time, is the reference. It is compared with plain decoding, with drafts that know the text and give every true
token false siblings, with all prompts in one batch, and with `custom_generate`.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from logging import CRITICAL
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from paceline.context import Context, Ending, Ints
from paceline.drafters import Plain
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.errors import InputError, UnsupportedModel
from paceline.files import workplace
from paceline.integrations.transformers import custom_generate
from paceline.law import Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.hf.folder import listed
from paceline.targets.hf.load import load_target
from paceline.targets.hf.target import HFTarget
from paceline_lab.check.adversaries import OracleDrafter
from paceline_lab.check.tiny import TINY_VARIANTS, TINY_VOCABULARY, build, configuration

PROMPTS = (3, 13, 21)
"""Lengths: before the positions where a tiny model starts to compute differently, between them, and past some."""
NEW_TOKENS = 24
NODES = 10
SEEDS = 4
VARIED = 5
"""A text of fewer different tokens would hide mistakes; another seed is tried."""
SHARD = "100KB"
"""The most bytes of a file of weights, so that a model is saved in several."""
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
    """No tiny model of it could be built, or transformers fails to save it, to open what it saved, or to write with
    it."""
    WRONG = "wrong"
    CRASH = "crash"


FAMILY_FAILURES = frozenset({Support.WRONG, Support.CRASH})


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
    with _silent():
        for number, name in enumerate(names):
            for variant in TINY_VARIANTS:
                progress(f"{name} {variant}", number, len(names))
                if (found := examine(name, variant)) is not None:
                    yield found


@contextmanager
def _silent() -> Iterator[None]:
    """Without transformers' log and progress bars."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


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
    with workplace() as place:
        try:
            return _compared(config, place)
        except _EndedError as ended:
            return ended.verdict, ended.reason
        except Exception as error:  # whatever a model may raise
            return Support.CRASH, _said(error)


class _EndedError(Exception):
    """There are no texts to compare."""

    def __init__(self, verdict: Support, reason: str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


@contextmanager
def _not_tried(what: str = "") -> Iterator[None]:
    """A step of transformers alone; no verdict on Paceline follows from its failure."""
    try:
        yield
    except Exception as error:  # whatever a model may raise
        raise _EndedError(Support.UNAVAILABLE, what + _said(error)) from error


def _compared(config: PreTrainedConfig, place: Path) -> tuple[Support, str]:
    _refuse(config, place / "configuration")
    for seed in range(SEEDS):
        saved = Saved(config, seed, place / str(seed))
        target = _opened(saved)
        references = [saved.written(length) for length in PROMPTS]
        if all(len(np.unique(each.tokens[each.prompt :])) >= VARIED for each in references):
            break
    fitting = [each for each in references if each.prompt < (target.context_length or np.inf)]
    texts = dict(_texts(target, saved, fitting))
    if differing := [way for way, written in texts.items() if not _equal(written, fitting)]:
        own = [saved.rewritten(each) for each in fitting]
        agreed = all(_equal(written, own) for written in texts.values())
        return Support.DISAGREES if agreed else Support.WRONG, ", ".join(differing)
    how = f"{target.mode}{'' if target.limits.trees else ', chains'}"
    if target.context_length is not None and target.context_length < len(references[-1].tokens):
        return Support.SHORT, f"{how}, up to position {target.context_length}"
    if target.limits.alone:
        return Support.ALONE, how
    return (Support.EXACT if target.limits.trees else Support.CHAINS), how


def _refuse(config: PreTrainedConfig, folder: Path) -> None:
    """A model that is refused for its configuration needs no weights."""
    with _not_tried("transformers does not save it: "):
        config.save_pretrained(folder)
    try:
        load_target(folder, device="cpu")
    except UnsupportedModel as error:
        raise _EndedError(Support.REFUSED, _said(error)) from error
    except InputError:  # which says that there are none
        pass


def _opened(saved: Saved) -> HFTarget:
    """As Paceline opens the folder. It may refuse the model, but must open every folder that transformers opens."""
    try:
        return load_target(saved.folder, device="cpu")  # where the model that it is compared with is
    except UnsupportedModel as error:
        raise _EndedError(Support.REFUSED, saved.reason(error)) from error
    except Exception as error:  # whatever a model may raise
        _ = saved.model
        raise _EndedError(Support.CRASH, saved.reason(error)) from error


@dataclass(frozen=True)
class Reference:
    """The text of transformers after a prompt, and the logits it chose from."""

    tokens: Ints
    prompt: int
    logits: torch.Tensor


class Saved:
    """A tiny model in a folder, and what transformers writes with it."""

    def __init__(self, config: PreTrainedConfig, seed: int, folder: Path) -> None:
        self.folder = folder
        self._type = config.model_type
        with _not_tried():
            model = build(config, seed)
        with _not_tried("transformers does not save it: "):
            model.save_pretrained(folder, max_shard_size=SHARD)

    @cached_property
    def model(self) -> Any:
        """As transformers opens it."""
        with _not_tried("transformers does not open what it saves: "):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.folder, output_loading_info=True, trust_remote_code=False
            )
            model, found = loaded
            if lost := sorted(found["missing_keys"]):
                raise InputError(f"without {listed(lost)}")
        return model

    def fresh(self) -> Any:
        """A copy of it, since a rotary embedding may remember the longest text that it has seen."""
        return copy.deepcopy(self.model)

    def reason(self, error: Exception) -> str:
        """An error with the type in place of the folder."""
        return _said(error).replace(str(self.folder), self._type)

    def written(self, length: int) -> Reference:
        """The greedy text after a prompt of that length."""
        prompt = np.random.default_rng(length).integers(2, TINY_VOCABULARY, length)
        with _not_tried():
            found = _generate(self.fresh(), prompt, NEW_TOKENS, return_dict_in_generate=True, output_logits=True)
            logits = torch.cat(found.logits)
            if not logits.isfinite().any(dim=-1).all() or logits.isnan().any():
                raise InputError("the tiny model's logits are not numbers")
        return Reference(found.sequences[0].numpy(), length, logits)

    def rewritten(self, reference: Reference) -> Reference:
        """The greedy text by the model's forward over all of it, again for each token."""
        tokens, rows = reference.tokens[: reference.prompt], []
        for _ in range(NEW_TOKENS):
            ids = torch.from_numpy(tokens)[None]
            with torch.no_grad():
                found = self.fresh()(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
            rows.append(found.logits[0, -1:])
            tokens = np.append(tokens, int(rows[-1].argmax()))
        return Reference(tokens, reference.prompt, torch.cat(rows))


def _generate(model: Any, prompt: Ints, count: int, **options: Any) -> Any:
    ids = torch.from_numpy(prompt)[None]
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **options)


def _texts(target: HFTarget, saved: Saved, references: Sequence[Reference]) -> Iterator[tuple[str, list[Ints]]]:
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
    model = saved.fresh()
    yield "inside generate", [_inside_generate(model, target.trusted, each) for each in references]


def _session(target: HFTarget, reference: Reference, tree: bool | None) -> Session:
    """About to write a text, by drafts of it in trees or chains, or by none."""
    ending = Ending(max_new_tokens=NEW_TOKENS, context_length=target.context_length)
    context = Context(reference.tokens[: reference.prompt], Sampling(), ending)
    drafter = Plain() if tree is None else OracleDrafter(reference.tokens, TINY_VOCABULARY, tree=tree)
    return Session(context, target, target.open(), drafter, Fixed(0 if tree is None else NODES), checked=True)


def _inside_generate(model: Any, trusted: int | None, reference: Reference) -> Ints:
    room = NEW_TOKENS if trusted is None else trusted - reference.prompt
    ours = custom_generate(OracleDrafter(reference.tokens, TINY_VOCABULARY, tree=True), planner=f"fixed:{NODES}")
    prompt = reference.tokens[: reference.prompt]
    tokens: Ints = _generate(model, prompt, min(NEW_TOKENS, room), custom_generate=ours)[0].numpy()
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
