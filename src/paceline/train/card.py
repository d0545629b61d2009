"""The card of the bundled models: what they are, what they were trained on, how good they are, and at what not."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from paceline.context import Context, Ending
from paceline.drafters import Plain
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.files import write_whole
from paceline.law import Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.hf.load import load_target
from paceline.targets.hf.packed import parameter_count
from paceline.targets.hf.target import HFTarget
from paceline.train.corpus import Text
from paceline.train.loop import held_out_loss
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary

CARD = "CARD.md"
CHARACTERS = 120_000
"""How much held-out text of each kind is read; spread over all of it, the same for every model."""
WINDOW = 1024
SEED, TEMPERATURE, LENGTH = 7, 0.8, 80
PROMPTS = {
    "en": "The old house stood at the end of the lane, and",
    "pl": "Stary dom stał na końcu drogi, a",
    "uk": "Старий будинок стояв край дороги, і",
}

FRAME = """# The bundled models

Three small Llama models, made by this project for its tests, demonstrations and benchmarks: `pocket`, the model whose
text is written; `pocket-draft`, which drafts for it with the same tokenizer and was trained to agree with it; and
`pocket-foreign`, a drafter with a tokenizer of another kind. Languages: English, Polish, Ukrainian. Weights are
bfloat16 and shipped in the package. Once shipped they stay as they are, and numbers are told with their fingerprints.

{models}

All have heads of 64 channels, keys and values shared by two heads each, RMS norms, rotary positions up to {positions},
one matrix for embedding and head. `byte-level` is byte-pair encoding over bytes, `unigram` a unigram language model
over pieces with bytes for what no piece covers. Spelled-out byte names such as `<0x41>` and the mark `▁` are read by
`unigram` as what they stand for.

## How well they predict

Held-out text: the last {held_out:.0%} of every source, never trained on (of novels: other books), at most about
{characters:,} characters of each kind, in windows of up to {window:,} tokens, weights as shipped, computed in float32.
Nats per token, and in brackets bits per byte, which compare across tokenizers.

{losses}

## What they write

`pocket` at temperature {temperature}, seed {seed}, {length} tokens, in float32. Nothing was picked.

```
paceline generate PROMPT --model pocket --dtype float32 --temperature {temperature} --seed {seed} \\
    --max-new-tokens {length}
```

{samples}

## What they are not

They are tiny and have read old novels, some documentation and learners' essays. They know no facts, follow no
instructions, and write other languages or code badly if at all. What they write may repeat the prejudices of
nineteenth-century fiction. Acceptance and speed measured on them say how a method works, not what it brings to a large
model.

## Trained on

{sources}

Characters are those trained on, once through; sources with a factor were read that many times per pass. The texts were
divided into passages, nothing else was changed. `pocket-draft` was trained on the predictions of `pocket` for the same
text.

## Licence

The weights are Apache-2.0, like the project. The list above is the attribution that CC BY asks for.

## How to make them again

```
python -m paceline.train.pocket --text FOLDER --work build/pocket --install
```

with the files of the list in `FOLDER`. A run that was stopped goes on where it last saved. Threads and compiler decide
the last bits, so weights made elsewhere are as good and not the same.
"""


@dataclass(frozen=True, kw_only=True)
class Maker:
    """What the card tells of a model that is not in its files."""

    name: str
    tokenizer: str
    tokens: int
    teacher: str | None


def write_card(folder: Path, makers: Sequence[Maker], texts: Sequence[Text], held_out: float) -> None:
    """Beside the finished models of ``folder``."""
    measured = [Measured(maker, folder / maker.name) for maker in makers]
    card = FRAME.format(
        models=_models(measured),
        positions=measured[0].target.context_length,
        held_out=held_out,
        characters=CHARACTERS,
        window=WINDOW,
        losses=_losses(measured, held_out_texts(texts)),
        temperature=TEMPERATURE,
        seed=SEED,
        length=LENGTH,
        samples=_samples(measured[0]),
        sources=_sources(texts),
    )
    write_whole(folder / CARD, card)


class Measured:
    """A finished model: its fingerprint as shipped, its predictions in float32."""

    def __init__(self, maker: Maker, folder: Path) -> None:
        self.maker = maker
        self.fingerprint = load_target(folder).fingerprint()
        self.target: HFTarget = load_target(folder, dtype="float32")
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    def loss(self, passages: Sequence[str]) -> tuple[float, float]:
        """Nats per token and bits per byte."""
        rows = self.tokenizer(list(passages), add_special_tokens=False, verbose=False)["input_ids"]
        end = next(iter(self.target.eos))
        tokens = np.concatenate([np.asarray([end, *row], np.uint16) for row in rows])
        nats = held_out_loss(self.target.model, tokens, min(WINDOW, len(tokens) - 1))
        size = sum(len(passage.encode()) for passage in passages)
        return nats, nats * len(tokens) / size / math.log(2)

    def sample(self, prompt: str) -> str:
        """A text as `paceline generate` writes it."""
        vocabulary = Vocabulary.of(self.tokenizer)
        ending = Ending(max_new_tokens=LENGTH, eos=self.target.eos, context_length=self.target.context_length)
        context = Context(vocabulary.encode(prompt), Sampling(temperature=TEMPERATURE, seed=SEED), ending)
        session = Session(
            context=context,
            target=self.target,
            rows=self.target.open(),
            drafter=Plain(),
            planner=Fixed(1),
            rule=Rule.COUPLED,
        )
        return vocabulary.text(emission.token for emission in run(session))


def held_out_texts(texts: Sequence[Text]) -> dict[str, list[str]]:
    """Held-out passages by kind, about as much of each."""
    pools: dict[str, list[str]] = {}
    for text in texts:
        kind = f"{text.source.language} {'technical' if text.source.technical else 'prose'}"
        pools.setdefault(kind, []).extend(text.held_out)
    return {kind: pool[:: max(1, sum(map(len, pool)) // CHARACTERS)] for kind, pool in sorted(pools.items())}


def _models(measured: Sequence[Measured]) -> str:
    rows = []
    for each in measured:
        maker, config = each.maker, each.target.model.config
        count = parameter_count(each.target.model)
        shape = (
            f"{config.num_hidden_layers} layers, {config.hidden_size} wide, MLP {config.intermediate_size}, "
            f"{config.num_attention_heads} heads on {config.num_key_value_heads}"
        )
        taught = f", taught by `{maker.teacher}`" if maker.teacher else ""
        kind, tokens = f"{maker.tokenizer}, {config.vocab_size:,}", f"{maker.tokens:,}{taught}"
        rows.append([f"`{maker.name}`", f"{count:,}", shape, kind, tokens, f"`{each.fingerprint}`"])
    return _table(["model", "parameters", "shape", "tokenizer, ids", "trained on tokens", "fingerprint"], rows)


def _losses(measured: Sequence[Measured], kinds: dict[str, list[str]]) -> str:
    rows = []
    for kind, passages in kinds.items():
        found = [each.loss(passages) for each in measured]
        rows.append([kind, *(f"{nats:.3f} ({bits:.3f})" for nats, bits in found)])
    return _table(["text", *(f"`{each.maker.name}`" for each in measured)], rows)


def _samples(measured: Measured) -> str:
    told = []
    for language, prompt in PROMPTS.items():
        written = re.sub(r"([`*_<\\])", r"\\\1", measured.sample(prompt))
        lines = f"**{prompt}**{written}".splitlines()
        told.append(f"{language}:\n\n" + "\n>\n".join(f"> {line}" for line in lines))
    return "\n\n".join(told)


def _sources(texts: Sequence[Text]) -> str:
    rows = []
    for text in texts:
        repository, _, version = text.source.origin.partition(" @ ")
        characters = sum(map(len, text.training))
        factor = f" x {text.source.repeats}" if text.source.repeats > 1 else ""
        origin = f"[{repository}](https://github.com/{repository}) @ {version}"
        rows.append([text.source.file, text.source.language, f"{characters:,}{factor}", origin, text.source.licence])
    return _table(["file", "language", "characters", "origin", "licence"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
