"""The target's ids of the tokens that a head knows, in files: published heads have them as ``d2t`` and ``t2d``.

``d2t`` are the differences between the target's ids and the numbers of the output's rows. ``t2d`` says of each of the
target's tokens whether the head knows it. Either is enough; files with both must name the same tokens.
"""

from __future__ import annotations

import torch

from paceline.drafters.networks.checkpoint import Tensors
from paceline.drafters.networks.heads import MEND
from paceline.errors import DamagedFile, InputError

D2T, T2D, TOKEN_IDS = "d2t", "t2d", "token_ids"


def with_token_ids(tensors: Tensors, kept: int, vocab_size: int, where: str) -> dict[str, torch.Tensor]:
    """The tensors of a file with the target's ids of ``kept`` tokens in place of both tables; without either where a
    head knows all tokens, which is 0."""
    found = {name: weight for name, weight in tensors.items() if name not in (D2T, T2D)}
    return {**found, TOKEN_IDS: _ids(tensors, kept, vocab_size, where)} if kept else found


def _ids(tensors: Tensors, kept: int, vocab_size: int, where: str) -> torch.Tensor:
    d2t, t2d = tensors.get(D2T), tensors.get(T2D)
    if d2t is not None:
        _check(D2T, d2t, kept, where)
        ids = torch.arange(kept) + d2t.long()
    if t2d is not None:
        _check(T2D, t2d, vocab_size, where)
        known = t2d.bool().nonzero().flatten()
        ids = known if d2t is None else ids
        if not torch.equal(known, ids.sort().values):
            raise DamagedFile(f"{D2T} and {T2D} of {where} name different tokens; {MEND}")
    elif d2t is None:
        raise InputError(f"{where} lacks the tensor {D2T}, which says what its {kept} tokens are; {MEND}")
    inside = len(ids) == kept and int(ids.min()) >= 0 and int(ids.max()) < vocab_size
    if not inside or len(ids.unique()) != kept:
        raise DamagedFile(f"{D2T} of {where} does not name {kept} of {vocab_size} tokens; {MEND}")
    return ids


def _check(name: str, tensor: torch.Tensor, size: int, where: str) -> None:
    if tuple(tensor.shape) != (size,) or tensor.is_floating_point() or tensor.is_complex():
        has = " x ".join(map(str, tensor.shape))
        raise InputError(
            f"the tensor {name} of {where} is {has} of type {str(tensor.dtype)[6:]}, and its configuration says "
            f"{size} numbers; {MEND}"
        )


def with_tables(tensors: Tensors, vocab_size: int) -> dict[str, torch.Tensor]:
    """The tensors of a head with both tables in place of the ids, if it has any."""
    found = dict(tensors)
    ids = found.pop(TOKEN_IDS, None)
    if ids is None:
        return found
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids.cpu()] = True
    return {**found, D2T: ids.cpu() - torch.arange(len(ids)), T2D: known}
