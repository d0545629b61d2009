"""Two processes train as one does. They are started once for all trainings here, which takes longer than these do."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import test_train_heads
import test_train_redrafter
from over_ranks import ended, started

Losses = dict[str, list[float]]
TRAININGS: dict[str, Callable[[Path], list[float]]] = {
    "positions": test_train_redrafter.losses,
    "few windows": test_train_redrafter.losses_of_few_windows,
    "windows": test_train_heads.on_windows,
}
"""The losses of a training in a folder."""
STEPS = {"positions": 12, "few windows": 9, "windows": 8}
TWO = """
import json, sys, torch.distributed as distributed
from pathlib import Path
from paceline.targets.hf.ranks.processes import joined_processes
from test_train_processes import TRAININGS
with joined_processes():
    rank = distributed.get_rank()
    found = {}
    for name, losses in TRAININGS.items():
        found[name] = losses(Path(sys.argv[1]) / (f"{name} {rank}" if name == "few windows" else name))
    if rank == 0:
        print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """The losses that the first of two processes reports."""
    found = ended(started([sys.executable, "-c", TWO, str(tmp_path_factory.mktemp("two"))]))
    assert [code for code, _, _ in found] == [0, 0], [said[-2000:] for _, _, said in found]
    losses: Losses = json.loads(found[0][1].splitlines()[-1])
    return losses


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_train_as_one(name: str, of_two: Losses, tmp_path: Path) -> None:
    """Also where a step has nothing for one of them: it waits for nobody, and nobody for it."""
    found = of_two[name]
    assert len(found) == STEPS[name]
    assert found == pytest.approx(TRAININGS[name](tmp_path / "one"), abs=1e-5)
