"""All kinds of heads by the method that drafts with them, and what a folder with one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.drafters.networks.heads import method_for, read_config
from paceline.errors import InputError
from paceline_make.heads.kinds.base import HeadKind, parameters_in_all
from paceline_make.heads.kinds.block import BlockKind
from paceline_make.heads.kinds.eagle import EagleKind
from paceline_make.heads.kinds.hydra import HydraKind
from paceline_make.heads.kinds.medusa import MedusaKind
from paceline_make.heads.kinds.recurrent import RecurrentKind

BY_METHOD: Mapping[str, type[HeadKind[Any]]] = {
    kind.method: kind for kind in (RecurrentKind, MedusaKind, HydraKind, EagleKind, BlockKind)
}
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
OWN = ("target", "target_name", "noise", "trained")
"""What this project's part of a configuration says of every kind."""


def described(folder: Path) -> dict[str, Any]:
    """Kind, size and shape of the head in a folder, and for which model it is, as far as that is stated."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder that 'paceline train' wrote")
    method = method_for(folder)
    head: Any = BY_METHOD[method].read(folder)
    own = read_config(folder).get("paceline") or {}
    return {
        "method": method,
        "parameters": parameters_in_all(head),
        "bytes": sum(file.stat().st_size for pattern in WEIGHTS for file in folder.glob(pattern)),
        "shape": asdict(head.shape),
        "target": "",
        "target_name": "",
        "noise": None,
        "trained": {},
        **{name: own[name] for name in OWN if name in own},
    }
