"""The time of drafting inside vLLM: microseconds of a step for each request, by the length of the texts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline_lab import Proposer
from papers.driver import Given
from papers.report import Report

WARM = 5
"""Steps that are not counted."""


class Proposed(NamedTuple):
    """Of one method and length."""

    method: str
    context: int
    micros: Sequence[float]
    """Of each step, for each request."""
    drafted: float
    accepted: float
    """Tokens of a request in a step."""


def proposer(method: str, folder: str, longest: int, given: Given, size: int) -> Proposer:
    """As vLLM makes it."""
    model = SimpleNamespace(
        model=folder,
        tokenizer=folder,
        tokenizer_revision=None,
        trust_remote_code=False,
        max_model_len=longest,
        get_vocab_size=lambda: size,
    )
    config = SimpleNamespace(
        model_config=model,
        speculative_config=SimpleNamespace(num_speculative_tokens=given.draft),
        scheduler_config=SimpleNamespace(max_num_seqs=given.batch),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1, distributed_executor_backend=None),
        additional_config={"paceline": {"method": method, "lengths": given.lengths, "budget": 10**7}},
    )
    return Proposer(config)


def proposed(one: Proposer, method: str, context: int, ids: Any, given: Given) -> Proposed:
    """Texts that begin at places of a long one, each ``context`` tokens long."""
    longest = context + given.rounds * (given.draft + 1) + 1
    starts = np.linspace(0, len(ids) - longest, given.batch).astype(np.int64)
    texts = np.stack([ids[start : start + longest] for start in starts]).astype(np.int32)
    tokens, lengths = np.zeros((given.batch, longest + 1), np.int32), np.full(given.batch, context)
    tokens[:, :context] = texts[:, :context]
    sampled, micros, drafted, accepted = texts[:, context - 1 : context].tolist(), list[float](), 0, 0
    for _ in range(given.rounds):
        began = time.perf_counter()
        drafts = one.propose(sampled, lengths, tokens)
        micros.append((time.perf_counter() - began) / given.batch * 1e6)
        for row, draft in enumerate(drafts):
            length = int(lengths[row])
            true = texts[row, length : length + len(draft) + 1].tolist()
            right = next((place for place, token in enumerate(draft) if token != true[place]), len(draft))
            sampled[row] = true[: right + 1]
            tokens[row, length : length + right + 1] = sampled[row]
            lengths[row] += right + 1
            drafted, accepted = drafted + len(draft), accepted + right
    count = given.rounds * given.batch
    return Proposed(method, context, micros[WARM:], drafted / count, accepted / count)


def report(found: Sequence[Proposed], given: Given) -> Report:
    head = ("method", "tokens of a text", "us a request", "least", "most (90%)", "drafted", "accepted")
    rows = [
        (
            one.method,
            str(one.context),
            f"{np.median(one.micros):.1f}",
            f"{min(one.micros):.1f}",
            f"{np.percentile(one.micros, 90):.1f}",
            f"{one.drafted:.2f}",
            f"{one.accepted:.2f}",
        )
        for one in found
    ]
    notes = [f"{given.batch} requests in a step, {given.rounds} steps, drafts of at most {given.draft} tokens"]
    return Report("drafting inside vLLM", [(head, rows)], notes=notes)


def proposing(given: Given) -> Report:
    """The time of drafting inside vLLM: microseconds of a step for each request, by the length of the texts.

    No vLLM is needed: the proposer is called as vLLM calls it, with rows of a real text that go on as that text does.
    The paper has no such table.
    """
    lm = paceline.load(given.model, dtype="float32")
    if lm.vocabulary is None:
        raise ValueError(f"{given.model} has no tokenizer")
    ids = np.array(lm.vocabulary.tokenizer(given.text.read_text(encoding="utf8"))["input_ids"])
    longest = max(given.context) + given.rounds * (given.draft + 1) + 1
    if len(ids) < longest:
        raise ValueError(f"{given.text} has {len(ids)} tokens; {longest} are needed")
    with tempfile.TemporaryDirectory() as folder:
        lm.vocabulary.tokenizer.save_pretrained(folder)
        found = [
            proposed(proposer(method, folder, longest, given, lm.target.vocab_size), method, context, ids, given)
            for method in given.method
            for context in given.context
        ]
    return report(found, given)
