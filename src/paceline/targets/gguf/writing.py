"""The writer of GGUF files: names and keys are those of the ``gguf`` package, and one tensor at a time is in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import need
from paceline.targets.gguf.kinds import FLOATS, stored_type
from paceline.targets.gguf.metadata import FACTORS, describe, factors, family_of, names_of, rows_of
from paceline.targets.gguf.source import GgufSource
from paceline.targets.gguf.spelling import add_ends, add_tokenizer
from paceline.vocabulary import Vocabulary

Advance = Callable[[str, int, int], None]
"""What is being done, how much is done, and how much there is."""


def write_gguf(
    kind: str,
    source: GgufSource,
    file: Path,
    vocabulary: Vocabulary | None = None,
    advance: Advance = lambda *_: None,
) -> None:
    """Write a model in a type of `kinds.WRITTEN`. Without a vocabulary the file has no tokenizer: input and output are
    ids. `UnsupportedModel` where llama.cpp would compute something else."""
    need("gguf", "writing a GGUF file", "gguf")
    import gguf

    config = source.config
    family = family_of(source.name, config)
    names = names_of(source.name, family, config, source.shapes)
    slowed = factors(config)
    with closing(gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[family.architecture]])) as writer:
        _describe(writer, kind, source, vocabulary)
        for tensor, own in names.items():
            _announce(writer, own, source.shapes[tensor], kind)
        if slowed is not None:
            _announce(writer, FACTORS, tuple(slowed.shape), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, tensor in enumerate(names):
            advance("writing tensors", done, len(names))
            weight = rows_of(family, config, tensor, source.read(tensor)).float().cpu().contiguous()
            stored = gguf.GGMLQuantizationType[stored_type(source.shapes[tensor], kind)]
            writer.write_tensor_data(gguf.quants.quantize(weight.numpy(), stored))
        if slowed is not None:
            writer.write_tensor_data(slowed.numpy())


def _describe(writer: Any, kind: str, source: GgufSource, vocabulary: Vocabulary | None) -> None:
    """All but the tensors."""
    import gguf

    describe(writer, source.name, source.config)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
    if kind not in FLOATS:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if vocabulary is None:
        writer.add_tokenizer_model("none")
        usual = None
    else:
        add_tokenizer(writer, vocabulary, source.config.vocab_size)
        usual = getattr(vocabulary.tokenizer, "eos_token_id", None)
    add_ends(writer, source.eos, usual)


def _announce(writer: Any, name: str, shape: tuple[int, ...], kind: str) -> None:
    import gguf

    stored = gguf.GGMLQuantizationType[stored_type(shape, kind)]
    values, size = gguf.GGML_QUANT_SIZES[stored]
    count = int(np.prod(shape)) // values * size
    writer.add_tensor_info(name, shape, np.dtype(np.float32), count, raw_dtype=stored)
