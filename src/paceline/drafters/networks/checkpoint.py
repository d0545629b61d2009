"""Weights of heads in files: read without running what is in them, and checked before anything computes with them.

Heads are stored in their authors' layouts. What only this project has (a smaller vocabulary, thin matrices, integers,
whose head it is, how its drafts are ranked) is in the configuration under ``paceline``; other programs may ignore it
where it states their defaults.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import nn

from paceline.drafters.networks.heads import CONFIG, MEND, MOST_CONFIG
from paceline.drafters.noise import NOISES
from paceline.errors import DamagedFile, InputError, first_line
from paceline.files import write_whole
from paceline.files.reading import damaged, open_file, parse, read_file
from paceline.files.shape import shaped

WEIGHTS = "model.safetensors"
VERSION = 1
MOST = 1 << 33
SCALE = ".scale"
INT8_MOST = 127
PICKLES = (".pt", ".bin", ".pth")
BEGINNINGS = (b"PK", b"\x80")
"""Of files that torch has written, by now and formerly."""
MODELS = (WEIGHTS, "pytorch_model.bin")
"""Files of a whole model's weights."""
MOST_INDEX = 64 << 20

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """The part of a configuration that is this project's. A kind of head adds its sizes."""

    version: int = VERSION
    target: str = ""
    """The fingerprint of the model that it was trained for; empty where nothing is said."""
    target_name: str = ""
    noise: str | None = None
    """How its drafts are ranked unless a method says it; None where that was not measured."""
    trained: dict[str, Any] = field(default_factory=dict)
    """How it was trained, for people."""

    def __post_init__(self) -> None:
        if self.noise not in (None, *NOISES):
            raise ValueError(f"noise is {self.noise!r}, and a head has {' or '.join(NOISES)}")


Own = TypeVar("Own", bound=OwnPart)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the writer of a head says of it, and how its numbers are stored."""

    target: str = ""
    """The fingerprint of the model that it was trained for."""
    target_name: str = ""
    trained: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    """Of the stored numbers; None for that which they have."""
    int8: bool = False
    """Store large matrices in 8-bit integers with a scale for each row."""

    def part(self, kind: type[Own], **sizes: Any) -> Own:
        """This project's part of the configuration."""
        return kind(target=self.target, target_name=self.target_name, trained=dict(self.trained), **sizes)

    def stored(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """The tensors as they are written."""
        found = of_type(tensors, self.dtype)
        return rounded(found, lambda name: name.endswith(".weight")) if self.int8 else found


UNSTATED = Provenance()
"""A head of which nothing is said, stored as it is."""


def own_part(kind: type[Own], config: Mapping[str, Any], folder: Path) -> Own | None:
    """This project's part of a configuration; None where it has none."""
    where, given = f"the head in {folder}", config.get("paceline")
    if given is None:
        return None
    version = given.get("version") if isinstance(given, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise InputError(f"{where} is of version {version}, and this paceline reads {VERSION}; upgrade it")
    with damaged(f"{CONFIG} of {where}", MEND):
        return shaped(kind, given)


def whole(config: Mapping[str, Any], key: str) -> int:
    """A whole number of a configuration; ValueError where there is none."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return value


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Values of a file that cannot be used, are missing or of another type are damage; refusals stay as they are."""
    try:
        yield
    except InputError:
        raise
    except KeyError as error:
        why = f"it has no {error.args[0]}"
    except (TypeError, AttributeError, IndexError, ArithmeticError) as error:
        why = f"a value is of the wrong kind: {error}"
    except ValueError as error:
        why = str(error)
    else:
        return
    raise DamagedFile(f"{what} is damaged: {why}; {MEND}")


# files


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Whatever fails while a file of a head is read is one sentence."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise InputError(f"the head in {file.parent} cannot be read: {file.name}: {first_line(error)}") from None
    except Exception as error:
        raise DamagedFile(f"{file} is damaged: {first_line(error)}; {MEND}") from None


def read_tensors(folder: Path, names: Sequence[str], method: str) -> dict[str, torch.Tensor]:
    """The tensors of the first of these files that is there. A pickle is read as tensors alone, so nothing in it can
    run."""
    file = next((folder / name for name in names if (folder / name).exists()), None)
    if file is None:
        wanted = " or ".join(names)
        raise InputError(
            f"the head in {folder} has no {wanted}; give the folder that 'paceline train {method}' wrote"
            if len(names) == 1
            else f"the head in {folder} has no {wanted}; copy its weights there"
        )
    with reading(file):
        data = read_file(file, MOST)
        return _arrays(_tensors_of(io.BytesIO(data), file) if file.suffix in PICKLES else load(data), folder)


def _tensors_of(source: Any, file: Path, *, mmap: bool = False) -> dict[str, torch.Tensor]:
    """The tensors in a pickle, by their names."""
    content = unpickled(source, file, mmap=mmap)
    if not isinstance(content, dict) or not all(isinstance(each, torch.Tensor) for each in content.values()):
        raise InputError(f"{file} holds no tensors by name; give the head that its authors published")
    return {str(name): tensor for name, tensor in content.items()}


def unpickled(source: Any, file: Path, *, mmap: bool = False) -> Any:
    """A pickle of tensors and plain values; nothing in it can run."""
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError:
        with open_file(file) as opened:
            if not opened.read(2).startswith(BEGINNINGS):
                raise DamagedFile(f"{file} is damaged: no pickle of tensors begins so; {MEND}") from None
        raise InputError(
            f"{file} holds more than tensors, and could run code when it is opened; save its tensors as "
            f"{file.stem}.safetensors with the program that made it"
        ) from None


def read_within(folder: Path, prefix: str, instead: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors of a head that is stored within the weights of a whole model: those whose names begin with
    ``prefix``, without it. Only they are read. ``instead`` names the files of heads that are stored alone."""
    files = _model_files(folder, prefix)
    if not files:
        raise InputError(f"the head in {folder} has no {' or '.join(instead)}; copy its weights there")
    found = dict[str, torch.Tensor]()
    for file in files:
        with reading(file):
            found |= _read_part(file, prefix)
    if not found:
        raise InputError(f"the weights in {folder} hold no {prefix}*; give the folder of a model that has such heads")
    return _arrays(found, folder)


def _arrays(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """The same, if each of them has a size that a head could be built of."""
    if (single := next((name for name, weight in tensors.items() if weight.ndim == 0), None)) is not None:
        raise InputError(f"the tensor {single} of the head in {folder} is a single number; {MEND}")
    return tensors


def _model_files(folder: Path, prefix: str) -> list[Path]:
    """The files of a model's weights that hold names with this beginning, as far as an index tells it."""
    for name in MODELS:
        index = folder / f"{name}.index.json"
        if index.exists():
            with reading(index), parsing(f"{index.name} of the model in {folder}"):
                places = parse(read_file(index, MOST_INDEX))["weight_map"]
                named = {file for tensor, file in places.items() if tensor.startswith(prefix)}
                if any(Path(file).name != file for file in named):
                    raise ValueError("it names files of other folders")
            return sorted(folder / file for file in named)
        if (folder / name).exists():
            return [folder / name]
    return []


def _read_part(file: Path, prefix: str) -> dict[str, torch.Tensor]:
    if file.suffix in PICKLES:
        content = _tensors_of(file, file, mmap=True)
    else:
        with safe_open(file, framework="pt") as opened:
            content = {name: opened.get_tensor(name) for name in opened.keys() if name.startswith(prefix)}  # noqa: SIM118
    return {name.removeprefix(prefix): weight for name, weight in content.items() if name.startswith(prefix)}


def write_folder(folder: Path, tensors: Tensors, config: Mapping[str, Any], *, weights: str = WEIGHTS) -> None:
    """The configuration is written last, so a folder with one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: weight.detach().clone().contiguous().cpu() for name, weight in tensors.items()}
    write_whole(folder / weights, [save(contiguous, metadata={"format": "pt"})])
    write_whole(folder / CONFIG, _written(config))


def record_noise(folder: Path, tokens_per_round: Mapping[str, float]) -> None:
    """Write the tokens a round by ``noise`` into the configuration of a head, and the better ``noise`` as its own."""
    content = parse(read_file(folder / CONFIG, MOST_CONFIG))
    own = content["paceline"]
    own["noise"] = max(tokens_per_round, key=lambda noise: tokens_per_round[noise])
    own["trained"]["tokens_per_round"] = dict(tokens_per_round)
    write_whole(folder / CONFIG, _written(content))


def _written(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=1) + "\n"


# tensors


def of_type(tensors: Tensors, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """Floating tensors in this type; None for that which they have."""
    return {
        name: weight.to(dtype) if dtype is not None and weight.is_floating_point() else weight
        for name, weight in tensors.items()
    }


def rounded(tensors: Tensors, chosen: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """The same with the chosen matrices in 8-bit integers, and a scale for each of their rows."""
    found = {}
    for name, weight in tensors.items():
        if not (chosen(name) and weight.ndim == 2 and weight.is_floating_point()):
            found[name] = weight
            continue
        scale = weight.float().abs().amax(dim=1).clamp_min(1e-12) / INT8_MOST
        found[name] = (weight.float() / scale[:, None]).round().to(torch.int8)
        found[name + SCALE] = scale
    return found


def floats(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Without integers: a head computes in floats."""
    scales = {name.removesuffix(SCALE): scale for name, scale in tensors.items() if name.endswith(SCALE)}
    plain = {name: weight for name, weight in tensors.items() if not name.endswith(SCALE)}
    for name, scale in scales.items():
        if name in plain and plain[name].ndim == 2 and scale.shape == plain[name].shape[:1]:
            plain[name] = plain[name].float() * scale.float()[:, None]
    return plain


def are_equal(tensors: Tensors, names: Sequence[str]) -> bool:
    """Whether the tensors of these names are there, and are one and the same: a layer that is applied several times."""
    found = [tensors.get(name) for name in names]
    first = found[0]
    return first is not None and all(each is not None and torch.equal(first, each) for each in found[1:])


def check_sizes(sizes: Mapping[str, int], tensors: Tensors, folder: Path, weights: str = WEIGHTS) -> None:
    """Refuse sizes beyond those of the file before a head is built of them."""
    largest = max((size for weight in tensors.values() for size in weight.shape), default=0)
    for name, size in sizes.items():
        if size > largest:
            raise InputError(
                f"{CONFIG} of the head in {folder} says {name} {size}, and no tensor in {weights} is so large; {MEND}"
            )


def fill(head: nn.Module, found: Tensors, folder: Path) -> None:
    """Give a head, built on ``meta``, its weights; `InputError` unless they are just those that it has places for."""
    where, wanted = f"the head in {folder}", head.state_dict()
    if missing := sorted(wanted.keys() - found.keys()):
        raise InputError(f"{where} lacks the tensor {missing[0]}; {MEND}")
    if strange := sorted(found.keys() - wanted.keys()):
        raise InputError(f"{where} holds a tensor {strange[0]!r} that its configuration has no place for; {MEND}")
    for name, weight in found.items():
        check_tensor(name, weight, tuple(wanted[name].shape), where, floating=wanted[name].is_floating_point())
    head.load_state_dict(dict(found), assign=True)
    head.requires_grad_(False)


def check_tensor(name: str, weight: torch.Tensor, shape: Collection[int], where: str, *, floating: bool = True) -> None:
    """`InputError` unless a tensor has this shape, and numbers of this kind that are finite."""
    if tuple(weight.shape) != tuple(shape):
        has, needs = (" x ".join(map(str, each)) for each in (weight.shape, shape))
        raise InputError(f"the tensor {name} of {where} is {has}, and its configuration says {needs}; {MEND}")
    if weight.is_floating_point() != floating:
        raise InputError(f"the tensor {name} of {where} is of type {str(weight.dtype)[6:]}; {MEND}")
    if floating and not bool(torch.isfinite(weight).all()):
        raise InputError(f"the tensor {name} of {where} holds numbers that are not finite; {MEND}")


def check_ids(ids: torch.Tensor, vocab_size: int, folder: Path) -> None:
    """`InputError` unless token ids ascend within a vocabulary."""
    inside = int(ids[0]) >= 0 and int(ids[-1]) < vocab_size
    if not inside or not bool((ids.diff() > 0).all()):
        raise InputError(f"the token ids of the head in {folder} do not ascend within its vocabulary; {MEND}")
