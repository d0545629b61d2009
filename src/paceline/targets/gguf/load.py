"""Who computes a GGUF file: llama.cpp; or this package, in integers, and where llama.cpp is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import MissingPackage
from paceline.targets.gguf.file import ORIGINAL
from paceline.targets.gguf.kinds import Instead
from paceline.targets.gguf.library import EXTRA, library
from paceline.targets.types import BITS

if TYPE_CHECKING:
    from paceline.targets.gguf.target import GgufTarget
    from paceline.targets.hf.target import HFTarget


def load_file(
    path: Path, *, device: object = None, dtype: object = None, quantize: str | None = None, strict: bool = True
) -> tuple[GgufTarget | HFTarget, Any]:
    """A probed target and its tokenizer, if the file has one. ``strict`` is as in `open_gguf`."""
    if (instead := without_llama_cpp() or (_in_our_integers(quantize) if strict else None)) is None:
        from paceline.targets.gguf.open import open_gguf

        return open_gguf(path, device=device, dtype=dtype, quantize=quantize, strict=strict)
    from paceline.targets.gguf.dequantised import open_dequantised

    return open_dequantised(path, instead, device=device, dtype=dtype, quantize=quantize)


def load_file_tokenizer(path: Path) -> Any:
    """The tokenizer of a file; None where it has none."""
    if (instead := without_llama_cpp()) is None:
        from paceline.targets.gguf.open import open_gguf

        return open_gguf(path, device="cpu")[1]
    from paceline.targets.gguf.dequantised import open_tokenizer

    return open_tokenizer(path, instead)


def without_llama_cpp() -> Instead | None:
    """Why llama.cpp does not compute here; None where it does."""
    try:
        library()
    except MissingPackage as error:
        otherwise = f"install llama.cpp ({EXTRA}), or {ORIGINAL}"
        return Instead(str(error), "or read it by transformers", otherwise)
    return None


def _in_our_integers(quantize: str | None) -> Instead | None:
    """Integers of this package, which llama.cpp has none of; None where they are not asked for."""
    if quantize not in BITS:
        return None
    return Instead(
        f"{quantize} is computed here and not by llama.cpp",
        "transformers reads it",
        f"leave quantize={quantize} out, so that llama.cpp computes the file, or {ORIGINAL}",
    )
