"""One round of a text, printed as the calls that the decode loop makes and the answers that it is sent.

Usage: python examples/one_round.py
"""

from __future__ import annotations

from typing import Any

import paceline
from paceline.engine.calls import Timed, answers

PROMPT = "The king went to the river. The king went to the forest. The king went to the"


def main() -> None:
    lm = paceline.load("pocket", dtype="float64")
    writing = lm.write(PROMPT, method="suffix", planner="fixed:4", temperature=0, max_new_tokens=64)
    session = writing.begin(lm.kept)
    flow, lines, rounds = Timed(session.flow()), list[str](), 0
    call = flow.send(None)
    try:
        while not rounds or session.rounds[-1].accepted < 2:  # a round worth showing
            if len(session.rounds) > rounds:
                lines, rounds = [], len(session.rounds)
            [answer] = answers([call])
            who = f"{call.verb:8} {type(call.of).__name__:13} {asked(call.verb, call.payload)}"
            lines.append(who if answer is None else f"{who:46} -> {said(answer)}")
            call = flow.send(answer)
        print("\n".join(lines))
    finally:
        flow.flow.close()
        writing.end()


def asked(verb: str, payload: Any) -> str:
    """What a call asks, in a few words."""
    match verb:
        case "plan":
            return f"at most {payload.depth} deep"
        case "propose":
            return f"at most {payload.budget.nodes} nodes"
        case "cut":
            return f"{len(payload.tree)} nodes"
        case "score":
            return f"root and {len(payload.tokens) - 1} nodes"
        case "law":
            return "after the root" if payload.node < 0 else f"after node {payload.node}"
    return f"{payload.tokens if verb == 'review' else payload.verdict.tokens} were emitted"


def said(answer: Any) -> str:
    """An answer in a few words."""
    match answer:
        case paceline.Budget():
            return f"{answer.nodes} nodes, {answer.depth} deep"
        case paceline.DraftTree():
            return f"tokens {answer.tokens.tolist()}, parents {answer.parents.tolist()}"
        case paceline.Scores():
            return f"{len(answer.tokens)} rows of logits"
        case paceline.Distribution():
            return f"token {answer.ids[answer.probs.argmax()]}"
    return f"score {len(answer.tree)} of them"


if __name__ == "__main__":
    main()
