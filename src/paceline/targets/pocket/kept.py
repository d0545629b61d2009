"""Ballast kept on disk between runs, in the folder of ``PACELINE_CACHE``. Without that variable nothing is written:
building takes seconds.

A file's name is a digest of all that decides its content, and the file has a checksum; damaged ones are built again."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paceline.errors import InputError
from paceline.files import cache_folder, partial
from paceline.targets.pocket.bundle import Bundle
from paceline.targets.pocket.shape import ModelShape

VARIABLE = "PACELINE_CACHE"
FORMAT = 1
"""The version of `ballast`; files of other versions are not read."""
CHECKSUM = "sha256"

Weights = dict[str, torch.Tensor]


def kept(bundle: Bundle, shape: ModelShape, dtype: torch.dtype, build: Callable[[], Weights]) -> Weights:
    """The weights from the cache folder, or built and written there; only built where no folder is named."""
    if not os.environ.get(VARIABLE) or (place := cache_folder()) is None:
        return build()
    file = place / _file_name(bundle, shape, dtype)
    try:
        if file.exists() and (found := _read(file)) is not None:
            return found
        file.parent.mkdir(parents=True, exist_ok=True)
        weights = build()
        _write(file, weights)
    except OSError as error:
        raise InputError(
            f"cannot keep ballast in {file.parent} ({error.strerror or error}); "
            f"point {VARIABLE} to a folder that can be written, or unset it"
        ) from None
    return weights


def _file_name(bundle: Bundle, shape: ModelShape, dtype: torch.dtype) -> str:
    content = f"{FORMAT} {bundle.digest} {shape} {dtype}"
    return f"{bundle.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.safetensors"


def _read(file: Path) -> Weights | None:
    """The weights, copied from the mapped file; a warning and None if they do not match their checksum."""
    try:
        with safe_open(file, framework="pt") as opened:
            weights = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            if (opened.metadata() or {}).get(CHECKSUM) == _checksum(weights):
                return weights
    except SafetensorError:
        pass
    warnings.warn(f"{file} is damaged and is built again", UserWarning, stacklevel=2)
    return None


def _write(file: Path, weights: Weights) -> None:
    with partial(file) as fresh:
        try:
            save_file(weights, fresh, metadata={CHECKSUM: _checksum(weights)})
        except SafetensorError as error:
            raise OSError(str(error)) from None


def _checksum(weights: Weights) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
