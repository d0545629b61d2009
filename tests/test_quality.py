"""What integers change of a model's predictions, measured on texts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from families import build
from paceline.cli import main
from paceline.targets.hf.integers.target import quantized
from paceline_lab.bench.quality import WINDOW, compared, windows
from scoring import load_quietly, target_of, tokens


@pytest.mark.parametrize("length", [2, WINDOW, WINDOW + 1, 2 * WINDOW, 1000, 1300])
def test_every_token_but_the_first_is_counted_once(length: int) -> None:
    text = np.arange(length)
    counted = [token for window, first in windows(text) for token in window[first:].tolist()]
    assert counted == list(range(1, length))
    assert all(len(window) <= WINDOW for window, _ in windows(text))


def test_a_model_beside_itself_has_no_change() -> None:
    found = compared(target_of("llama"), target_of("llama"), tokens(40))
    assert (found.tokens, found.agreed, found.divergence, found.change) == (39, 39, 0.0, 0.0)


def test_the_loss_is_that_of_the_model() -> None:
    text = tokens(40)
    with torch.no_grad():
        ids = torch.from_numpy(text)[None]
        wanted = float(build("llama")(input_ids=ids, labels=ids).loss)
    found = compared(target_of("llama"), quantized(load_quietly(build("llama"))), text)
    assert found.losses[0] == pytest.approx(wanted, rel=1e-4)
    assert found.losses[1] != found.losses[0]
    assert found.divergence > 0


def test_the_command_prints_both_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("Once upon a time there was an old man who lived by the sea. " * 4)
    assert main(["bench", "quality", str(file), "--characters", "120", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["texts"][0]
    assert found["loss"]["int8"] == pytest.approx(found["loss"]["float32"], rel=0.05)
    assert found["tokens"] < 120


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_file_without_text_is_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.txt"
    file.write_text(text)
    assert main(["bench", "quality", str(file)]) == 2
    assert "has no text" in capsys.readouterr().err
