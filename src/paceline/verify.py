"""The two rules by which a target accepts a draft.

Both walk the tree from the root. At each node the target's law of the next token is known, the rule settles
on one token, and the walk goes on to the child that carries it; where there is no such child, the token
stands alone as the round's last. So every round yields its accepted path and exactly one token more, unless
the sequence ends inside.

**Coupled.** The token at sequence index *i* is ``choose(i, law)``: the argmax, or the Gumbel-max sample under
noise keyed by *i*. It is a function of the target's law and of the noise, and the law a function of the
tokens before it. By induction over *i* the whole text is a function of target, prompt, settings and seed. The
draft does not occur in that function, so it may depend on anything at all, the noise included. That is the
whole proof: the tree only decides how many tokens of the text become known per forward.

**Rejection.** Let *p* be the target's law at a node.

*Fixed children.* The token is drawn from *p* with private noise, and a child that carries it is walked to.
The noise is seen by no draft and used for no other index, so given all that came before (draft included) the
token has law *p*.

*Sampled children* x1, x2, ... drawn from *q* in this order and without replacement: with ``p1 = p``, ``q1 =
q`` accept xk with probability ``min(1, pk(xk) / qk(xk))``; otherwise go on with ``p(k+1) = normalised (pk -
qk)+`` and ``q(k+1) = qk`` without xk; when all are refused draw from what is left of *p*. One step is exact:
given the history, xk has law qk, so token *x* leaves the step with probability ``min(pk(x), qk(x))`` and the
step is refused with probability ``m = sum (pk - qk)+``, in which case the rest, by induction, has law ``(pk -
qk)+ / m``. Together: ``min(pk, qk) + (pk - qk)+ = pk``.

This asks two things of a drafter that samples: draws must be fresh given everything its *q* was made from, so a drafter
that learns from what it drew needs new coins in every round; and one that remembers across texts must not be led by
its memory of the same prompt under the same seed, whose coins would be thrown again.

The coins of one index are used at that index only, and each index is settled once, so nothing a draft saw in
an earlier round correlates with a later decision.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from paceline.law import Dice, Distribution
from paceline.tree import ROOT, DraftTree, Ints


class Rule(StrEnum):
    """How a draft is accepted; neither bends the law of the text."""

    COUPLED = "coupled"
    REJECTION = "rejection"


@dataclass(frozen=True)
class Verdict:
    """What one round settled.

    ``tokens`` were emitted in this order. ``path`` are the accepted nodes whose keys and values are worth
    keeping: one per token but the last, which becomes the next root (or ends the text) and is not in the
    cache.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    accepted: int
    """How many of ``tokens`` were drafted: all but the last, or all where the text ended inside the draft."""
    refused: bool = False
    """Whether the last token is none of the children that the draft had for its place."""


class Kind(StrEnum):
    """What an emitted token is to the draft of its round."""

    ACCEPTED = "accepted"
    CORRECTED = "corrected"
    """The model's own, in place of what it refused."""
    BONUS = "bonus"
    """The model's own, after a draft that was accepted to its end."""
    PLAIN = "plain"
    """The model's own in a round without a draft."""
    UNTOLD = "untold"
    """Written by something that does not tell."""

    @classmethod
    def of(cls, source: str, drafted: float, refused: float) -> Kind:
        """Of a token with a source (or "") in a round that drafted so many and was refused or not."""
        if source:
            return cls.ACCEPTED
        if not drafted:
            return cls.PLAIN
        return cls.CORRECTED if refused else cls.BONUS


class Settled(NamedTuple):
    """One token, the node that it follows, the node of the draft that carries it (if any), and what it is."""

    token: int
    node: int
    child: int | None
    kind: Kind


def judge(
    tree: DraftTree,
    rule: Rule,
    dice: Dice,
    *,
    index: int,
    emit: Callable[[Settled], bool],
) -> Generator[int, Distribution, Verdict]:
    """Walk the tree from the root and emit the target's tokens.

    Yields each node that it walks to and is sent the law there, directly before the token is settled: processors that
    keep state see plain decoding's sequence of calls. ``index`` is the sequence index of the first token. ``emit``
    commits a token and says whether the sequence ends with it.
    """
    node, path, tokens = ROOT, list[int](), list[int]()
    while True:
        law = yield node
        token = _settle(tree, node, law, rule, dice, index + len(tokens))
        tokens.append(token)
        child = tree.child(node, token)
        refused = child is None and len(tree.children(node)) > 0
        kind = Kind.of("" if child is None else "draft", tree.drafted, refused)
        ended = emit(Settled(token, node, child, kind))
        if child is None:
            return Verdict(tuple(path), tuple(tokens), len(tokens) - 1, refused=refused)
        if ended:
            return Verdict(tuple(path), tuple(tokens), len(tokens))
        path.append(child)
        node = child


def _settle(tree: DraftTree, node: int, law: Distribution, rule: Rule, dice: Dice, index: int) -> int:
    if rule is Rule.COUPLED:
        return dice.choose(index, law)
    q = tree.drawn.get(node)
    if q is None:
        return dice.draw(index, law)
    return _accept_sampled(law, q, tree.tokens[tree.children(node)], dice, index)


def _accept_sampled(p: Distribution, q: Distribution, drawn: Ints, dice: Dice, index: int) -> int:
    for token in drawn.tolist():
        chance = p.probability(token) / q.probability(token)
        if dice.accept(index, token, chance):
            return int(token)
        left = p.minus(q)
        if left.mass == 0:  # p and q agree up to rounding, where a refusal is itself a rounding error
            return int(token)
        p, q = left, q.without(token)
    return dice.draw(index, p)
