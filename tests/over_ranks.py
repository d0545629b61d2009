"""What tests of several ranks run on each of them: `python over_ranks.py MODELS CASES`, in JSON.

The first process writes the cases of every model and prints what it found; the others follow it, model by model.
"""

import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPTS = ["Once upon a time", "The old house stood by the river, and the river", "Dawno, dawno temu", "Був собі"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def started(command: list[str], ranks: int = 2, **how: Any) -> list[subprocess.Popen[str]]:
    """The same command in several processes, as torchrun starts them."""
    address = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    path = os.pathsep.join([str(HERE), *sys.path])
    common = {**os.environ, **address, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **how,
        )
        for rank in range(ranks)
    ]


def ended(running: list[subprocess.Popen[str]], timeout: float = 600) -> list[tuple[int, str, str]]:
    """Exit code, output and messages of each."""
    try:
        said = [one.communicate(timeout=timeout) for one in running]
    finally:
        for one in running:
            one.kill()
    return [(one.returncode, *each) for one, each in zip(running, said, strict=True)]


def written(lm: Any, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tokens of every case, the forwards of its draft model, and the collectives where there are several ranks."""
    found = []
    for case in cases:
        how = dict(case)
        prompt, batch = how.pop("prompt"), how.pop("batch", False)
        group = getattr(lm.target, "group", None)
        before = (group.sums, group.gatherings) if group is not None else (0, 0)
        if batch:
            tokens = [list(one.tokens) for (one,) in lm.generate_batch(prompt, **how)]
            rounds = forwards = 0
        else:
            text = lm.generate(prompt, **how)
            tokens, rounds = [list(text.tokens)], text.totals.rounds
            forwards = sum(int(each.counts.get("draft_forwards", 0)) for each in text.rounds)
        counts = (group.sums - before[0], group.gatherings - before[1]) if group is not None else (0, 0)
        made = {"tokens": [[int(one) for one in each] for each in tokens], "rounds": rounds, "forwards": forwards}
        found.append({**made, "counts": counts})
    return found


def over_ranks(models: list[str], cases: list[list[dict[str, Any]]], ranks: int = 2) -> list[list[dict[str, Any]]]:
    """What the first of several processes writes."""
    running = started([sys.executable, __file__, json.dumps(models), json.dumps(cases)], ranks)
    found = ended(running)
    assert [code for code, _, _ in found] == [0] * ranks, [said[-2000:] for _, _, said in found]
    assert all(not out for _, out, _ in found[1:]), "only the first rank prints"
    made: list[list[dict[str, Any]]] = json.loads(found[0][1].splitlines()[-1])
    return made


def main() -> None:
    import paceline

    models, cases = map(json.loads, sys.argv[1:3])
    made = []
    for model, own in zip(models, cases, strict=True):
        try:
            lm = paceline.load(model, tensor_parallel=int(os.environ["WORLD_SIZE"]))
        except SystemExit as end:  # of a process that follows, which a script would end by
            if end.code:
                raise
            continue
        made.append(written(lm, own))
        del lm
        gc.collect()
    if made:
        print(json.dumps(made))


if __name__ == "__main__":
    main()
