"""All kinds of heads by the method that drafts with them, and what a folder with one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.drafters.networks.heads import found_folder, holds_model, method_for, read_config
from paceline.errors import InputError
from paceline_make.heads.kinds.base import HeadKind, parameters_in_all
from paceline_make.heads.kinds.block import BlockKind
from paceline_make.heads.kinds.eagle import EagleKind
from paceline_make.heads.kinds.hydra import HydraKind
from paceline_make.heads.kinds.medusa import MedusaKind
from paceline_make.heads.kinds.recurrent import RecurrentKind
from paceline_make.heads.kinds.streaming import StreamingKind
from paceline_make.heads.kinds.tuned import TunedKind
from paceline_make.heads.run import CHECKPOINT

BY_METHOD: Mapping[str, type[HeadKind[Any]]] = {
    kind.method: kind for kind in (RecurrentKind, MedusaKind, HydraKind, EagleKind, BlockKind, StreamingKind)
}
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
OWN = ("target", "target_name", "noise", "trained")
"""What this project's part of a configuration says of every kind."""


def described(named: str | Path) -> dict[str, Any]:
    """Kind, size and shape of the head in a folder or on the hub, and for which model it is, as far as that is
    stated."""
    folder = found_folder(named)
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder that 'paceline train' wrote")
    method = method_for(folder)
    head: Any = (TunedKind if holds_model(folder) else BY_METHOD[method]).read(folder)
    own = read_config(folder).get("paceline") or {}
    return {
        "method": method,
        "parameters": parameters_in_all(head),
        "bytes": sum(file.stat().st_size for file in weights_of(folder)),
        "shape": asdict(head.shape),
        "target": "",
        "target_name": "",
        "noise": None,
        "trained": {},
        **{name: own[name] for name in OWN if name in own},
    }


def weights_of(folder: Path) -> list[Path]:
    """The files with a head's weights, without the state that a training goes on from."""
    return [file for pattern in WEIGHTS for file in folder.glob(pattern) if file.name != CHECKPOINT]
