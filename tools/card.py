"""The cards of what is shipped: what it is, what it was made from, how good it is, and at what not."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.api.model import LanguageModel, load
from paceline.targets.hf.packed import parameter_count
from paceline.targets.hf.target import HFTarget
from paceline_make import cards
from paceline_make.models.loop import held_out_loss
from tools.corpus import HELD_OUT_SHARE, CorpusText
from tools.plans import ModelPlan

TEMPLATES = Path(__file__).parent / "cards"
CHARACTERS = 120_000
"""How much held-out text of each kind is read; from all over it, the same for every model."""
WINDOW = 1024
SEED, TEMPERATURE, LENGTH = 7, 0.8, 80
PROMPTS = {
    "en": "The old house stood at the end of the lane, and",
    "pl": "Stary dom stał na końcu drogi, a",
    "uk": "Старий будинок стояв край дороги, і",
}


def write_models_card(folder: Path, plans: Sequence[ModelPlan], texts: Sequence[CorpusText]) -> None:
    """Beside the finished models of ``folder``."""
    models = {plan.name: load(folder / plan.name, dtype="float32") for plan in plans}
    losses = [
        [kind, *("{:.3f} ({:.3f})".format(*loss(model, passages)) for model in models.values())]
        for kind, passages in held_out_texts(texts).items()
    ]
    cards.write(
        folder,
        TEMPLATES / "models.md",
        models=[_row(plan, folder, models[plan.name]) for plan in plans],
        names=[f"`{name}`" for name in models],
        positions=models[plans[0].name].target.context_length,
        held_out=f"{HELD_OUT_SHARE:.0%}",
        characters=f"{CHARACTERS:,}",
        window=f"{WINDOW:,}",
        losses=losses,
        temperature=TEMPERATURE,
        seed=SEED,
        length=LENGTH,
        samples=[(language, _sample(models[plans[0].name], prompt)) for language, prompt in PROMPTS.items()],
        sources=[source_row(text) for text in texts],
    )


def _row(plan: ModelPlan, folder: Path, model: LanguageModel) -> list[str]:
    target = model.target
    assert isinstance(target, HFTarget), "a bundled model is one of transformers'"
    config = target.model.config
    shape = (
        f"{config.num_hidden_layers} layers, {config.hidden_size} wide, MLP {config.intermediate_size}, "
        f"{config.num_attention_heads} heads on {config.num_key_value_heads}"
    )
    tokens = plan.schedule.steps * plan.schedule.tokens_per_step
    taught = f", taught by `{plan.teacher}`" if plan.teacher else ""
    fingerprint = load(folder / plan.name).target.fingerprint()  # of the weights as shipped
    return [
        f"`{plan.name}`",
        f"{parameter_count(target.model):,}",
        shape,
        f"{plan.tokenizer}, {config.vocab_size:,}",
        f"{tokens:,}{taught}",
        f"`{fingerprint}`",
    ]


def loss(model: LanguageModel, passages: Sequence[str]) -> tuple[float, float]:
    """Nats per token and bits per byte."""
    target, vocabulary = model.target, model.vocabulary
    assert isinstance(target, HFTarget), "a bundled model is one of transformers'"
    assert vocabulary is not None, "a bundled model has its tokenizer beside it"
    end = next(iter(target.eos))
    rows = [[end, *vocabulary.encode(passage, add_special=False).tolist()] for passage in passages]
    tokens = np.concatenate(rows).astype(np.uint16)
    nats = held_out_loss(target.model, tokens, min(WINDOW, len(tokens) - 1))
    size = sum(len(passage.encode()) for passage in passages)
    return nats, nats * len(tokens) / size / math.log(2)


def held_out_texts(texts: Sequence[CorpusText]) -> dict[str, list[str]]:
    """Held-out passages by kind, about as much of each."""
    pools: dict[str, list[str]] = {}
    for text in texts:
        kind = f"{text.source.language} {'technical' if text.source.technical else 'prose'}"
        pools.setdefault(kind, []).extend(text.held_out)
    return {kind: pool[:: max(1, sum(map(len, pool)) // CHARACTERS)] for kind, pool in sorted(pools.items())}


def _sample(model: LanguageModel, prompt: str) -> list[str]:
    """The lines of a text as `paceline generate` writes it, quoted in Markdown."""
    written = model.generate(prompt, method="plain", temperature=TEMPERATURE, seed=SEED, max_new_tokens=LENGTH).text
    written = re.sub(r"([`*_<\\])", r"\\\1", written)
    return [f"> {line}" for line in f"**{prompt}**{written}".splitlines()]


def source_row(text: CorpusText) -> list[str]:
    """File, language, characters, origin and licence."""
    source = text.source
    repository, _, version = source.origin.partition(" @ ")
    factor = f" x {source.repeats}" if source.repeats > 1 else ""
    characters = f"{sum(map(len, text.training)):,}{factor}"
    origin = f"[{repository}](https://github.com/{repository}) @ {version}"
    return [source.file, source.language, characters, origin, source.licence]
