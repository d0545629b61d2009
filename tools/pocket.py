"""Makes the bundled models: two tokenizers, `pocket`, `pocket-draft` and `pocket-foreign`.

    python -m tools.pocket --text ../shared/data/text --work build/pocket

About three quarters of an hour on two CPU cores. A run that was stopped goes on where it last saved; what is finished
is not repeated. ``--install`` then writes weights and card to where the package reads them.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import InputError
from paceline.files import terminable, workplace, write_whole
from paceline.targets.pocket import bundle
from paceline.targets.pocket.bundle import CONFIG, GENERATION, WEIGHTS, seal
from paceline_make.cards import CARD
from paceline_make.models.loop import RESTART, Report, TrainingRun
from paceline_make.models.progress import progress
from paceline_make.states import read_state, resumable, usable
from tools import corpus, tokenizers
from tools.card import write_models_card
from tools.corpus import CorpusText
from tools.plans import PLANS, POSITIONS, WRITES, ModelPlan

TOKENIZERS = {"byte-level": (tokenizers.byte_level, 8192), "unigram": (tokenizers.unigram, 6144)}
CHARACTERS = 4_000_000
"""How much of each language the tokenizers are trained on."""
MOST_BYTES = 22_000_000
"""What the weights of all models together may weigh in the package."""


class Workshop:
    """The folder in which everything is made, each thing once."""

    def __init__(self, texts: Sequence[CorpusText], work: Path, compiled: bool) -> None:
        self.texts, self.work, self.compiled = texts, work, compiled
        work.mkdir(parents=True, exist_ok=True)

    def tokenizer(self, kind: str) -> PreTrainedTokenizerBase:
        folder = self.work / kind
        if not (folder / "tokenizer.json").exists():
            make, size = TOKENIZERS[kind]
            with workplace(self.work) as fresh:
                make(corpus.sample_for_tokenizer(self.texts, CHARACTERS), size).save_pretrained(fresh)
                folder.mkdir(exist_ok=True)
                for part in sorted(fresh.iterdir(), key=lambda part: part.name == "tokenizer.json"):
                    part.replace(folder / part.name)
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return loaded

    def training_tokens(self, kind: str) -> NDArray[np.uint16]:
        """All training text as ids, each passage after an end-of-text token."""
        file = self.work / f"{kind}.npy"
        if not file.exists():
            passages = [p for text in self.texts for p in text.training * text.source.repeats]
            packed = io.BytesIO()
            np.save(packed, encode(self.tokenizer(kind), passages))
            write_whole(file, [packed.getbuffer()])
        with usable(file, "delete it and give the same command again, which makes it again"):
            tokens: NDArray[np.uint16] = np.load(file)
        return tokens

    def make(self, plan: ModelPlan, report: Report) -> LlamaForCausalLM:
        """The trained model, or as much of it as is missing."""
        model = blank(plan, self.tokenizer(plan.tokenizer))
        teacher = self.finished(plan.teacher) if plan.teacher is not None else None
        tokens = self.training_tokens(plan.tokenizer)
        TrainingRun(model, tokens, plan.schedule, self.checkpoint(plan.name), teacher, self.compiled).train(report)
        return model

    def finished(self, name: str) -> LlamaForCausalLM:
        """A model whose training is over."""
        plan = next(plan for plan in PLANS if plan.name == name)
        model = blank(plan, self.tokenizer(plan.tokenizer))
        file = self.checkpoint(name)
        with usable(file, RESTART):
            state: dict[str, Any] = read_state(file) if file.exists() else {"step": 0}
            if state["step"] < plan.schedule.steps:
                raise InputError(
                    f"{name} stands at step {state['step']} of {plan.schedule.steps}; train it to the end first"
                )
            model.load_state_dict(state["model"])
        model.train(False)
        return model

    def checkpoint(self, name: str) -> Path:
        return self.work / f"{name}.pt"

    def install(self, folder: Path) -> None:
        """Every finished model and the card, in place of what ``folder`` holds."""
        with replaced(folder) as fresh:
            for plan in PLANS:
                export(self.finished(plan.name), self.tokenizer(plan.tokenizer), fresh / plan.name)
            write_models_card(fresh, PLANS, self.texts)


def encode(tokenizer: PreTrainedTokenizerBase, passages: Sequence[str]) -> NDArray[np.uint16]:
    """Passages as one row of ids, an end-of-text token before each."""
    ids = tokenizer(list(passages), add_special_tokens=False, verbose=False)["input_ids"]
    end = tokenizer.convert_tokens_to_ids(tokenizers.END)
    return np.concatenate([np.asarray([end, *row], dtype=np.uint16) for row in ids])


def blank(plan: ModelPlan, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """The untrained model of a plan: grouped heads of 64 channels, one matrix for embedding and head."""
    torch.manual_seed(plan.schedule.seed)
    end: Any = tokenizer.convert_tokens_to_ids(tokenizers.END)
    config = LlamaConfig(
        **plan.shape,
        vocab_size=len(tokenizer),
        num_key_value_heads=plan.shape["num_attention_heads"] // 2,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    return model


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """One model as it is shipped: bfloat16, the tied matrix once; any transformers loads the folder, too."""
    folder.mkdir(parents=True)
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if name != "lm_head.weight"
    }
    write_whole(folder / WEIGHTS, [save(weights, metadata={"format": "pt"})])
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], torch.bfloat16
    config.to_json_file(folder / CONFIG)
    write_whole(folder / GENERATION, json.dumps({**WRITES, "eos_token_id": config.eos_token_id}, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
    table = folder / "tokenizer.json"
    table.write_text(json.dumps(json.loads(table.read_bytes()), ensure_ascii=False, separators=(",", ":")), "utf8")
    seal(folder)


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``folder`` when all went well and vanishes when not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with workplace(folder.parent) as work:
        fresh = work / "new"
        fresh.mkdir()
        yield fresh
        if (size := weight_bytes(fresh)) > MOST_BYTES:
            raise InputError(f"the weights are {size:,} bytes, over the {MOST_BYTES:,} of the package; shrink a plan")
        # The old folder waits under a name that no clean-up removes: a kill between the two moves must not lose it.
        old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-")) / "old"
        try:
            if folder.exists():
                os.replace(folder, old)
            os.replace(fresh, folder)
        except BaseException:
            if old.exists():
                os.replace(old, folder)
            raise
        finally:
            shutil.rmtree(old.parent)


def weight_bytes(folder: Path) -> int:
    """What all weights below a folder weigh."""
    return sum(file.stat().st_size for file in folder.rglob(WEIGHTS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", type=Path, required=True, help="folder of the licensed text files")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything on the way")
    parser.add_argument("--eager", action="store_true", help="do without torch.compile, which needs a C++ compiler")
    parser.add_argument("--install", action="store_true", help="write weights and card to where the package reads them")
    options = parser.parse_args()
    try:
        with terminable(), resumable():
            workshop = Workshop(corpus.read(options.text), options.work, compiled=not options.eager)
            for plan in PLANS:
                with progress(plan.name) as report:
                    workshop.make(plan, report)
            if options.install:
                workshop.install(bundle.MODELS)
                print(bundle.MODELS / CARD)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; the same command continues from the last checkpoint\n")


if __name__ == "__main__":
    main()
