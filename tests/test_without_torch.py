"""Texts are written without torch where their target needs none: rows are numpy's, or lent by DLPack."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from engine import habitual
from paceline.api.model import LanguageModel
from paceline.errors import InputError
from paceline.law.scores import full_precision
from paceline.targets.table import TableTarget

SMALL, LARGE = 12, 4097
"""Sizes of vocabularies that are read whole, and by blocks."""
METHODS = ("plain", "lookup", "recycling", "lookahead", "unispec", "spectra")
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.01},
    {
        "temperature": 0.8,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "logit_bias": {3: 0.5},
        "banned": [[4], [1, 2]],
    },
)
PROMPTS = ([0, 3, 1, 4, 2, 0, 3], [5, 3, 1])


class Lent:
    """Rows of another library: indexed, and lent by DLPack."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.shape = rows.shape

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> "Lent":
        return Lent(self._rows[key])

    def __dlpack__(self, **how: Any) -> Any:
        return self._rows.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._rows.__dlpack_device__()  # type: ignore[no-any-return]


class Lending(TableTarget):
    """A table of another library."""

    def _logits(self, histories: Any) -> Any:
        return Lent(super()._logits(histories).astype(np.float32))


class Elsewhere(Lent):
    """Rows that numpy cannot read, as those on a GPU."""

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("they are on a GPU")


def test_rows_that_cannot_be_lent_are_refused_with_the_mend() -> None:
    with pytest.raises(InputError, match=r"logits in a test_without_torch\.Elsewhere .*GPU.*hand over float32 rows"):
        full_precision(Elsewhere(np.zeros((1, 3), np.float32)))


KINDS: tuple[tuple[type[TableTarget], int], ...] = ((TableTarget, SMALL), (Lending, SMALL), (TableTarget, LARGE))


def texts() -> list[Any]:
    """What the methods write, alone and together, with log-probabilities."""
    found = list[Any]()
    lm, lending, large = (kind(habitual(size), size) for kind, size in KINDS)
    cases = [(lm, "auto", how) for how in SETTINGS] + [(lm, method, SETTINGS[1]) for method in METHODS]
    cases += [(lending, "auto", SETTINGS[0]), (lending, "auto", SETTINGS[1]), (large, "auto", SETTINGS[1])]
    for target, method, how in cases:
        model, given = LanguageModel(target), {"method": method, "seed": 1, "max_new_tokens": 16, "logprobs": 2, **how}
        alone = [model.generate(prompt, **given) for prompt in PROMPTS]
        batch = [text for (text,) in model.generate_batch(PROMPTS, **given)]
        assert [text.tokens for text in alone] == [text.tokens for text in batch]
        found += [[text.tokens, text.openai_logprobs()] for text in alone]
    return found


def test_the_texts_are_those_with_torch() -> None:
    assert "torch" in sys.modules, "the other tests load it"
    program = "sys.modules['torch'] = None\nfrom test_without_torch import texts\nprint(json.dumps(texts()))"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(paceline.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{program}"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == json.loads(json.dumps(texts()))
