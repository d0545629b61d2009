"""The identity of weights: a digest of names, shapes and an even sample of values. Libraries that hold the same weights
find the same identity, so a head that was trained over one of them drafts over the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from paceline.law.scores import Row

SAMPLED = 4096
"""About how many values of a weight are read."""
DIGITS = 16


def sample_step(count: int) -> int:
    """Of ``count`` values every which one is read."""
    return max(1, count // SAMPLED)


def identity_of(shape: Sequence[int], sample: Row) -> bytes:
    """A digest of a weight's shape and of a sample of its values in float32."""
    return hashlib.sha256(f"{tuple(shape)}".encode() + sample.tobytes()).digest()


def fingerprint_of(identities: Iterable[tuple[str, bytes]]) -> str:
    """A digest of the names and identities of all weights."""
    digest = hashlib.sha256()
    for name, identity in sorted(identities):
        digest.update(name.encode() + identity)
    return digest.hexdigest()[:DIGITS]
