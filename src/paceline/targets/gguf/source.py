"""Weights to be written as a GGUF file: of a loaded model, of a bundled one, or from a folder, a tensor at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from paceline.errors import InputError
from paceline.targets import hub
from paceline.targets.gguf.metadata import HEAD, family_of
from paceline.targets.hf.generation import settings_of
from paceline.targets.mlx.names import MLX_MARK
from paceline.targets.pocket.names import is_bundled

FILES = ("*.json", "*.safetensors", "tokenizer.model", "*.txt", "*.jinja")
"""Of a model on a hub."""
SAFETENSORS = ".safetensors"


@dataclass(frozen=True)
class GgufSource:
    """A model's configuration, and its tensors under the names of transformers."""

    name: str
    config: Any
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor]
    dtype: torch.dtype
    """Of most weights."""
    eos: frozenset[int] = frozenset()

    @classmethod
    def of_model(cls, model: Any, name: str) -> GgufSource:
        """A model in memory, of transformers or with its modules."""
        tensors = {key: weight for key, weight in model.state_dict().items() if not _is_tied(model.config, key)}
        common = Counter(weight.dtype for weight in tensors.values()).most_common(1)[0][0]
        shapes = {key: tuple(weight.shape) for key, weight in tensors.items()}
        eos = settings_of(model, model.config.vocab_size).eos
        return cls(name, model.config, shapes, tensors.__getitem__, common, eos)

    @property
    def values(self) -> int:
        """How many weights there are."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


def open_source(model: str, *, trust_remote_code: bool = False) -> tuple[GgufSource, Any]:
    """The weights and the tokenizer of a bundled model, of a folder, or of a model on a hub."""
    if is_bundled(model):
        from paceline.targets.pocket.bundle import BundledTokenizer
        from paceline.targets.pocket.names import BALLAST_MARK
        from paceline.targets.pocket.open import stored

        return GgufSource.of_model(stored(model), model), BundledTokenizer(model.partition(BALLAST_MARK)[0])
    if model.startswith(MLX_MARK):
        raise InputError(f"{model} is a model of mlx-lm; give the folder or the name of the original model")
    from paceline.targets.hf.load import load_tokenizer

    folder = _folder(model)
    return _in_folder(folder, model, trust_remote_code), load_tokenizer(folder, trust_remote_code)


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise InputError(f"no model at {model!r}: give the folder that holds config.json and weights, not a file")
    found = hub.downloaded(model, FILES) if hub.NAME.fullmatch(model) else None
    if found is None:
        raise InputError(f"no model at {model!r}: there is no such folder, and none of that name on a hub")
    return found


def _in_folder(folder: Path, name: str, trust_remote_code: bool) -> GgufSource:
    from safetensors import safe_open

    from paceline.targets.hf import folder as files
    from paceline.targets.hf.integers.stored import is_described
    from paceline.targets.hf.load import config_of

    config = config_of(str(folder), trust_remote_code)
    family_of(name, config)
    if is_described(config):
        raise InputError(f"{name} is quantised already; {files.USE_ORIGINAL.partition(',')[0]}, and name a --type")
    planned = files.plan(folder, config)
    held = files.weight_files(folder)
    if not held or any(file.suffix != SAFETENSORS for file in held):
        raise InputError(f"{name} has no weights in *{SAFETENSORS}; save it with transformers' save_pretrained first")
    files.check_floats(name, folder, planned)
    homes, shapes, types = dict[str, Path](), dict[str, tuple[int, ...]](), Counter[str]()
    for file in held:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                part = opened.get_slice(key)
                homes[key], shapes[key] = file, tuple(part.get_shape())
                types[str(part.get_dtype())] += 1
    own = planned.state_dict().items()
    wanted = {key: tuple(weight.shape) for key, weight in own if not _is_tied(config, key)}
    files.check_found(name, _compared(wanted, shapes))

    def read(tensor: str) -> torch.Tensor:
        with safe_open(homes[tensor], framework="pt") as opened:
            found: torch.Tensor = opened.get_tensor(tensor)
            return found

    common = {"BF16": torch.bfloat16, "F16": torch.float16}.get(types.most_common(1)[0][0], torch.float32)
    return GgufSource(name, config, wanted, read, common, _ends(folder, config))


def _is_tied(config: Any, tensor: str) -> bool:
    """Whether a tensor is the embedding under a second name."""
    return bool(config.tie_word_embeddings) and tensor == HEAD


def _compared(wanted: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {
        "missing_keys": [key for key in wanted if key not in shapes],
        "mismatched_keys": [
            (key, shapes[key], shape) for key, shape in wanted.items() if key in shapes and shapes[key] != shape
        ],
        "unexpected_keys": [],
    }


def _ends(folder: Path, config: Any) -> frozenset[int]:
    """The tokens that end a text."""
    from paceline.targets.hf.folder import GENERATION, read_object

    file = folder / GENERATION
    generation = SimpleNamespace(**read_object(file)) if file.exists() else None
    described = SimpleNamespace(config=config, generation_config=generation, name_or_path=str(folder))
    return settings_of(described, config.vocab_size).eos
