"""A model as a new GGUF file: whole or not at all, in any type that this package or llama.cpp's quantiser makes."""

from __future__ import annotations

import ctypes
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import DefectError, InputError, MissingPackage, need
from paceline.files import check_apart, check_output, partial, workplace
from paceline.targets.gguf.file import SUFFIX
from paceline.targets.gguf.kinds import BLOCK, MADE, WRITTEN, named_type
from paceline.targets.gguf.library import complaint, library
from paceline.targets.gguf.metadata import context_length
from paceline.targets.gguf.source import GgufSource, open_source
from paceline.targets.gguf.spelling import ANOTHER
from paceline.targets.gguf.tokenizer import tokenized
from paceline.targets.gguf.writing import Advance, write_gguf
from paceline.vocabulary import Vocabulary

WIDE = 4
"""Bytes of a value, at most."""
SAMPLES = (
    "The rider in front breaks the wind, the others don't; they're 12345 km away.",
    "Zażółć gęślą jaźń. Їжак і ґава їдять пиріжки! 風を切るのは先頭の人だけだ。",
    "  two spaces, a tab\tand\n\n\nlines  \r\n def f(x):\n    return x**2 != 3_000 # ok 👩‍👩‍👧‍👦",
    "".join(f"{' ' * count}x" for count in range(1, 17)),
)
"""Texts that both tokenizers must split alike."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that was written."""

    file: Path
    type: str
    bytes: int
    parameters: int
    context_length: int
    tokenizer: str
    """``checked`` against llama.cpp, ``unchecked`` where it is not installed, or ``none``."""
    notes: tuple[str, ...] = field(default=())


def export_gguf(
    model: str,
    out: Path,
    kind: str = "f16",
    *,
    tokenizer: bool = True,
    force: bool = False,
    trust_remote_code: bool = False,
    advance: Advance = lambda *_: None,
) -> WrittenFile:
    """Write a bundled model, a folder of transformers or a model of a hub as a GGUF file."""
    kind = named_type(kind)
    _check_out(out, model, force)
    advance(f"reading {model}", 0, 0)
    source, own = open_source(model, trust_remote_code=trust_remote_code)
    need("gguf", "writing a GGUF file", "gguf")
    if kind in MADE:
        _quantiser(kind)
    if own is None and tokenizer:
        raise InputError(f"{model} has no tokenizer; {ANOTHER}")
    notes = _notes(source, kind)
    _check_space(out, source, kind)
    vocabulary = Vocabulary(own) if tokenizer else None
    with partial(out) as fresh:
        if kind in WRITTEN:
            write_gguf(kind, source, fresh, vocabulary, advance)
        else:
            with workplace(out.absolute().parent) as place:
                wide = place / "floats.gguf"
                write_gguf(_floats(source), source, wide, vocabulary, advance)
                advance(f"quantising to {kind}", 0, 0)
                _quantize(wide, fresh, kind)
        checked = "none" if vocabulary is None else _checked(fresh, vocabulary)
        size = fresh.stat().st_size
    return WrittenFile(out, kind, size, source.values, context_length(source.config), checked, notes)


def _check_out(out: Path, model: str, force: bool) -> None:
    if out.suffix.lower() != SUFFIX:
        raise InputError(f"--out {out} does not end with {SUFFIX}, by which GGUF files are known")
    check_output(out)
    check_apart(out, [Path(model)] if os.path.exists(model) else [])
    if out.exists() and not force:
        raise InputError(f"{out} is there already; give another --out, or --force to replace it")


def _check_space(out: Path, source: GgufSource, kind: str) -> None:
    """Refuse a file for which the disk has no room. Integers are made from a file in floats beside it."""
    needed = source.values * {"F32": 4, "F16": 2, "BF16": 2}.get(kind, 1)
    if kind in MADE:
        needed += source.values * source.dtype.itemsize
    if needed > (free := shutil.disk_usage(out.absolute().parent).free):
        raise InputError(
            f"{out} needs {needed / 1e9:.1f} GB on a disk with {free / 1e9:.1f} GB free; free some, or "
            "give another --out"
        )


def _notes(source: GgufSource, kind: str) -> tuple[str, ...]:
    """What a user should know of the file; `InputError` where no matrix can be stored in this type."""
    found = list[str]()
    whole, held = source.config.max_position_embeddings, context_length(source.config)
    if held < whole:
        found.append(f"texts end with {held} tokens, the model's sliding window, which llama.cpp does not have here")
    block = MADE.get(kind, BLOCK if kind in WRITTEN[3:] else 1)
    matrices = {tensor: shape for tensor, shape in source.shapes.items() if len(shape) == 2}
    odd = [shape[1] for shape in matrices.values() if shape[1] % block]
    if len(odd) == len(matrices):
        raise InputError(
            f"{kind.lower()} needs rows that are divisible by {block}, and those of {source.name} have "
            f"{', '.join(map(str, sorted({*odd})))} values; choose q8_0 or f16"
        )
    if odd:
        sizes = ", ".join(map(str, sorted({*odd})))
        other = "f16" if kind in WRITTEN else "a type of smaller blocks that llama.cpp chooses"
        found.append(
            f"{len(odd)} of {len(matrices)} matrices have rows of {sizes} values, which {block} does not divide: they "
            f"are in {other}"
        )
    return tuple(found)


def _floats(source: GgufSource) -> str:
    """The type that holds the weights unchanged."""
    return {"torch.bfloat16": "BF16", "torch.float16": "F16"}.get(str(source.dtype), "F32")


def _quantiser(kind: str) -> Any:
    """llama.cpp's functions, for a type that they make."""
    try:
        return library()
    except MissingPackage as error:
        known = ", ".join(WRITTEN).lower()
        raise MissingPackage(f"{kind.lower()} is made by llama.cpp ({error}); {known} are written without it") from None


def _quantize(source: Path, file: Path, kind: str) -> None:
    calls = _quantiser(kind)
    terms: Any = calls.llama_model_quantize_default_params()
    terms.ftype = getattr(calls, f"LLAMA_FTYPE_MOSTLY_{kind}")
    terms.nthread = 0  # one for each core
    complaint()  # of before
    if calls.llama_model_quantize(str(source).encode(), str(file).encode(), ctypes.byref(terms)):
        raise DefectError(f"llama.cpp could not make {kind.lower()} weights: {complaint()}; choose another --type")


def _checked(file: Path, vocabulary: Vocabulary) -> str:
    """Compare the tokenizer in the file with its original, where llama.cpp is there."""
    try:
        calls = library()
    except MissingPackage:
        return "unchecked"
    terms: Any = calls.llama_model_default_params()
    terms.vocab_only = True
    complaint()
    model = calls.llama_model_load_from_file(str(file).encode(), terms)
    if model is None:
        raise DefectError(f"llama.cpp does not read the file that was written: {complaint()}")
    try:
        vocab = calls.llama_model_get_vocab(model)
        for text in SAMPLES:
            expected, found = vocabulary.encode(text).tolist(), tokenized(calls, vocab, text, True, names=True)
            if found != expected:
                at = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
                raise InputError(
                    f"llama.cpp splits a text otherwise than this tokenizer: at token {at} of {text!r}; {ANOTHER}"
                )
    finally:
        calls.llama_model_free(model)
    return "checked"
