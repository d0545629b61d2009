"""Streams of a draft model in tracks over several processes, and draft models that one of these cannot read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline
from over_ranks import PROMPTS, ended, over_ranks, started, written
from paceline.targets.hf.target import HFTarget
from streaming import made_adapter, saved
from test_ranks import in_tracks


def with_streams(folder: Path) -> dict[str, str]:
    """Settings of an untrained draft model in two tracks, and of an untrained adapter for it."""
    model = in_tracks(folder / "tracks", 2)
    target = paceline.load(model, dtype="float32").target
    assert isinstance(target, HFTarget)
    return {
        "draft_model": model,
        "method": f"streaming:head='{saved(made_adapter(target), folder / 'head', target)}',streams=3",
    }


def test_streams_run_on_the_ranks_of_their_tracks(tmp_path: Path) -> None:
    """The drafts of one process, in as many forwards, with two sums each however many rows have streams."""
    common = {**with_streams(tmp_path), "prompt": PROMPTS[0], "max_new_tokens": 8, "seed": 3, "planner": "fixed:5"}
    own: list[dict[str, Any]] = [
        *({**common, "temperature": temperature} for temperature in (0.0, 0.8, 1.0)),
        {**common, "temperature": 3.0, "rule": "rejection"},
        {**common, "temperature": 0.8, "prompt": PROMPTS[:3], "batch": True},
    ]
    (found,) = over_ranks(["pocket"], [own])
    lm = paceline.load("pocket")
    for one, other in zip(found, written(lm, own), strict=True):
        assert {name: one[name] for name in ("tokens", "rounds", "forwards")} == {
            name: other[name] for name in ("tokens", "rounds", "forwards")
        }
    for one in found[1:4]:  # with the first text the draft model is opened and probed
        sums, gatherings = one["counts"]
        assert sums - 2 * lm.target.layers * gatherings == 2 * one["forwards"] > 0


FAULTS = """
import json, os, sys, paceline
os.chdir(sys.argv[1 + int(os.environ["RANK"])])
lm = paceline.load("pocket", tensor_parallel=2)
for draft in ("both", "one", "good"):
    try:
        how = {"method": "assistant", "draft_model": draft, "planner": "fixed:2", "max_new_tokens": 4, "seed": 3}
        print(json.dumps([int(token) for token in lm.generate("Once", **how).tokens]))
    except paceline.InputError as error:
        print(error)
"""


def damage(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-500])


def test_a_damaged_draft_model_leaves_the_ranks_in_step(tmp_path: Path) -> None:
    """One that all processes find damaged, or one of them; then a text with a draft model that all can read."""
    places = [tmp_path / "first", tmp_path / "second"]
    in_tracks(tmp_path / "good", 2)
    for number, place in enumerate(places):
        for name in ("both", "one", "good"):
            shutil.copytree(tmp_path / "good", place / name)
            if name == "both" or (name == "one" and number == 1):
                damage(place / name)
    (code, out, said), (other, nothing, _) = ended(started([sys.executable, "-c", FAULTS, *map(str, places)]), 120)
    assert (code, other, nothing) == (0, 0, ""), said
    first, second, third = out.splitlines()
    assert first.startswith("both/model.safetensors cannot be read as weights")
    assert second.startswith("process 1 of 2 says: one/model.safetensors cannot be read as weights")
    text = paceline.load("pocket").generate("Once", method="plain", max_new_tokens=4, seed=3)
    assert json.loads(third) == list(text.tokens)


HELD = """
import gc, sys, weakref, paceline
from paceline.targets.hf.ranks.target import RankTarget
held, make = weakref.WeakSet(), RankTarget.__init__
def made(self, *given, **how):
    make(self, *given, **how)
    held.add(self)
    gc.collect()
    print(len(held), flush=True)
RankTarget.__init__ = made
lm = paceline.load("pocket", tensor_parallel=2)
for draft in sys.argv[1:]:
    how = {"method": "assistant", "draft_model": draft, "planner": "fixed:2", "max_new_tokens": 4, "seed": 3}
    lm.generate("Once", **how)
    lm.forget()
"""


def test_ranks_hold_no_more_draft_models_than_the_first_one(tmp_path: Path) -> None:
    draft = in_tracks(tmp_path / "one", 2)
    command = [sys.executable, "-c", HELD, draft, draft, draft]
    for code, out, said in ended(started(command), 120):
        assert (code, out.split()) == (0, ["1", "2", "2", "2"]), said


@pytest.mark.slow
def test_a_damaged_draft_model_is_a_sentence(tmp_path: Path) -> None:
    damage(Path(in_tracks(tmp_path / "tracks", 2)))
    command = [sys.executable, "-m", "paceline", "generate", "Once", "-n", "4", "--tensor-parallel", "2"]
    (code, out, said), (_, *nothing) = ended(started([*command, "-md", str(tmp_path / "tracks")]), timeout=120)
    assert (code, out) == (2, "")
    assert "model.safetensors cannot be read as weights" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert nothing == ["", ""]


@pytest.mark.slow
def test_torchrun_drafts_with_streams(tmp_path: Path) -> None:
    given, writing = with_streams(tmp_path), ["-n", "12", "--seed", "3", "--json", "--temperature", "0.8"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "paceline", "generate", "The old house", *writing, "--tensor-parallel", "2"]
    drafts = ["-md", given["draft_model"], "--method", given["method"]]
    done = subprocess.run([*command, *drafts], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    text = paceline.load("pocket").generate("The old house", max_new_tokens=12, seed=3, temperature=0.8, method="plain")
    assert json.loads(done.stdout.splitlines()[-1])["tokens"] == list(text.tokens)
