"""Labels on disk, in parts that are written whole: a run that was stopped goes on with those that are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from paceline.files import partial
from paceline.train.redrafter.labels import Labels, Teacher, joined

PART = 64
"""Windows in a part."""
COLUMNS = ("states", "tokens", "law_ids", "law_logs")
Stored = dict[str, torch.Tensor]
Advance = Callable[[int, int], None]
"""Called with the number of parts that are there, and of all."""


class LabelStore:
    """The labels of so many windows from all over a teacher's text."""

    def __init__(self, folder: Path, windows: int) -> None:
        self.folder, self.windows = folder, windows

    @property
    def parts(self) -> int:
        return -(-self.windows // PART)

    def file(self, part: int) -> Path:
        return self.folder / f"{part:06d}.pt"

    @property
    def missing(self) -> list[int]:
        return [part for part in range(self.parts) if not self.file(part).exists()]

    def labelled(self, teacher: Teacher, part: int) -> Stored:
        """One part. It depends on nothing but the teacher and the number, so any process may make it."""
        numbers = teacher.shuffled()[part * PART : min((part + 1) * PART, self.windows)]
        labels = joined([teacher.label(int(number)) for number in numbers])
        stored = {"states": labels.states.to(torch.bfloat16), "tokens": labels.tokens.int()}
        if labels.law_ids is not None and labels.law_logs is not None:
            stored |= {"law_ids": labels.law_ids.int(), "law_logs": labels.law_logs.to(torch.float16)}
        return stored

    def write(self, part: int, stored: Stored) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with partial(self.file(part)) as fresh:
            torch.save(stored, fresh)

    def fill(self, teacher: Teacher, advance: Advance) -> None:
        missing = self.missing
        for done, part in enumerate(missing):
            advance(self.parts - len(missing) + done, self.parts)
            self.write(part, self.labelled(teacher, part))
        advance(self.parts, self.parts)

    def read(self) -> Labels:
        """All parts; tokens and states stay in the types in which they are stored until a batch is made of them."""
        found = [torch.load(self.file(part), weights_only=True, mmap=True) for part in range(self.parts)]
        columns = [[each[name] for each in found] for name in COLUMNS if name in found[0]]
        return Labels(*(torch.cat(column) for column in columns))


def bytes_of(windows: int, teacher: Teacher) -> int:
    """How many bytes the labels of so many windows take, at most."""
    settings = teacher.settings
    width = int(teacher.target.embed(torch.zeros(1, dtype=torch.int64, device=teacher.target.device)).shape[-1])
    row = 2 * width + 4 * (settings.ahead + 1) + (6 * settings.ahead * 32 if settings.laws else 0)
    return windows * teacher.size * row


def batch_of(labels: Labels, chosen: np.ndarray, dtype: torch.dtype, device: torch.device) -> Labels:
    """Positions of a store as a batch to train on."""
    rows = labels.rows(torch.from_numpy(chosen))
    laws = [None if part is None else part.to(device) for part in (rows.law_ids, rows.law_logs)]
    ids, logs = (None if part is None else part.to(kind) for part, kind in zip(laws, (torch.int64, dtype), strict=True))
    return Labels(rows.states.to(device, dtype), rows.tokens.to(device, torch.int64), ids, logs)
