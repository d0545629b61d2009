"""Finished models into the folder that the package reads them from."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import InputError
from paceline.files import workplace
from paceline.targets.pocket.bundle import CONFIG, WEIGHTS, seal

MOST_BYTES = 22_000_000
"""What the weights of all models together may weigh in the package."""


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """One model as it is shipped: bfloat16, the tied matrix once; any transformers loads the folder, too."""
    folder.mkdir(parents=True)
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], torch.bfloat16
    config.to_json_file(folder / CONFIG)
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
        # What is replaced waits under a name that nobody tidies away: a kill between the two moves must not cost it.
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
