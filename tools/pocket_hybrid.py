"""Trains `pocket-hybrid`: a small model of gated-delta layers and attention, whose text means something.

    PYTHONPATH=src python -m tools.pocket_hybrid --text ../shared/data/text --minutes 4 --out build/hybrid

Needs a GPU, torch, transformers and numpy. The texts and the tokenizer are those of `pocket`. The folder is written
anew every 20 seconds, so that a run which is killed leaves a model.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from paceline_make.models.loop import windows
from tools.corpus import read
from tools.plans import POSITIONS, WRITES

TOKENIZER = Path(__file__).parent.parent / "src/paceline/targets/pocket/models/pocket"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
END_ID = 0
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
"""Three gated-delta layers, then one of attention, twice: the pattern of Qwen3.5."""
REPORT_SECONDS = 20
BEGINNINGS = ("It was the", "Pewnego dnia", "Було це")

Rows = NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How much text a step reads and how fast it learns. The last share of the time has long windows, so that attention
    has seen the positions at which it will be used."""

    window: int = 512
    long_window: int = 2048
    long_share: float = 0.15
    tokens_per_step: int = 64 * 512
    peak_rate: float = 4e-3
    last_rate: float = 1e-4
    warmup_share: float = 0.03
    decay: float = 0.1
    seed: int = 0

    def rate(self, share: float) -> float:
        """The learning rate after a share of the time: a straight line up, then a half cosine down."""
        if share < self.warmup_share:
            return self.peak_rate * max(share / self.warmup_share, 0.01)
        done = min(1.0, (share - self.warmup_share) / (1 - self.warmup_share))
        return self.last_rate + (self.peak_rate - self.last_rate) * (1 + math.cos(math.pi * done)) / 2

    def window_at(self, share: float) -> int:
        return self.window if share < 1 - self.long_share else self.long_window


class Trainer:
    """A model, its optimizer and its text on one device."""

    def __init__(self, model: Qwen3_5ForCausalLM, tokens: Rows, recipe: Recipe) -> None:
        self.model, self.recipe, self.steps = model, recipe, 0
        self._device = next(model.parameters()).device
        self._tokens = tokens
        self._rows: dict[int, Iterator[torch.Tensor]] = {}
        matrices = [weight for weight in model.parameters() if weight.ndim == 2]
        others = [weight for weight in model.parameters() if weight.ndim != 2]
        groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=self._device.type == "cuda")

    def step(self, share: float) -> torch.Tensor:
        """One update at a share of the whole training; returns the loss without waiting for it."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.recipe.rate(share)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._batch(self.recipe.window_at(share)))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self.steps += 1
        return loss.detach()

    @torch.no_grad()
    def held_out_loss(self, tokens: Rows, window: int, batches: int = 2) -> float:
        """Mean loss per token over the same held-out windows each time."""
        rows = windows(tokens, window, np.random.default_rng(0))
        per_batch = max(1, min(self.recipe.tokens_per_step // window, len(rows)))
        picked = [rows[at : at + per_batch] for at in range(0, len(rows), per_batch)][:batches]
        assert picked, f"{len(tokens)} held-out tokens do not fill a window of {window}"
        losses = [float(self._loss(self._on_device(batch))) * len(batch) for batch in picked]
        return sum(losses) / sum(map(len, picked))

    def _loss(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            logits = self.model(input_ids=rows[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    def _batch(self, window: int) -> torch.Tensor:
        if window not in self._rows:
            self._rows[window] = self._batches(window)
        return next(self._rows[window])

    def _batches(self, window: int) -> Iterator[torch.Tensor]:
        """Windows of the text in a random order, again and again."""
        random = np.random.default_rng((self.recipe.seed, window))
        rows_per_step = self.recipe.tokens_per_step // window
        while True:
            rows = windows(self._tokens, window, random)
            assert len(rows) >= rows_per_step, f"{len(self._tokens)} tokens are too few for one step"
            for at in range(0, len(rows) - rows_per_step + 1, rows_per_step):
                yield self._on_device(rows[at : at + rows_per_step])

    def _on_device(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(rows.astype(np.int64)).to(self._device)


def blank(shape: dict[str, Any], vocab: int, seed: int = 0) -> Qwen3_5ForCausalLM:
    """An untrained model. Its heads begin with the memories of Mamba-2, some tokens to some thousand; with the initial
    values of transformers most heads forget within a few tokens."""
    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        **shape,
        vocab_size=vocab,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
    )
    model = Qwen3_5ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):
                weight.uniform_(1, 16).log_()
            elif name.endswith("dt_bias"):
                steps = torch.empty_like(weight).uniform_(math.log(1e-3), math.log(1e-1)).exp()
                weight.copy_(steps.expm1().log())  # the inverse of softplus
    return model


def encode(tokenizer: Tokenizer, passages: Sequence[str]) -> Rows:
    """Passages as one row of ids, an end-of-text token before each."""
    encodings = tokenizer.encode_batch_fast(list(passages), add_special_tokens=False)
    return np.concatenate([np.asarray([END_ID, *encoding.ids], dtype=np.uint16) for encoding in encodings])


def save(model: Qwen3_5ForCausalLM, folder: Path) -> None:
    """A folder that transformers loads: weights in bfloat16, settings of generation, tokenizer."""
    weights = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in model.state_dict().items()}
    with torch.device("meta"):
        written = Qwen3_5ForCausalLM(model.config)
    written.load_state_dict(weights, assign=True)
    written.tie_weights()
    written.config.dtype = torch.bfloat16
    written.generation_config = GenerationConfig(**WRITES, bos_token_id=END_ID, eos_token_id=END_ID)
    written.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(TOKENIZER / name, folder / name)


def train(trainer: Trainer, share: Callable[[], float], report: Callable[[float, torch.Tensor], bool]) -> None:
    """Steps until the share of the training is 1 or a report says that it is over."""
    while (done := share()) < 1:
        loss = trainer.step(done)
        if not report(done, loss):
            break


def samples(folder: Path, device: torch.device) -> Iterator[str]:
    """How the saved model writes."""
    model: Any = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.to(device)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    for beginning in BEGINNINGS:
        ids = torch.tensor([[END_ID, *tokenizer.encode(beginning)]], device=device)
        text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, pad_token_id=END_ID)
        yield tokenizer.decode(text[0, 1:])


class Reports:
    """Prints the losses and saves the model every some seconds."""

    def __init__(self, trainer: Trainer, held_out: Rows, folder: Path) -> None:
        self._trainer, self._held_out, self._folder = trainer, held_out, folder
        self._began = self._last = time.monotonic()

    def __call__(self, done: float, loss: torch.Tensor) -> bool:
        now = time.monotonic()
        if now - self._last < REPORT_SECONDS:
            return True
        self._last = now
        return self.now(done, float(loss))

    def now(self, done: float, loss: float) -> bool:
        """False if the training has failed; then the folder keeps the model of the report before."""
        held_out = self._trainer.held_out_loss(self._held_out, self._trainer.recipe.window)
        long = self._trainer.held_out_loss(self._held_out, self._trainer.recipe.long_window)
        seconds, steps = time.monotonic() - self._began, self._trainer.steps
        print(
            f"{seconds:.0f} s, {done:.0%}, step {steps}, {steps * self._trainer.recipe.tokens_per_step / 1e6:.1f}M "
            f"tokens: loss {loss:.3f}, held-out {held_out:.3f}, in long windows {long:.3f}",
            flush=True,
        )
        if math.isfinite(held_out):
            save(self._trainer.model, self._folder)
            return True
        print("the loss is not finite; the training ends", flush=True)
        return False


def run(text: Path, seconds: float, folder: Path, device: torch.device, recipe: Recipe) -> None:
    began = time.monotonic()
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(TOKENIZER / TOKENIZER_FILES[0]))
    texts = read(text)
    tokens = encode(tokenizer, [p for each in texts for p in each.training * each.source.repeats])
    held_out = encode(tokenizer, [p for each in texts for p in each.held_out])
    model = blank(SHAPE, tokenizer.get_vocab_size(), recipe.seed)
    nn.Module.to(model, device)
    count = sum(weight.numel() for weight in model.parameters())
    print(
        f"{count:,} parameters, {len(tokens):,} tokens to train on and {len(held_out):,} held out, "
        f"after {time.monotonic() - began:.1f} s",
        flush=True,
    )
    trainer = Trainer(model, tokens, recipe)
    reports = Reports(trainer, held_out, folder)
    loss = torch.tensor(math.nan)

    def keep(done: float, last: torch.Tensor) -> bool:
        nonlocal loss
        loss = last
        return reports(done, last)

    started = time.monotonic()
    left = max(seconds - (started - began), 1.0)
    try:
        train(trainer, lambda: (time.monotonic() - started) / left, keep)
    finally:
        reports.now((time.monotonic() - started) / left, float(loss))
    for sample in samples(folder, device):
        print(repr(sample), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a small model of gated-delta layers and attention.")
    parser.add_argument("--text", type=Path, required=True, help="folder of the text files of tools/corpus.py")
    parser.add_argument("--minutes", type=float, required=True, help="time for reading the text and training")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64, help="windows of 512 tokens in a step")
    parser.add_argument("--rate", type=float, default=Recipe.peak_rate, help="the highest learning rate")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    recipe = Recipe(tokens_per_step=options.batch * Recipe.window, peak_rate=options.rate)
    try:
        run(options.text, options.minutes * 60, options.out, torch.device(options.device), recipe)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
