"""Medusa's heads in files: ``medusa_lm_head.safetensors`` or ``.pt``, or within the weights of a whole model.

Names are those of the public code. How many heads and blocks there are is read from the tensors: public
configurations state other numbers. Heads without an output matrix, as the newer public training code writes them, use
the target's output. Data that only this project has (a smaller vocabulary, whose heads they are, how drafts are
ranked) is in the configuration under ``paceline``.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from paceline.drafters.networks.checkpoint import (
    UNSTATED,
    OwnPart,
    Provenance,
    Tensors,
    are_equal,
    check_ids,
    fill,
    floats,
    own_part,
    read_tensors,
    read_within,
    write_folder,
)
from paceline.drafters.networks.fitting import HeadFacts
from paceline.drafters.networks.heads import MEDUSA, MEND, read_config
from paceline.drafters.networks.medusa.head import MedusaHeads, MedusaShape
from paceline.errors import InputError
from paceline.files.reading import damaged

WEIGHTS = "medusa_lm_head.safetensors"
FILES = (WEIGHTS, "medusa_lm_head.pt")
INSIDE = "medusa_head."
"""What names of heads begin with in the weights of a whole model."""


@dataclass(frozen=True, kw_only=True)
class OwnMedusa(OwnPart):
    """The part of this project."""

    vocab_size: int = 0
    """Of the target, where the tensors do not tell it: the heads know a part of it, or use the target's output."""


def read_heads(folder: Path) -> tuple[MedusaHeads, HeadFacts]:
    """Heads and what they say of their target, in the type in which they are stored."""
    own = own_part(OwnMedusa, read_config(folder), folder) or OwnMedusa()
    if any((folder / name).exists() for name in FILES):
        tensors = read_tensors(folder, FILES, MEDUSA)
    else:
        tensors = read_within(folder, INSIDE, FILES)
    plain = floats(tensors)
    shape = shape_of(plain, own.vocab_size, folder)
    with torch.device("meta"):
        heads = MedusaHeads(shape)
    fill(heads, plain, folder)
    if heads.token_ids is not None:
        check_ids(heads.token_ids, shape.vocab_size, folder)
    facts = HeadFacts(
        width=shape.width,
        vocab_size=shape.vocab_size or None,
        target=own.target,
        target_name=own.target_name,
        noise=own.noise,
    )
    return heads, facts


def shape_of(tensors: Tensors, vocab_size: int, folder: Path) -> MedusaShape:
    """The sizes of the heads that these tensors are; ``vocab_size`` is the target's where it is stated."""
    heads = 1 + max((int(name.split(".")[0]) for name in tensors if re.match(r"\d+\.", name)), default=-1)
    blocks = sum(bool(re.fullmatch(r"0\.\d+\.linear\.weight", name)) for name in tensors)
    outputs = [tensors[name] for name in (f"0.{blocks}.1.weight", f"0.{blocks}.weight") if name in tensors]
    first = tensors.get("0.0.linear.weight", outputs[0] if outputs else None)
    if heads < 1 or heads > len(tensors) or first is None or any(each.ndim != 2 for each in (first, *outputs)):
        raise InputError(f"the weights in {folder} are not those of Medusa's heads; {MEND}")
    known, ids = (len(outputs[0]) if outputs else 0), tensors.get("token_ids")
    thin = tensors.get(f"0.{blocks}.0.weight")
    with damaged(f"the head in {folder}", MEND):
        return MedusaShape(
            width=first.shape[1] if thin is None or blocks else thin.shape[1],
            vocab_size=known if outputs and ids is None else vocab_size,
            heads=heads,
            blocks=blocks,
            tied=all(
                are_equal(tensors, [f"{head}.{block}.linear.{part}" for block in range(blocks)])
                for head in range(heads if blocks > 1 else 0)
                for part in ("weight", "bias")
            ),
            own_output=bool(outputs),
            rank=0 if thin is None else len(thin),
            kept=0 if ids is None else known,
        )


def write_heads(folder: Path, heads: MedusaHeads, about: Provenance = UNSTATED) -> None:
    """The configuration is written last, so a folder with one is whole."""
    shape = heads.shape
    own = about.part(OwnMedusa, vocab_size=shape.vocab_size if shape.kept or not shape.own_output else 0)
    tensors = about.stored(heads.state_dict())
    config = {
        "medusa_num_heads": shape.heads,
        "medusa_num_layers": shape.blocks,
        "base_model_name_or_path": about.target_name,
    }
    write_folder(folder, tensors, {**config, "paceline": asdict(own)}, weights=WEIGHTS)
