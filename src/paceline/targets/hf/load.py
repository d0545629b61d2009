"""From a path, a name or a loaded model to a target that has been probed."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from paceline.errors import InputError
from paceline.targets import hub, trust
from paceline.targets.device import CPU_DEVICE, asked
from paceline.targets.hf import folder
from paceline.targets.hf.compiled import compiling_pays
from paceline.targets.hf.folder import in_one_line
from paceline.targets.hf.integers.stored import Stored, is_described, layout_of
from paceline.targets.hf.integers.target import check_place, obstacle, quantized
from paceline.targets.hf.names import TRACKS
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.speed import to_float32, widened
from paceline.targets.hf.target import HFTarget, refuse_unknown
from paceline.targets.hf.versions import TRANSFORMERS_VERSION, refused
from paceline.targets.place import bits_of, named_dtype

if TYPE_CHECKING:
    from paceline.targets.hf.ranks.group import RankGroup

NO_GGUF = (
    "download one and give its path, or give the name of the original model, whose weights are *.safetensors, with "
    "--quantize int8 for 8-bit integers"
)
"""Where a model of a hub is stored for llama.cpp."""


def load_target(
    model: str | Path | PreTrainedModel,
    *,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    device: str | int | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    fixed_shapes: bool | None = None,
    trust_remote_code: bool = False,
    strict: bool = True,
    group: RankGroup | None = None,
) -> HFTarget:
    """A transformers causal LM by path, hub name or as a loaded object.

    ``dtype`` is the checkpoint's own unless named, or float32 where this CPU is faster in it (`speed`). A checkpoint in
    8-bit integers that are computed here stays in them, also without ``quantize`` (`integers.stored`). ``device`` is
    chosen here unless named (`targets.device`). A loaded object keeps its own type and place. ``fixed_shapes`` is as in
    `HFTarget`, ``trust_remote_code`` as in `paceline.load`.

    Unless this is ``strict``, ``dtype``, ``quantize`` and ``device`` say what is preferred: a checkpoint in integers
    stays in them and on the CPU, and a model that integers do not know is computed in float32. With a ``group`` the
    target is this rank's part of the model.
    """
    kind, bits = named_dtype(dtype), bits_of(quantize)
    if isinstance(model, PreTrainedModel):
        if bits is not None:
            raise InputError(
                f"the model was handed over loaded and stays as it is; for quantize={quantize} give its folder"
            )
        return _handed_over(model, kind, fixed_shapes, placed=device is not None or device_map is not None)
    if device is not None and device_map is not None:
        raise InputError(f"device={device} and device_map={device_map} both place the model; give one of them")
    where, name = asked(device), _name(model)
    if bits is not None:
        check_place(name, kind, where.for_integers(), device_map, bits=bits, fixed_shapes=fixed_shapes)
    trusted = trust_remote_code or trust.trusts_all()
    options = _hub_options(name)
    config = _config(name, trusted, options)
    _check_bits(name, config, bits, strict, group)
    given = (kind, where.for_integers()) if strict else (None, CPU_DEVICE)
    fitting = partial(check_place, name, *given, device_map, fixed_shapes=fixed_shapes, stored=True)
    layout = layout_of(name, config, fitting)
    if layout is not None and not strict:
        kind = torch.float32  # a narrower type would round what is scaled
    planned = None
    if not (trusted and _brings_model(config)):
        refuse_unknown(config, _model_class(name, config))
        if Path(name).is_dir():
            planned = folder.plan(Path(name), config)
    in_floats = layout is None and not is_described(config)
    if in_floats and planned is not None:
        folder.check_floats(name, Path(name), planned)
    placed = {"device_map": device_map} if device_map is not None else {}
    renaming = {"key_mapping": layout.renaming} if layout is not None else {}
    loaded, extra = _weights(name, config, kind, trusted, options | placed | renaming)
    if in_floats and planned is None:
        folder.check_floats(name, _folder(name, options), loaded)
    stored = None
    if layout is not None:
        stored = Stored(name, _folder(name, options), layout)
        stored.scale(loaded)
        folder.check_floats(name, _folder(name, options), loaded, known=stored.tensors)
        extra = stored.left(extra)
    if extra:
        warnings.warn(folder.unused(name, extra), UserWarning, stacklevel=2)
    if group is not None:
        from paceline.targets.hf.ranks.target import over_ranks

        return over_ranks(loaded, group, name)
    if bits is not None or stored is not None:
        found = prepare(HFTarget(loaded, name=name, fixed_shapes=False))
        if strict or obstacle(found) is None:
            return quantized(found, stored, 8 if stored is not None else bits or 8)
        to_float32(loaded)
    # A quantised checkpoint of another format stays where transformers put it, unless a device was named.
    if device_map is None and (where.device is not None or not is_described(config)):
        needed = sum(part.nbytes for part in (*loaded.parameters(), *loaded.buffers()))
        torch.nn.Module.to(loaded, where.for_floats(name, needed, loaded.dtype))
    free = kind is None and loaded.device.type == "cpu" and not placed
    return _in_floats(name, loaded, free, fixed_shapes)


def _handed_over(
    model: PreTrainedModel, kind: torch.dtype | None, fixed_shapes: bool | None, *, placed: bool
) -> HFTarget:
    """The target of a loaded model, as it is and where it is."""
    named = str(kind).removeprefix("torch.")
    if kind is not None and kind != model.dtype:
        raise InputError(f"the model was handed over as {model.dtype}; convert it yourself instead of dtype={named}")
    if placed:
        raise InputError("the model was handed over loaded; move it yourself instead of naming a device")
    return prepare(HFTarget(model, fixed_shapes=fixed_shapes))


def _in_floats(name: str, loaded: PreTrainedModel, free: bool, fixed_shapes: bool | None) -> HFTarget:
    """The target of a model in floats, of which type is ``free`` to choose."""
    note = widened(loaded) if free and not compiling_pays(loaded) else None
    target = prepare(HFTarget(loaded, name=name, fixed_shapes=fixed_shapes).pack())
    target.note = "; ".join(filter(None, (note, target.note))) or None
    return target


def _check_bits(name: str, config: Any, bits: int | None, strict: bool, group: RankGroup | None) -> None:
    if group is not None and is_described(config):
        raise InputError(f"{name} is quantised, and only models in floats are cut over ranks; give the original model")
    if bits == 4 and strict and is_described(config):
        raise InputError(f"{name} is quantised already; leave quantize=int4 out, or give the original model")


def _name(model: str | Path) -> str:
    """The name or path for transformers to look up. A path that does not exist is refused before a hub is asked for
    it."""
    if not isinstance(model, (str, Path)):
        raise InputError(f"a model is a name, a folder or a loaded transformers model, not {model!r}")
    if model == "":
        raise InputError("a model is a name or a folder, not ''")
    try:
        path = Path(model).expanduser()
    except RuntimeError:
        raise InputError(f"no model at {str(model)!r}: there is no such user here") from None
    if path.is_dir():
        return str(path)
    if hub.GGUF.search(str(model)):
        raise InputError(f"{model} names GGUF files of a hub: {NO_GGUF}")
    if path.exists():
        raise InputError(f"no model at {str(model)!r}: give the folder that holds config.json and weights, not a file")
    name = str(model) if isinstance(model, Path) else hub.repository(model)
    if isinstance(model, Path) or name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise InputError(f"no model at {str(model)!r}: there is no such folder")
    return name


def _hub_options(name: str) -> dict[str, Any]:
    """Arguments for transformers. A folder may still name a model on a hub, for example an adapter's base."""
    return {} if Path(name).is_dir() else {"local_files_only": not hub.answers()}


def _config(name: str, trusted: bool, options: dict[str, Any]) -> Any:
    """The configuration, so that a model that cannot be served is refused before its weights are read."""
    place = Path(name)
    local = place.is_dir()
    if local:
        folder.check_files(place)
        if not (place / folder.CONFIG).exists():
            raise InputError(f"{name} is not a folder with a readable transformers config.json: it has none")
        _register_own(place)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trusted, **options)
        sizes = folder.sizes_of(config)
    except MemoryError:
        raise
    except Exception as error:  # transformers reports damaged files with errors of every kind
        if trust.is_unanswered(error):
            raise trust.refusal(name) from None
        if local:
            raise InputError(folder.config_fault(place, error, folder.sizes_of)) from error
        if not isinstance(error, OSError):
            raise InputError(refused(f"the config.json of {name} cannot be used: {in_one_line(error)}")) from error
        if options["local_files_only"]:
            raise InputError(
                f"no model at {name!r}: there is no such folder, nothing of that name was downloaded before, "
                "and no hub answers"
            ) from None
        raise InputError(f"no model at {name!r}: neither a local folder nor a model name that can be reached") from None
    folder.check_sizes(str(place / folder.CONFIG) if local else f"the config.json of {name}", sizes)
    return config


def _register_own(place: Path) -> None:
    """Let transformers know the kind of model in a folder, where it is one of this project's."""
    if tracks_of(place) is not None:
        from paceline.targets.hf.tracks import register

        register()


def tracks_of(place: Path) -> int | None:
    """In how many parallel tracks the model in a folder runs; None for an ordinary model."""
    file = place / folder.CONFIG
    said = folder.read_object(file) if file.exists() else {}
    count = said.get("tracks")
    return (count if isinstance(count, int) else 0) if said.get("model_type") == TRACKS else None


def config_of(name: str, trust_remote_code: bool = False) -> Any:
    """The configuration in a folder, refused where it describes no model that transformers knows."""
    trusted = trust_remote_code or trust.trusts_all()
    config = _config(name, trusted, _hub_options(name))
    refuse_unknown(config, _model_class(name, config))
    return config


def _brings_model(config: Any) -> bool:
    """Whether the configuration names a model class in a Python file beside it."""
    return "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or ())


def _model_class(name: str, config: Any) -> Any:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        if _brings_model(config):
            raise trust.refusal(name)
        raise InputError(
            f"{name} is a {config.model_type} model, which transformers {TRANSFORMERS_VERSION} knows no causal LM for"
        )
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _weights(
    name: str, config: Any, kind: torch.dtype | None, trusted: bool, options: dict[str, Any]
) -> tuple[PreTrainedModel, list[str]]:
    """The model with its weights, every tensor of which came from the checkpoint, and the checkpoint's other
    tensors."""
    try:
        with folder.quiet(), hub.loading():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                name,
                config=config,
                dtype=kind or "auto",
                trust_remote_code=trusted,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they come with the loading info
                **options,
            )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # file formats raise errors of any type
        if Path(name).is_dir():
            raise InputError(folder.weights_fault(Path(name), error)) from error
        raise InputError(refused(f"{name} cannot be loaded: {in_one_line(error)}")) from error
    return loaded[0], folder.check_found(name, loaded[1])


def _folder(name: str, options: dict[str, Any]) -> Path:
    """The folder of a model, where a hub's name was downloaded to."""
    path = Path(name)
    return path if path.is_dir() else Path(str(cached_file(name, folder.CONFIG, **options))).parent


def load_tokenizer(model: str | Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, if there is one."""
    name = _name(model)
    local = Path(name).is_dir()
    if local:
        if not any(path.match(kind) for path in Path(name).iterdir() for kind in folder.TOKENIZERS):
            return None
        folder.check_files(Path(name))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, trust_remote_code=trust_remote_code or trust.trusts_all(), **_hub_options(name)
        )
        tokenizer.encode("", verbose=False)  # a length limit that is no number is found only here
    except MemoryError:
        raise
    except Exception as error:  # tokenizers raise errors of any type
        if trust.is_unanswered(error):
            raise trust.refusal(name) from None
        if not local and isinstance(error, (OSError, ValueError)):
            return None
        own = f"the tokenizer of {name} cannot be loaded: {in_one_line(error)}"
        raise InputError(folder.tokenizer_fault(Path(name), error) if local else own) from error
    if not tokenizer.vocab_size:
        raise InputError(f"the tokenizer of {name} has no tokens: its vocabulary file is empty, or not there")
    return tokenizer
