"""How often a draft model's tokens are taken: by language, temperature and way of drafting.

    python benchmarks/acceptance.py [--model pocket] [--draft-model pocket-draft] [--tokens 300] [--json]

`first` is the share of rounds in which the first drafted token (or one of its siblings) was taken, of drafts one level
deep: the plain agreement of the two models. `tokens/round` is for drafts of 8 nodes, the target's own token included.
The text is the target's in every row; under rejection it is another text of the same law.
"""

import argparse
import json
import sys
from typing import Any

import paceline

PROMPTS = {
    "en": (
        "The rain had stopped before the carriage reached the village, and",
        "She laid the letter on the table without a word. Her brother",
        "There was once a miller who had three daughters, and the youngest",
        "To contribute to the project, first read the guide and then",
    ),
    "pl": (
        "Deszcz ustał, zanim powóz dojechał do wsi, a",
        "Bez słowa położyła list na stole. Jej brat",
        "Był sobie raz młynarz, który miał trzy córki, a najmłodsza",
        "Aby wziąć udział w projekcie, najpierw przeczytaj przewodnik, a potem",
    ),
    "uk": (
        "Дощ ущух, перш ніж віз доїхав до села, і",
        "Вона мовчки поклала листа на стіл. Її брат",
        "Жив собі мірошник, і було в нього три дочки, а наймолодша",
        "Щоб додати компонент до проєкту, спершу прочитайте посібник, а потім",
    ),
}
WAYS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "greedy chain": ("assistant:noise=none", 1, {}),
    "shared-noise chain": ("assistant", 1, {}),
    "shared-noise top-4 tree": ("assistant:top=4", 4, {}),
    "p/q rejection chain": ("assistant", 1, {"rule": "rejection"}),
}
DEEP = 8


def accepted(
    lm: paceline.LanguageModel,
    draft: paceline.LanguageModel,
    prompts: tuple[str, ...],
    tokens: int,
    settings: dict[str, Any],
) -> tuple[float, float]:
    """The share of drafting rounds with an accepted token, and tokens per round."""
    taken = drafting = rounds = emitted = 0
    for seed, prompt in enumerate(prompts):
        text = lm.generate(prompt, draft_model=draft, max_new_tokens=tokens, seed=seed, ignore_eos=True, **settings)
        drafting += sum(r.drafted > 0 for r in text.rounds)
        taken += sum(r.accepted > 0 for r in text.rounds)
        rounds += len(text.rounds)
        emitted += len(text.tokens)
    return taken / drafting, emitted / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--draft-model", default="pocket-draft")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=300, help="per prompt; there are four per language")
    parser.add_argument("--temperatures", type=float, nargs="+", default=(0.8, 1.0))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lm = paceline.load(options.model, dtype=options.dtype)
    draft = paceline.load(options.draft_model, dtype=options.dtype)
    print(
        f"{lm.target.name} {options.dtype}, weights {lm.target.fingerprint()}; draft {draft.target.name}, "
        f"weights {draft.target.fingerprint()}; {options.tokens} tokens x 4 prompts a cell"
    )
    print(f"{'':26} {'T':>4} " + " ".join(f"{language + ' first':>9} {'tok/round':>9}" for language in PROMPTS))
    rows = []
    for temperature in options.temperatures:
        for name, (method, nodes, how) in WAYS.items():
            cells = []
            for language, prompts in PROMPTS.items():
                settings = {"method": method, "temperature": temperature, **how}
                first, _ = accepted(lm, draft, prompts, options.tokens, {**settings, "planner": f"fixed:{nodes}"})
                _, per_round = accepted(lm, draft, prompts, options.tokens, {**settings, "planner": f"fixed:{DEEP}"})
                cells.append((first, per_round))
                rows.append(
                    {
                        "way": name,
                        "temperature": temperature,
                        "language": language,
                        "first": first,
                        "tokens_per_round": per_round,
                    }
                )
                if sys.stderr.isatty():
                    print(f"\r{name} {language} ", end="", file=sys.stderr, flush=True)
            print(
                f"{name:26} {temperature:4.1f} "
                + " ".join(f"{first:9.3f} {per_round:9.2f}" for first, per_round in cells)
            )
    if options.json:
        print(json.dumps({"model": lm.target.name, "fingerprint": lm.target.fingerprint(), "rows": rows}))


if __name__ == "__main__":
    main()
