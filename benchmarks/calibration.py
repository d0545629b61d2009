"""The calibrated draft size against a sweep of sizes by brute force: how much throughput it gives away.

    python benchmarks/calibration.py [--model pocket+ballast:500M] [--dtype bfloat16] [--method unispec] [--json]

For each number of threads the method is calibrated as `paceline calibrate` does it, and then texts are written with
every size of a grid, the calibrated one among them. All sizes walk the same recorded texts, in an order drawn anew for
every text; throughput is tokens over all seconds of decoding, drafting included. The sweep's best size is picked after
the fact from noisy figures, so it is flattered: what is printed is the most that the calibrated one loses.
"""

import argparse
import json
import time
from typing import NamedTuple

import numpy as np
import torch

import paceline
from paceline.bench.calibrate import Calibrator, Method, Plan
from paceline.bench.calibrate.prompts import prompts_of
from paceline.context import Context, Ending, Ints
from paceline.drafters import Drafter, Plain, make_drafter
from paceline.engine.account import Totals
from paceline.engine.follow import FollowingDice
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import KeyedDice, Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.base import SPARE_ROWS, Target

SIZES = (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ALLOWED = 0.05
TEMPERATURE = 0.8


def written(target: Target, drafter: Drafter, prompt: Ints, nodes: int, tokens: int, script: Ints | None) -> Session:
    """One text, with drafts of one size; along the script where there is one."""
    drafter.reset()
    ending = Ending(max_new_tokens=tokens, context_length=target.context_length)
    context = Context(prompt, Sampling(temperature=TEMPERATURE), ending)
    dice = KeyedDice(context.noise)
    session = Session(
        context,
        target,
        target.open(len(prompt) + tokens + SPARE_ROWS),
        drafter,
        Fixed(nodes),
        dice=dice if script is None else FollowingDice(dice, script),
    )
    for _ in run(session):
        pass
    session.rows.close()
    return session


class Found(NamedTuple):
    """What a size brought."""

    speed: float
    tokens_per_round: float


def swept(target: Target, drafter: Drafter, prompts: list[Ints], sizes: list[int], tokens: int) -> dict[int, Found]:
    """By size, over all texts."""
    scripts = [written(target, Plain(), prompt, 0, tokens, None).context.tokens.copy() for prompt in prompts]
    found: dict[int, list[Totals]] = {size: [] for size in sizes}
    order = np.random.default_rng(0)
    for size in sizes:
        written(target, drafter, prompts[0], size, 2, scripts[0])
    for prompt, script in zip(prompts, scripts, strict=True):
        for size in order.permutation(sizes).tolist():
            session = written(target, drafter, prompt, size, tokens, script)
            found[size].append(Totals.of(session.rounds, session.seconds_prefill))
    return {
        size: Found(
            sum(one.tokens for one in all_of) / sum(one.seconds for one in all_of),
            sum(one.tokens for one in all_of) / sum(one.rounds for one in all_of),
        )
        for size, all_of in found.items()
    }


def compared(lm: paceline.LanguageModel, options: argparse.Namespace, threads: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    assert lm.vocabulary is not None
    drafter = make_drafter(options.method)
    drafter.fit(lm.target, lm.vocabulary)
    plan = Plan(lengths=(128,), sequences=(1,), sampling=Sampling(temperature=TEMPERATURE), seconds=options.seconds)
    started = time.perf_counter()
    calibrator = Calibrator(
        target=lm.target, methods=[Method.of(drafter)], prompts=prompts_of(None, lm.vocabulary), plan=plan
    )
    profile = calibrator.run()
    method = profile.methods[0]
    took, choice = time.perf_counter() - started, method.choices[0]
    prompts = [prompt for _, prompt in prompts_of("dictspec", lm.vocabulary, options.prompts)]
    most = method.points[-1].nodes
    sizes = sorted({choice.nodes, *(size for size in SIZES if size <= most)})
    started = time.perf_counter()
    sweep = swept(lm.target, drafter, prompts, sizes, options.max_new_tokens)
    speeds = {size: found.speed for size, found in sweep.items()}
    best = max(speeds, key=lambda size: speeds[size])
    lost = 1 - speeds[choice.nodes] / speeds[best]
    word = "thread" if threads == 1 else "threads"
    print(f"\n{threads} {word}: calibrated in {took:.0f} s, swept in {time.perf_counter() - started:.0f} s")
    print(f"{'nodes':>6} {'tokens/s':>9} {'foretold':>9} {'tokens/round':>13} {'foretold':>9}")
    foretold = method.speeds(profile.curves(method.top), choice.sequences, choice.length)
    tokens = np.interp(sizes, [point.nodes for point in method.points], [point.tokens for point in method.points])
    for (size, found), brought in zip(sweep.items(), tokens, strict=True):
        marks = f"{' calibrated' if size == choice.nodes else ''}{' best' if size == best else ''}"
        print(f"{size:6} {found.speed:9.1f} {foretold[size]:9.1f} {found.tokens_per_round:13.2f} {brought:9.2f}{marks}")
    verdict = "within" if lost <= ALLOWED else "NOT within"
    print(f"{choice.nodes} nodes lose {100 * lost:.1f}% to the best of the sweep: {verdict} {100 * ALLOWED:.0f}%")
    return {
        "threads": threads,
        "nodes": choice.nodes,
        "fitted": choice.fitted,
        "direct": choice.direct,
        "best": best,
        "lost": lost,
        "seconds": took,
        "sweep": {size: found._asdict() for size, found in sweep.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket+ballast:500M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--method", default="unispec")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=30.0, help="for the calibration of each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lm = paceline.load(options.model, dtype=options.dtype)
    print(f"{lm.target.name} {options.dtype}, weights {lm.target.fingerprint()}, torch {torch.__version__}")
    results = [compared(lm, options, threads) for threads in options.threads]
    if options.json:
        about = {"model": lm.target.name, "dtype": options.dtype, "fingerprint": lm.target.fingerprint()}
        print(json.dumps(about | {"method": options.method, "results": results}))


if __name__ == "__main__":
    main()
