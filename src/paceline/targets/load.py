"""Opening a model that runs here: a bundled one by its name, any other by path, hub name or as an object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InputError
from paceline.targets.forked import note_use
from paceline.targets.gguf.file import named_file
from paceline.targets.mlx.names import is_mlx
from paceline.targets.pocket.names import BALLAST_MARK, is_bundled

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from paceline.targets.base import Target
    from paceline.targets.gguf.target import GgufTarget
    from paceline.targets.hf.ranks.group import RankGroup
    from paceline.targets.hf.target import HFTarget
    from paceline.targets.mlx.target import MLXTarget

PROBED = 50_000_000
"""Models of fewer parameters are not probed: rounds of a few milliseconds teach a planner as fast as a probe would."""


def open_model(
    model: str | Path | PreTrainedModel,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | int | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    quantize: str | None = None,
    fixed_shapes: bool | None = None,
    trust_remote_code: bool = False,
    with_tokenizer: bool = True,
    probe: bool = False,
    strict: bool = True,
    group: RankGroup | None = None,
) -> tuple[HFTarget | GgufTarget | MLXTarget, Any]:
    """A probed target and its tokenizer, if it has one and ``with_tokenizer``; a loaded model comes without one.

    The name of a bundled model stands for that model even if a folder is called the same; the folder is reached as
    ``./pocket`` or as a `Path`. With ``probe``, planners time a few forwards before the first text, of a model on a CPU
    that is large enough. ``strict`` is as in `load_target`; bundled models are what is asked for.
    With a ``group`` the target is this rank's part of the model (`open_over_ranks`).
    """
    note_use()
    if isinstance(model, str) and is_mlx(model):
        from paceline.targets.mlx.load import load_mlx
        from paceline.targets.mlx.load import load_tokenizer as load_mlx_tokenizer

        found = load_mlx(
            model,
            dtype=dtype,
            device=device,
            device_map=device_map,
            quantize=quantize,
            fixed_shapes=fixed_shapes,
            trust_remote_code=trust_remote_code,
            strict=strict,
        )
        found.probing = probe and _is_worth_probing(found)
        return found, load_mlx_tokenizer(model, trust_remote_code) if with_tokenizer else None
    if isinstance(model, str) and is_bundled(model):
        if device_map is not None:
            raise InputError(f"{model} is built on one device; give device instead of device_map={device_map}")
        target, tokenizer = _bundled(model, dtype, device, quantize, fixed_shapes, group)
        target.probing = probe and _is_worth_probing(target)
        return target, tokenizer
    if (file := named_file(model)) is not None:
        if device_map is not None or fixed_shapes:
            raise InputError(f"llama.cpp places {file} itself; leave device_map and fixed_shapes out")
        from paceline.targets.gguf.load import load_file

        opened, own = load_file(file, device=device, dtype=dtype, quantize=quantize, strict=strict)
        opened.probing = probe and _is_worth_probing(opened)
        return opened, own if with_tokenizer else None
    from paceline.targets.hf.load import load_target, load_tokenizer

    target = load_target(
        model,
        dtype=dtype,
        device=device,
        device_map=device_map,
        quantize=quantize,
        fixed_shapes=fixed_shapes,
        trust_remote_code=trust_remote_code,
        strict=strict,
        group=group,
    )
    target.probing = probe and _is_worth_probing(target)
    if not isinstance(model, str | Path) or not with_tokenizer:
        return target, None
    return target, load_tokenizer(model, trust_remote_code)


def open_over_ranks(
    ranks: int, model: str | Path | PreTrainedModel, *, device: str | int | torch.device | None = None, **options: Any
) -> tuple[HFTarget, Any]:
    """The same for a model that is cut over the processes that torchrun started, on the first of them. The others
    compute their parts in here, and end with the first one."""
    _check_cut(model, ranks, options)
    from paceline.targets.hf.ranks.group import RankGroup
    from paceline.targets.hf.ranks.target import RankTarget

    group = RankGroup.join(ranks, device)
    try:
        with group.opening():
            target, tokenizer = open_model(model, device=group.device, group=group, **options)
        assert isinstance(target, RankTarget), "models that are not cut were refused"
        if not group.leads:
            target.follow(open_model)
        target.lead()
    except BaseException:
        group.abandon()
        raise
    return target, tokenizer


def open_beside(
    beside: Target, model: str | Path, *, device: str | int | torch.device | None = None, **options: Any
) -> tuple[HFTarget | GgufTarget | MLXTarget, Any]:
    """A draft model for a target: a track on each rank of that target if it has tracks; else on this process alone."""
    if beside.ranks > 1 and Path(model).is_dir():
        from paceline.targets.hf.load import tracks_of
        from paceline.targets.hf.ranks.target import RankTarget, check_tracks

        if isinstance(beside, RankTarget) and (count := tracks_of(Path(model))) is not None:
            check_tracks(str(model), count, beside.ranks)
            return beside.opened_beside(str(model), {**options, "device": beside.group.device}, open_model)
    return open_model(model, device=device, **options)


def _check_cut(model: object, ranks: object, options: Mapping[str, object]) -> None:
    """Refuse what is not computed over several ranks, before any are joined."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise InputError(f"tensor_parallel is a number of ranks, 1 or more, not {ranks!r}")
    for name in ("device_map", "quantize", "fixed_shapes"):
        if value := options.get(name):
            raise InputError(f"a model over {ranks} ranks is computed in floats as they come; leave out {name}={value}")
    if not isinstance(model, str | Path):
        raise InputError("the model was handed over loaded, and is not cut over ranks; give its folder or name")
    if is_mlx(str(model)) or named_file(model) is not None:
        raise InputError(f"{model} is computed by another library, which does not cut it over ranks")


def _is_worth_probing(target: HFTarget | GgufTarget | MLXTarget) -> bool:
    return target.device == "cpu" and target.parameters >= PROBED


def _bundled(
    name: str,
    dtype: str | torch.dtype | None,
    device: str | int | torch.device | None,
    quantize: str | None,
    fixed_shapes: bool | None,
    group: RankGroup | None,
) -> tuple[HFTarget, Any]:
    """Without transformers' model code, which takes longer to load than such a model."""
    from paceline.targets.device import asked
    from paceline.targets.place import bits_of, named_dtype
    from paceline.targets.pocket.bundle import BundledTokenizer
    from paceline.targets.pocket.open import open_bundled

    target = open_bundled(name, named_dtype(dtype), asked(device), bits_of(quantize), fixed_shapes, group)
    return target, BundledTokenizer(name.partition(BALLAST_MARK)[0])
