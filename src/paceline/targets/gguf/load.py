"""Who computes a GGUF file: llama.cpp, or transformers where that is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import MissingPackage
from paceline.targets.gguf.library import library

if TYPE_CHECKING:
    from paceline.targets.gguf.target import GgufTarget
    from paceline.targets.hf.target import HFTarget


def load_file(
    path: Path, *, device: object = None, dtype: object = None, quantize: str | None = None, strict: bool = True
) -> tuple[GgufTarget | HFTarget, Any]:
    """A probed target and its tokenizer, if the file has one. ``strict`` is as in `open_gguf`."""
    if (why := without_llama_cpp()) is None:
        from paceline.targets.gguf.open import open_gguf

        return open_gguf(path, device=device, dtype=dtype, quantize=quantize, strict=strict)
    from paceline.targets.gguf.dequantised import open_dequantised

    return open_dequantised(path, why, device=device, dtype=dtype, quantize=quantize)


def load_file_tokenizer(path: Path) -> Any:
    """The tokenizer of a file; None where it has none."""
    if (why := without_llama_cpp()) is None:
        from paceline.targets.gguf.open import open_gguf

        return open_gguf(path, device="cpu")[1]
    from paceline.targets.gguf.dequantised import open_tokenizer

    return open_tokenizer(path, why)


def without_llama_cpp() -> str | None:
    """Why llama.cpp does not compute here; None where it does."""
    try:
        library()
    except MissingPackage as error:
        return str(error)
    return None
