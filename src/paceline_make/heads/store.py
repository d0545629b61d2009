"""Labels on disk, in parts that are written whole: a run that was stopped goes on with those that are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from paceline.drafters.networks.fitting import state_width
from paceline.files import naming
from paceline_make.heads.labels import NOTHING, TOP, Labels, Teacher, joined
from paceline_make.states import read_state, save_state, usable

PART = 64
"""Windows in a part."""
AGAIN = "delete it and give the same command again, which makes its labels again and keeps the others"
Stored = dict[str, torch.Tensor]
Advance = Callable[[int, int], None]
"""Called with the number of parts that are there, and of all."""


class LabelStore:
    """The labels of ``windows`` windows from all over a teacher's text."""

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
        if labels.text is not None:
            stored["text"] = labels.text.int()
        return stored

    def write(self, part: int, stored: Stored) -> None:
        file = self.file(part)
        with naming(file):
            self.folder.mkdir(parents=True, exist_ok=True)
        save_state(file, stored)

    def fill(self, teacher: Teacher, advance: Advance) -> None:
        missing = self.missing
        for done, part in enumerate(missing):
            advance(self.parts - len(missing) + done, self.parts)
            self.write(part, self.labelled(teacher, part))
        advance(self.parts, self.parts)

    def read(self, teacher: Teacher) -> Labels:
        """All parts; tokens and states stay in the types in which they are stored until a batch is made of them."""
        found = list[Labels]()
        for file in map(self.file, range(self.parts)):
            with usable(file, AGAIN):
                labels = Labels(**read_state(file, mmap=True))
                check(labels, teacher)
            found.append(labels)
        return joined(found)


def check(labels: Labels, teacher: Teacher) -> None:
    """ValueError unless a teacher could have made these."""
    count, ahead = len(labels.states), teacher.settings.ahead
    tokens = labels.tokens
    inside = not tokens.numel() or (tokens.min() >= NOTHING and tokens.max() < teacher.target.vocab_size)
    laws = [part for part in (labels.law_ids, labels.law_logs) if part is not None]
    if labels.states.shape != (count, width_of(teacher)) or tokens.shape != (count, ahead + 1) or not inside:
        raise ValueError("its states or tokens are of another model")
    if len(laws) != 2 * teacher.settings.laws or any(
        part.shape[:2] != (count, ahead + 1 - teacher.first) for part in laws
    ):
        raise ValueError("its laws are of other settings")
    texts = [] if labels.text is None else [labels.text]
    if len(texts) != teacher.reading.whole or any(text.shape != (count,) or count % teacher.size for text in texts):
        raise ValueError("its windows are of another kind of head")


def bytes_of(windows: int, teacher: Teacher) -> int:
    """How many bytes the labels of ``windows`` windows take, at most."""
    settings = teacher.settings
    laws = settings.ahead + 1 - teacher.first if settings.laws else 0
    row = 2 * width_of(teacher) + 4 * (settings.ahead + 1) + 6 * laws * TOP
    return windows * teacher.size * (row + 4 * teacher.reading.whole)


def width_of(teacher: Teacher) -> int:
    """Of the states of a position."""
    return state_width(teacher.reader) * len(teacher.layers)


def batch_of(labels: Labels, chosen: np.ndarray, dtype: torch.dtype, device: torch.device) -> Labels:
    """Positions of a store as a batch to train on."""
    rows = labels.rows(torch.from_numpy(chosen))
    laws = [None if part is None else part.to(device) for part in (rows.law_ids, rows.law_logs)]
    ids, logs = (None if part is None else part.to(kind) for part, kind in zip(laws, (torch.int64, dtype), strict=True))
    text = None if rows.text is None else rows.text.to(device, torch.int64)
    return Labels(rows.states.to(device, dtype), rows.tokens.to(device, torch.int64), ids, logs, text)
