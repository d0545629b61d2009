"""What ends a training from outside: full disks, damaged files, absurd numbers. A sentence each, and nothing lost."""

from __future__ import annotations

import argparse
import errno
import io
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from engine import SIZE, habitual
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.drafters.networks.redrafter.checkpoint import read_head
from paceline.errors import DamagedFile, InputError, UnwritableFile
from paceline.targets.table import TableTarget
from paceline_make import states
from paceline_make.commands import train
from paceline_make.heads import judging
from paceline_make.heads.labels import LabelSettings, Teacher
from paceline_make.heads.watch import TrainingOutcome
from paceline_make.states import read_state, save_state, usable
from test_train_redrafter import TEXT, losses, stream
from tools import pocket

SENTENCE = "paceline train redrafter: error: "
SMALL = {"positions": "256", "window": "16", "ahead": "1", "epochs": "1", "batch-size": "64", "exit": "8"}
SMALL |= {"held-out": "0"}
GOES_ON = "what was saved before is kept, and the same command goes on from it"


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32")


@pytest.fixture
def command(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Trains a tiny head in ``tmp_path / "head"``; gives the exit code and the last line of standard error."""
    data = tmp_path / "data.txt"
    data.write_text("\n\n".join(f"{number}. {TEXT}" for number in range(20)))
    monkeypatch.setattr(train, "load_model", lambda options: lm)
    monkeypatch.setattr(judging, "PROMPTS", 1)
    small = [word for name, value in SMALL.items() for word in (f"--{name}", value)]

    def run(*more: str) -> tuple[int, str]:
        capsys.readouterr()
        try:
            code = main(["train", "redrafter", "--data", str(data), "--out", str(tmp_path / "head"), *small, *more])
        except SystemExit as ended:  # the parser's
            code = int(str(ended.code))
        return code, capsys.readouterr().err.strip().splitlines()[-1]

    return run


# --- full disks --------------------------------------------------------------------------------------------


class Full(io.RawIOBase):
    """A file on a full disk."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def full_disk(name: str) -> Iterator[None]:
    """Files of this name cannot be written."""
    real = Path.open

    def opened(self: Path, mode: str = "r", *more: Any, **how: Any) -> Any:
        return Full() if self.name == name and mode[0] in "wa" else real(self, mode, *more, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        yield


@pytest.mark.parametrize(
    "name", ["log.jsonl", "labels/000000.pt", "training.pt", "model.safetensors", "config.json", "CARD.md"]
)
def test_a_full_disk_is_a_sentence_and_the_same_command_goes_on(
    command: Callable[..., tuple[int, str]], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "head" / name
    with full_disk(file.name):
        code, said = command()
    assert code == 2
    assert said.startswith(f"{SENTENCE}cannot write {file}: No space left on device; make room there")
    assert said.endswith(GOES_ON)
    left = [path.name for path in tmp_path.rglob("*.partial")]
    assert not left
    labels = tmp_path / "head" / "labels" / "000000.pt"
    before = labels.stat().st_mtime_ns if labels.exists() else None
    assert command()[0] == 0
    assert before in (None, labels.stat().st_mtime_ns), "labels are kept"
    assert read_head(tmp_path / "head")[1].trained["positions"]


def test_a_state_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    whole = losses(tmp_path / "whole")
    first = losses(tmp_path / "parts", steps=5)
    kept = (tmp_path / "parts" / "training.pt").read_bytes()
    with full_disk("training.pt"), pytest.raises(UnwritableFile, match=r"cannot write .*training\.pt: No space left"):
        losses(tmp_path / "parts")
    assert (tmp_path / "parts" / "training.pt").read_bytes() == kept
    assert first + losses(tmp_path / "parts") == pytest.approx(whole, abs=1e-6)


def test_a_file_that_grows_beyond_a_limit_is_a_sentence(tmp_path: Path) -> None:
    """By the system itself, where torch hides the error behind one of its own."""
    file, most = tmp_path / "state.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
    save_state(file, {"step": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most[1]))
    try:
        with pytest.raises(UnwritableFile, match=r"cannot write .*state\.pt: File too large"):
            save_state(file, {"step": 2, "weights": torch.zeros(200_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert read_state(file) == {"step": 1}


def test_a_folder_that_cannot_be_made_is_a_sentence(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    code, said = command()
    assert code == 2
    assert said.startswith(f"{SENTENCE}cannot write {tmp_path / 'head'}: Read-only file system; ")


# --- damaged files -----------------------------------------------------------------------------------------


def other_state(**content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: len(whole) // 2],
    "changed": lambda whole: whole[: len(whole) // 2] + bytes(64) + whole[len(whole) // 2 + 64 :],
    "a text": lambda whole: b"no state at all\n",
    "a pickle": lambda whole: pickle.dumps(print),
    "of another program": lambda whole: other_state(tokens=torch.ones(3, 2), states=torch.ones(3)),
}


MENDS = {
    "training.pt": "delete it to train from the beginning with the labels that are kept, or give another folder",
    "labels/000000.pt": "delete it and give the same command again, which makes its labels again and keeps the others",
}


@pytest.mark.parametrize("name", MENDS)
def test_a_damaged_file_is_named_and_can_be_deleted(
    command: Callable[..., tuple[int, str]], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "head" / name
    assert command()[0] == 0
    whole = file.read_bytes()
    for damage in DAMAGE.values():
        file.write_bytes(damage(whole))
        assert command() == (2, f"{SENTENCE}{file} is damaged or of another program; {MENDS[name]}")
    file.unlink()
    assert command()[0] == 0
    assert file.stat().st_size == len(whole)


def test_labels_of_another_model_are_not_learnt(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert command()[0] == 0
    file = tmp_path / "head" / "labels" / "000000.pt"
    stored = read_state(file)
    for name, wrong in {"states": stored["states"][:, :128], "tokens": stored["tokens"] + 9000}.items():
        save_state(file, {**stored, name: wrong})
        code, said = command()
        assert code == 2
        assert f"{file} is damaged or of another program" in said


def test_a_log_that_is_no_text_is_a_sentence(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert command()[0] == 0
    (tmp_path / "head" / "log.jsonl").write_bytes(b"\xff\xfe\n")
    assert command() == (2, f"{SENTENCE}{tmp_path / 'head'} holds a training with other settings or texts; " + FOLDER)


FOLDER = "choose another folder"


def test_what_a_user_can_correct_is_not_called_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), usable(tmp_path, "delete it"):
        read_state(tmp_path / "none.pt")
    with pytest.raises(DamagedFile, match="is damaged or of another program; delete it"), usable(tmp_path, "delete it"):
        raise KeyError("step")


def test_damaged_tokens_of_the_bundled_models_training_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "unigram.npy").write_bytes(b"nothing")
    with pytest.raises(DamagedFile, match=r"unigram\.npy is damaged or of another program; delete it"):
        pocket.Workshop([], tmp_path, compiled=False).training_tokens("unigram")


# --- absurd numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [["--exit", "9999999"], ["--rank", "9999999"], ["--exit", "99999", "--blocks", "1024"]]
)
def test_a_head_beyond_the_memory_is_a_sentence(
    command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, size: list[str]
) -> None:
    monkeypatch.setattr(states, "free_memory", lambda device: 10**9)
    code, said = command(*size)
    assert code == 2
    assert " GB, and 1.0 GB are free; make it smaller (--exit, --blocks, --rank, --kept)" in said


def test_a_context_that_holds_no_window_is_a_sentence() -> None:
    target = TableTarget(habitual(), SIZE, context_length=12)
    with pytest.raises(InputError, match="a context of 12 tokens holds no window with 10 more tokens; learn fewer"):
        Teacher(target, stream(), LabelSettings(kind="greedy", ahead=10))


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--epochs", "nan", "--epochs must be at most 10000, not nan"),
        ("--epochs", "inf", "--epochs must be at most 10000, not inf"),
        ("--epochs", "1e30", "--epochs must be at most 10000, not 1e+30"),
        ("--epochs", "0", "--epochs must be above 0, not 0.0"),
        ("--epochs", "-1", "--epochs must be above 0, not -1.0"),
        ("--rate", "nan", "--rate must be above 0 and below 1, not nan"),
        ("--rate", "0", "--rate must be above 0 and below 1, not 0.0"),
        ("--rate", "1e30", "--rate must be above 0 and below 1, not 1e+30"),
        ("--temperature", "nan", "labels take a temperature from 0.01 to 100.0, not nan"),
        ("--temperature", "inf", "labels take a temperature from 0.01 to 100.0, not inf"),
        ("--temperature", "1e-300", "labels take a temperature from 0.01 to 100.0, not 1e-300"),
        ("--seed", "-1", "labels take a seed from 0 to 4294967295, not -1"),
        ("--seed", "18446744073709551615", "labels take a seed from 0 to 4294967295, not 18446744073709551615"),
        ("--held-out", "nan", "--held-out is a share from 0 to below 0.5, not nan"),
        ("--held-out", "-1", "--held-out is a share from 0 to below 0.5, not -1.0"),
        ("--ahead", "1e30", "--ahead takes a whole number, not '1e30'"),
        ("--ahead", "1024", "the text has 509 tokens, fewer than one window; give more text"),
        ("--window", "1", "a head learns at least 1 token ahead, in windows of at least 2"),
        ("--window", "99999999", "--window must be at most 10000000, not 99999999"),
        ("--positions", "-1", "--positions must be at least 1, not -1"),
        ("--batch-size", "0", "--batch-size must be at least 1, not 0"),
        ("--exit", "0", "--exit must be at least 1, not 0"),
        ("--blocks", "-1", "blocks of a recurrent head is not negative, and this is -1"),
        ("--rank", "-1", "rank of a recurrent head is not negative, and this is -1"),
        ("--kept", "-1", "kept of a recurrent head is not negative, and this is -1"),
        ("--kept", "9000", "a head cannot know 9000 of 8192 tokens"),
    ],
)
def test_an_absurd_number_is_a_sentence(
    command: Callable[..., tuple[int, str]], tmp_path: Path, flag: str, value: str, said: str
) -> None:
    assert command(flag, value) == (2, SENTENCE + said)
    assert not (tmp_path / "head").exists()


def test_streams_of_a_draft_model_are_used_beside_a_larger_one() -> None:
    options = argparse.Namespace(model="pocket-draft", out="streams")
    outcome = TrainingOutcome(bytes=1, positions=1, held_out=None, measured={})
    assert "--model MODEL --method streaming:head=streams" in train._summary(outcome, "streaming", "", options)
    assert "--model pocket-draft --method medusa:head=streams" in train._summary(outcome, "medusa", "", options)
