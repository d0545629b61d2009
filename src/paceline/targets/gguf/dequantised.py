"""GGUF files without llama.cpp: floats are made of their weights, which stay floats or become integers.

The families that are written here are read here (`weights`), all others by transformers.

Its reader leaves out what it has no name for, and the model would write another text without a word. So the values in
a file are counted here, and what is not read is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from paceline.errors import InputError, UnsupportedModel
from paceline.targets import hub
from paceline.targets.device import asked
from paceline.targets.gguf.contents import GgufContents, read_contents
from paceline.targets.gguf.kinds import BUNDLED, Instead
from paceline.targets.gguf.metadata import FACTORS
from paceline.targets.gguf.restored import restored
from paceline.targets.gguf.spelling import ENDS
from paceline.targets.gguf.weights import read_model
from paceline.targets.hf import folder
from paceline.targets.hf.integers.target import check_place, quantized
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.targets.memory import give_back
from paceline.targets.place import bits_of, named_dtype
from paceline.targets.pocket.names import bundled_name

PEAK = 2
"""The memory of transformers' reader, as a factor on the weights: it has them all before the model gets them."""
WIDE = ("F32", "F16")
"""Types whose values bfloat16 would round."""


def open_dequantised(
    path: Path, instead: Instead, *, device: object = None, dtype: object = None, quantize: str | None = None
) -> tuple[HFTarget, PreTrainedTokenizerBase | None]:
    """A probed target and its tokenizer, if the file has one."""
    kind, bits, where = named_dtype(dtype), bits_of(quantize), asked(device)  # type: ignore[arg-type]
    if bits is not None:
        check_place(str(path), kind, where.for_integers(), bits=bits)
    contents = read_contents(path, instead)
    if bits is not None:
        contents = replace(contents, smaller=instead.otherwise)
    _check(contents)
    kind = kind or _float_type(contents, bits)
    loaded = _loaded(contents, kind)
    if bits is not None:
        target: HFTarget = quantized(prepare(HFTarget(loaded, name=str(path), fixed_shapes=False)), None, bits)
        give_back()
    else:
        torch.nn.Module.to(loaded, where.for_floats(str(path), contents.values * kind.itemsize, kind))
        target = prepare(HFTarget(loaded, name=str(path)).pack())
    target.bundled = bundled_name(contents.said(BUNDLED))
    stored = path.stat().st_size / contents.values
    said = f"computed here in {target.dtype}, from {stored:.1f} bytes a weight ({instead.why})"
    target.note = "; ".join(filter(None, (said, target.note)))
    return target, _tokenizer(contents)


def open_tokenizer(path: Path, instead: Instead) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a file alone."""
    return _tokenizer(read_contents(path, instead))


def _check(contents: GgufContents) -> None:
    """Refuse what transformers' reader does not know."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    name, kind = contents.path, contents.architecture
    if kind not in GGUF_SUPPORTED_ARCHITECTURES:
        raise UnsupportedModel(
            f"{name} has the architecture {kind!r}, which transformers does not read; {contents.instead.otherwise}"
        )


def _float_type(contents: GgufContents, bits: int | None) -> torch.dtype:
    """In which floats weights are read: also on the way to integers, where half the memory is enough for a file whose
    weights were rounded already."""
    sizes = Counter[str]()
    for tensor in contents.tensors.values():
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    wide = bits is None or sizes.most_common(1)[0][0] in WIDE
    return torch.float32 if wide else torch.bfloat16


def _loaded(contents: GgufContents, kind: torch.dtype) -> PreTrainedModel:
    path = contents.path
    try:
        with folder.quiet(), hub.loading(), _without_bar():
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
            if (width := contents.said(f"{contents.architecture}.attention.key_length")) and hasattr(
                config, "head_dim"
            ):
                config.head_dim = int(width)  # which the reader does not take for every family
            found = read_model(contents, config, kind) or _read_by_transformers(contents, config, kind)
    except (MemoryError, torch.OutOfMemoryError, InputError):
        raise
    except Exception as error:  # of any type
        said = folder.in_one_line(error)
        raise InputError(
            f"transformers cannot read the GGUF file {path}: {said}; {contents.instead.otherwise}"
        ) from error
    loaded, report = found
    folder.check_found(str(path), report)
    known = dict(loaded.named_parameters())
    held = sum(part.numel() for part in known.values())
    buffers = {name for name, _ in loaded.named_buffers()} & loaded.state_dict().keys()
    held += sum(loaded.get_buffer(name).numel() for name in buffers)
    if held < contents.values:
        raise UnsupportedModel(
            f"transformers reads {held} of the {contents.values} values in {path}, and would compute another model; "
            f"{contents.instead.otherwise}"
        )
    _as_floats(loaded)
    loaded.generation_config.eos_token_id = sorted(_ends(contents)) or None
    return loaded  # type: ignore[no-any-return]


def _read_by_transformers(contents: GgufContents, config: Any, kind: torch.dtype) -> tuple[Any, Any]:
    path = contents.path
    if contents.stretch[0] != "none" or FACTORS in contents.tensors:
        raise UnsupportedModel(
            f"{path} stretches its positions, which transformers' reader leaves out; {contents.instead.otherwise}"
        )
    contents.must_fit(PEAK * kind.itemsize)
    found: Any = AutoModelForCausalLM.from_pretrained(
        path.parent,
        config=config,
        gguf_file=path.name,
        dtype=kind,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they come with the loading info
        trust_remote_code=False,
    )
    return found  # type: ignore[no-any-return]


@contextmanager
def _without_bar() -> Iterator[None]:
    """Hide the reader's own progress bar, which goes to standard error wherever that is."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = getattr(reader, "tqdm", None)
    vars(reader)["tqdm"] = lambda parts, **_: parts
    try:
        yield
    finally:
        vars(reader)["tqdm"] = bar


def _as_floats(loaded: Any) -> None:
    """Take away the marks of a quantised model: its weights are floats now."""
    loaded.is_quantized = False
    for holder, name in (
        (loaded.config, "quantization_config"),
        (loaded, "hf_quantizer"),
        (loaded, "quantization_method"),
    ):
        if hasattr(holder, name):
            delattr(holder, name)


def _ends(contents: GgufContents) -> frozenset[int]:
    """The tokens that end a text."""
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ENDS)
    return frozenset(int(token) for key in keys if (token := contents.said(key)) is not None)


def _tokenizer(contents: GgufContents) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a file: made again here, for transformers' reader adds a token or splits some texts otherwise;
    by that reader where the kind is not known here."""
    if contents.said("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        return None
    try:
        if (ours := restored(contents.said)) is not None:
            return ours
        with hub.loading():
            found: Any = AutoTokenizer.from_pretrained(
                contents.path.parent, gguf_file=contents.path.name, trust_remote_code=False
            )
        found.encode("", verbose=False)
    except MemoryError:
        raise
    except Exception as error:  # of any type
        said = folder.in_one_line(error)
        raise InputError(
            f"the tokenizer of {contents.path} cannot be read: {said}; {contents.instead.otherwise}"
        ) from error
    return found  # type: ignore[no-any-return]
