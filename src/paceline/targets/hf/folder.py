"""The files of a model folder: checks before transformers reads them, and the file to name if it fails.

transformers skips some damaged files without a warning (a generation_config.json that is no JSON, a
tokenizer_config.json that is a directory) and fails on others without naming them.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from paceline.errors import DamagedFile, InputError
from paceline.files import workplace
from paceline.files.reading import DESCRIPTION, parse, read_file
from paceline.targets.hf.rope import NO_LONGEST_TEXT
from paceline.targets.hf.versions import TRANSFORMERS_VERSION, refused

CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "*.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SMALL = (CONFIG, GENERATION, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json")
"""JSON files that must hold an object, if they exist."""
POSITIONS = "max_position_embeddings"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    POSITIONS,
)
LAYERS, MOST_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 10_000
"""Fields with the number of layers, and a limit of ten times the layers of the deepest language models. Far beyond it,
a list of the layers' types takes all memory."""
PARAMETERS_PER_BYTE = 8
"""The densest packing of weights, one bit each."""
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
WEIGHTS_FILE = "model.safetensors"
NARROW = ("f4", "f6", "f8", "float4", "float8")
"""Types of floats that are stored with scales, as files name them."""
OF_SCALE = re.compile(r"[._]scale[^.]*$")
"""The end of the name of a weight's scales."""
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "merges.txt")
"""Files of a tokenizer. Without any, transformers makes an empty tokenizer from the model's type."""
USE_ORIGINAL = "use the original model, with --quantize int8 for 8-bit integers"
"""Advice for a checkpoint that is quantised in another way."""
NAMED, LONG = 3, 200
"""The most tensors that a sentence names, and the most characters of another library's message."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = parse(read_file(path, DESCRIPTION))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {in_one_line(error)}") from None
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold a JSON object, not {_short(found)}")
    return found


def check_files(folder: Path) -> None:
    """Refuse a folder with damaged small files, before transformers reads them."""
    for path in sorted({path for kind in (*TOKENIZERS, *WEIGHTS) for path in folder.glob(kind)}):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path} is a device or a pipe, and an ordinary file is needed")
    for name in SMALL:
        if os.path.lexists(folder / name):
            fields = read_object(folder / name)
            _check_layers(folder / name, fields)
    if os.path.lexists(template := folder / TEMPLATE):
        try:
            read_file(template, DESCRIPTION).decode()
        except (OSError, ValueError) as error:
            raise InputError(f"{template} cannot be read: {in_one_line(error)}") from None


def _check_layers(path: Path, fields: dict[str, Any], part: str = "") -> None:
    for field in LAYERS:
        if isinstance(count := fields.get(field), int) and count > MOST_LAYERS:
            raise InputError(f"{path}: {part}{field} is {count}, and no model has more than {MOST_LAYERS} layers")
    if isinstance(text := fields.get("text_config"), dict):
        _check_layers(path, text, "text_config.")


def _layer_configs(config: Any) -> list[Any]:
    """A configuration for each layer where layers differ, or the one of all. Where they differ in a field, the whole
    configuration raises an error instead of naming a value."""
    return list(config.per_layer_config) if getattr(config, "is_heterogeneous", False) else [config]


def sizes_of(config: Any) -> dict[str, list[int]]:
    """The sizes of a language model, by the names that they have in the file; several where layers differ."""
    text = config.get_text_config()
    layers = _layer_configs(text)
    found = {name: [getattr(layer, name, None) for layer in layers] for name in SIZES}
    if found[POSITIONS][0] == NO_LONGEST_TEXT:
        del found[POSITIONS]
    sizes = {name: [size for size in each if isinstance(size, int)] for name, each in found.items()}
    return {text.attribute_map.get(name, name): list(dict.fromkeys(each)) for name, each in sizes.items()}


def check_sizes(where: str, sizes: dict[str, list[int]]) -> None:
    """Refuse sizes that no model has. ``where`` names the file."""
    for name, each in sizes.items():
        if each and min(each) < 1:
            raise InputError(f"{where}: {name} is {min(each)}, and must be at least 1")


def plan(folder: Path, config: Any) -> PreTrainedModel:
    """The model without its weights. Refuses a configuration from which none can be built, or whose model is far too
    large for the weights in the folder: transformers would allocate it before it compares a tensor."""
    try:
        planned = _planned(config)
        parameters = sum(parameter.numel() for parameter in planned.parameters())
    except MemoryError:
        raise
    except Exception as error:  # model classes raise errors of any type
        raise InputError(config_fault(folder, error, _planned)) from error
    files = {path for kind in WEIGHTS for path in folder.glob(kind) if path.is_file()}
    held = sum(path.stat().st_size for path in files)
    if held and not (folder / "adapter_config.json").exists() and parameters > held * PARAMETERS_PER_BYTE:
        if damage := _damaged_weights(folder):
            raise InputError(damage)
        sizes = ", ".join(f"{name} {' and '.join(map(str, each))}" for name, each in sizes_of(config).items() if each)
        raise InputError(
            f"{folder / CONFIG} asks for {parameters} parameters ({sizes}), and the weights beside it are only {held} "
            "bytes; get the files that belong together"
        )
    return planned


def _planned(config: Any) -> PreTrainedModel:
    """This configuration's model; nothing is allocated."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            copy.deepcopy(config),  # it is written into
            trust_remote_code=False,
        )
    return model


def config_fault(folder: Path, error: Exception, use: Callable[[Any], object]) -> str:
    """Why a config.json that is a JSON object cannot be used; names the field at fault where one can be found."""
    path = folder / CONFIG
    fields = read_object(path)
    kind: Any = fields.get("model_type")

    def small(fields: dict[str, Any]) -> None:
        config = CONFIG_MAPPING[kind].from_dict(fields)
        config.get_text_config().num_hidden_layers = 1  # a default size may make a large model
        use(config)

    if isinstance(kind, str) and kind in CONFIG_MAPPING and (field := _to_blame(fields, small)):
        return f"{path}: {field} cannot be {_short(fields[field])} ({in_one_line(error)})"
    if isinstance(kind, str) and kind not in CONFIG_MAPPING:
        return f"{path}: transformers {TRANSFORMERS_VERSION} knows no model_type {kind!r}; a newer version may"
    return refused(
        f"{path} describes no model that transformers {TRANSFORMERS_VERSION} can build ({in_one_line(error)})"
    )


def _to_blame(fields: dict[str, Any], use: Callable[[dict[str, Any]], object]) -> str | None:
    """The field whose removal makes the others usable; None if no single field is at fault."""
    for left_out in (None, *fields):
        try:
            use({name: value for name, value in fields.items() if name != left_out})
        except Exception:  # another field is at fault, or several are
            continue
        return left_out
    return None


def weights_fault(folder: Path, error: Exception) -> str:
    """Why the weights cannot be loaded; names the file at fault where it can be found."""
    if damage := _damaged_weights(folder):
        return damage
    path = folder / GENERATION
    if path.exists() and (field := _to_blame(fields := read_object(path), GenerationConfig.from_dict)):
        return f"{path}: {field} cannot be {_short(fields[field])} ({in_one_line(error)})"
    return refused(f"the weights of {folder} cannot be loaded: {in_one_line(error)}")


def _damaged_weights(folder: Path) -> str | None:
    for path in folder.glob(INDEX):
        try:
            _check_index(path)
        except ValueError as damage:
            return str(damage)
    for path in (path for kind in WEIGHTS for path in sorted(folder.glob(kind))):
        try:
            _types(path)
        except ValueError as damage:
            return str(damage)
    return None


def _types(path: Path) -> dict[str, str]:
    """The types of the numbers in a file of weights, by tensor. No number is read."""
    if path.suffix == ".safetensors":
        try:
            with path.open("rb"), safe_open(path, framework="pt") as file:  # Python's own error gives the reason
                return {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
        except Exception as damage:
            raise DamagedFile(f"{path} cannot be read as weights: {in_one_line(damage)}") from None
    try:
        held = torch.load(path, map_location="meta", weights_only=True)
        return {key: str(part.dtype).removeprefix("torch.") for key, part in held.items() if torch.is_tensor(part)}
    except Exception:  # torch's own message recommends to run what is in the file
        raise DamagedFile(
            f"{path} is damaged, or holds Python objects, which could run code and are not loaded"
        ) from None


def weight_files(folder: Path) -> list[Path]:
    """The files of weights that transformers reads."""
    for name in (WEIGHTS_FILE, "pytorch_model.bin"):
        if (single := folder / name).is_file():
            return [single]
        if (index := folder / f"{name}.index.json").is_file():
            _check_index(index)
            return [folder / file for file in sorted(set(read_object(index)["weight_map"].values()))]
    return []


def check_floats(name: str, folder: Path, model: PreTrainedModel, known: Container[str] | None = None) -> None:
    """Refuse integers, and narrow floats with scales, for weights that the model holds as floats: transformers would
    read them as they are. ``known`` are the tensors of which the configuration says what they stand for, if any."""
    types = {key: kind.lower() for path in weight_files(folder) for key, kind in _types(path).items()}
    if known is not None:
        types = {key: kind for key, kind in types.items() if key not in known}
    lead = f"{model.base_model_prefix}."
    floats = {key.removeprefix(lead) for key, weight in model.named_parameters() if weight.is_floating_point()}
    scaled = {stem + end for key in types if (stem := OF_SCALE.sub("", key)) != key for end in ("", ".weight")}
    wrong = [
        key
        for key, kind in sorted(types.items())
        if (kind.startswith(("i", "u")) and (key.endswith("weight") or key.removeprefix(lead) in floats))
        or (kind.startswith(NARROW) and key in scaled)
    ]
    if wrong:
        raise InputError(
            f"{name} stores numbers of type {types[wrong[0]]} for weights that the model computes with in floats "
            f"({listed(wrong)}), and {'no' if known is None else 'the'} quantization_config in its config.json "
            f"{'says' if known is None else 'does not say'} what they stand for; get the config.json that belongs to "
            f"them, or {USE_ORIGINAL}"
        )


def _check_index(path: Path) -> None:
    index = read_object(path)
    for field in ("metadata", "weight_map"):
        if not isinstance(index.get(field), dict):
            raise InputError(f"{path}: {field} must be an object, not {_short(index.get(field))}")
    files = index["weight_map"].values()
    if not files or not all(isinstance(file, str) for file in files):
        raise InputError(f"{path}: weight_map must name a file for every tensor")
    if absent := sorted({file for file in files if not (path.parent / file).is_file()}):
        raise InputError(f"{path} names {listed(absent)}, and {path.parent} has no such file")


def tokenizer_fault(folder: Path, error: Exception) -> str:
    """Why a tokenizer cannot be loaded; names the file at fault where it can be found."""
    if os.path.lexists(path := folder / TOKENIZER):
        try:
            Tokenizer.from_file(str(path))
        except Exception as damage:
            return f"{path} cannot be read as a tokenizer: {in_one_line(damage)}"
    elif os.path.lexists(vocabulary := folder / "vocab.json"):
        read_object(vocabulary)
    else:
        return f"{folder} has no tokenizer.json, and its other files make no tokenizer: {in_one_line(error)}"
    if (path := folder / TOKENIZER_CONFIG).exists():
        with workplace() as place:
            for file in folder.iterdir():
                if file.is_file() and file.name != TOKENIZER_CONFIG:
                    (place / file.name).symlink_to(file.resolve())

            def use(fields: dict[str, Any]) -> None:
                (place / TOKENIZER_CONFIG).write_text(json.dumps(fields), encoding="utf8")
                AutoTokenizer.from_pretrained(place, trust_remote_code=False).encode("", verbose=False)

            if field := _to_blame(fields := read_object(path), use):
                return f"{path}: {field} cannot be {_short(fields[field])} ({in_one_line(error)})"
    return f"the tokenizer of {folder} cannot be loaded: {in_one_line(error)}"


def check_found(name: str, found: dict[str, Any]) -> list[str]:
    """Refuse a checkpoint that lacks tensors of its model, or has them in other shapes: transformers fills these at
    random. Returns the tensors that the model does not have; they change nothing."""
    if lacking := sorted(found["missing_keys"]):
        raise InputError(
            f"the weights of {name} lack {len(lacking)} of the tensors that config.json asks for ({listed(lacking)}); "
            "get the whole checkpoint, or the config.json that belongs to it"
        )
    if others := sorted(found["mismatched_keys"]):
        shapes = [f"{key} is {_shape(own)}, not {_shape(wanted)}" for key, own, wanted in others]
        raise InputError(
            f"the weights of {name} have {len(others)} tensors of other shapes than config.json asks for "
            f"({listed(shapes)}); get the config.json that belongs to them"
        )
    return sorted(found["unexpected_keys"])


def unused(name: str, extra: list[str]) -> str:
    """A sentence about the tensors that `check_found` returns."""
    return f"{name} has no place for {len(extra)} of the tensors in its weights ({listed(extra)}); they are left out"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' table of loaded tensors off standard error: `check_found` reports what is in it."""
    log = logging.getLogger("transformers.modeling_utils")

    def keep(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


def in_one_line(error: Exception) -> str:
    """An error in one line, with its type first where the text alone says too little, as with a missing key."""
    plain = getattr(error, "strerror", None) or str(error)
    lines = [line.strip() for line in plain.strip().splitlines()] or [""]
    text = " ".join(lines) if lines[0].endswith(":") else lines[0]
    if not text or isinstance(error, (LookupError, TypeError, AttributeError, ArithmeticError)):
        text = f"{type(error).__name__}: {text}".rstrip(": ")
    return text if len(text) <= LONG else f"{text[:LONG]}..."


def listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _shape(sizes: Any) -> str:
    return " x ".join(map(str, sizes))


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
