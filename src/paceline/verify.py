"""The two rules by which a target accepts a draft.

Both walk the tree from the root. At each node the rule chooses one token by the target's law there, and the walk goes
on to the child that carries it. Where there is no such child, the token is the round's last. So every round emits its
accepted path and exactly one token more, unless the sequence ends inside.

**Coupled.** The token at sequence index *i* is ``choose(i, law)``: the argmax, or the Gumbel-max sample under
noise keyed by *i*. It is a function of the target's law and of the noise, and the law a function of the
tokens before it. By induction over *i* the whole text is a function of target, prompt, settings and seed. The
draft does not occur in that function, so it may depend on anything, the noise included. The tree only decides
how many tokens of the text become known per forward.

**Rejection.** Let *p* be the target's law at a node.

*Fixed children.* The token is drawn from *p* with private noise, and the walk goes on to a child that carries it.
No draft sees the noise and no other index uses it, so given all that came before (draft included) the token has
law *p*.

*Sampled children* x1, x2, ... drawn from *q* in this order and without replacement: with ``p1 = p``, ``q1 =
q`` accept xk with probability ``min(1, pk(xk) / qk(xk))``; otherwise go on with ``p(k+1) = normalised (pk -
qk)+`` and ``q(k+1) = qk`` without xk; when all are refused draw from what is left of *p*. One step is exact:
given the history, xk has law qk, so token *x* leaves the step with probability ``min(pk(x), qk(x))`` and the
step is refused with probability ``m = sum (pk - qk)+``, in which case the rest, by induction, has law ``(pk -
qk)+ / m``. Together: ``min(pk, qk) + (pk - qk)+ = pk``.

This requires two things of a drafter that samples. Its draws must be fresh given everything its *q* was made from, so a
drafter that learns from its draws needs new noise in every round. And a drafter that remembers texts must not use its
memory of the same prompt under the same seed, whose noise would be drawn again.

The noise of one index is used at that index only, and each index is decided once, so nothing that a draft saw in an
earlier round correlates with a later decision.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from paceline.law import Dice, Distribution
from paceline.tree import ROOT, DraftTree, Ints


class Rule(StrEnum):
    """How a draft is accepted; neither rule changes the law of the text."""

    COUPLED = "coupled"
    REJECTION = "rejection"


@dataclass(frozen=True)
class Verdict:
    """The result of one round.

    ``tokens`` were emitted in this order. ``path`` are the accepted nodes whose keys and values are kept: one per token
    but the last, which becomes the next root (or ends the text) and is not in the cache.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    accepted: int
    """How many of ``tokens`` were drafted: all but the last, or all where the text ended inside the draft."""
    refused: bool = False
    """Whether the draft had children for the place of the last token, and none of them carries it."""


class Kind(StrEnum):
    """How an emitted token relates to the draft of its round."""

    ACCEPTED = "accepted"
    CORRECTED = "corrected"
    """The model's own token, in place of refused ones."""
    BONUS = "bonus"
    """The model's own token, after a draft that was accepted to its end."""
    PLAIN = "plain"
    """The model's own token, in a round without a draft."""
    UNTOLD = "untold"
    """Unknown: written by another library."""

    @classmethod
    def of(cls, source: str, drafted: float, refused: float) -> Kind:
        """The kind of a token with a source (or ""), in a round with ``drafted`` nodes that was refused or not."""
        if source:
            return cls.ACCEPTED
        if not drafted:
            return cls.PLAIN
        return cls.CORRECTED if refused else cls.BONUS


class Settled(NamedTuple):
    """A decided token, the node that it follows, the node of the draft that carries it (if any), and its kind."""

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

    Yields each node that it reaches and is sent the law there, directly before the token is decided: processors that
    keep state see plain decoding's sequence of calls. ``index`` is the sequence index of the first token. ``emit``
    commits a token and returns whether the sequence ends with it.
    """
    node, path, tokens = ROOT, list[int](), list[int]()
    while True:
        law = yield node
        token = _settle(tree, node, law, rule, dice, index + len(tokens))
        tokens.append(token)
        children = tree.children(node) if len(tree) else ()
        child = tree.child(node, token) if len(children) else None
        refused = child is None and len(children) > 0
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
