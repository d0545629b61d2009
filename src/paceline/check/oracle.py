"""Plain decoding itself, held against what stands outside the engine.

A mistake in the law or in a row would change plain decoding and drafted decoding alike, so comparing the two cannot
see it. The law of every token is worked out again by transformers' own processors, and every row, one at a time and
sixteen at a time, by the model's own forward over the whole text.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline.check.record import Recording, logit_scale
from paceline.context import Ints
from paceline.law import Law, Sampling
from paceline.targets.hf.target import HFTarget

TOLERANCE = 1e-6
ROWS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""Of the logits' spread: what kernels may do to the middle row of a text."""


def row_faults(recording: Recording) -> tuple[str, ...]:
    """Where plain decoding's rows, or the wide ones that differences are measured by, are not the model's own."""
    target = recording.target
    if not isinstance(target, HFTarget) or target.switch is not None:
        return ()
    own = target.unassisted(torch.from_numpy(recording.tokens[:-1]))[len(recording.setting.prompt) - 1 :]
    limit = ROWS.get(target.dtype, 0.2) * logit_scale(recording)
    for name, rows in (("one at a time", recording.narrow), ("sixteen at a time", recording.wide)):
        gap = float((torch.stack(list(rows)).double() - own.double()).abs().amax(dim=-1).median())
        if not gap <= limit:
            return (f"rows scored {name} are {gap:.2g} from the model's own, where {limit:.2g} is rounding",)
    return ()


def law_faults(recording: Recording) -> tuple[str, ...]:
    """Where our law of a recorded text differs from transformers', the first place only."""
    sampling, prompt = recording.setting.sampling, len(recording.setting.prompt)
    law = Law(sampling, prompt)
    for index, row in enumerate(recording.narrow, start=prompt):
        tokens, exact = recording.tokens[:index], row.double()
        found = law.distribution(exact, tokens)
        ours = np.zeros(len(row))
        ours[found.ids] = found.probs
        gap = _gap(ours - reference(exact, tokens, prompt, sampling), law.adjust(exact, tokens).cpu().numpy())
        if gap > TOLERANCE:
            return (f"the law at index {index} differs from transformers' by {gap:.2g} in a probability",)
    return ()


def _gap(difference: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """The largest difference in the probability of a score. Tokens that tie count together: half precision makes
    many, and which of them stays inside a warp's border is lowest id first with us and a sort's whim with others."""
    _, tied = np.unique(scores, return_inverse=True)
    return float(np.abs(np.bincount(tied, weights=difference)).max())


def reference(row: torch.Tensor, tokens: Ints, prompt: int, sampling: Sampling) -> NDArray[np.float64]:
    """Probabilities by transformers' processors, in its order; the two penalties it lacks come after repetition."""
    before, after = _processors(sampling)
    ids, scores = torch.from_numpy(tokens)[None], row.cpu()[None].clone()
    for processor in before:
        scores = processor(ids, scores)
    seen = torch.bincount(ids[0, prompt:], minlength=scores.shape[-1])
    scores = scores - sampling.presence_penalty * (seen > 0) - sampling.frequency_penalty * seen
    for processor in after:
        scores = processor(ids, scores)
    if sampling.greedy:
        scores = torch.where(torch.arange(scores.shape[-1]) == scores.argmax(), scores, float("-inf"))
    probabilities: NDArray[np.float64] = Law(Sampling(), 0).log_probabilities(scores[0]).exp().numpy()
    return probabilities


def _processors(
    sampling: Sampling,
) -> tuple[list[LogitsProcessor], list[LogitsProcessor]]:
    """What acts before the presence and frequency penalties, and what acts after them."""
    before: list[LogitsProcessor] = []
    after: list[LogitsProcessor] = []
    if sampling.logit_bias:
        before.append(SequenceBiasLogitsProcessor([[[t], b] for t, b in sampling.logit_bias.items()]))
    if sampling.repetition_penalty != 1:
        before.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.banned:
        after.append(NoBadWordsLogitsProcessor([list(words) for words in sampling.banned]))
    if sampling.greedy:
        return before, after
    after.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        after.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        after.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        after.append(MinPLogitsWarper(sampling.min_p))
    return before, after
