"""The class that vLLM makes and asks in every step for drafts of all requests.

It must never hurt the engine, which ends at any error of it: whatever goes wrong here costs drafts, and no text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from paceline.drafters import Ask, Budget
from paceline.drafters.asking import fit
from paceline.drafters.suffix import Suffix
from paceline.engine.served import Served, ServedRound
from paceline.errors import InputError
from paceline.integrations.vllm.closing import Closing
from paceline.integrations.vllm.gaps import Gaps
from paceline.integrations.vllm.logits import Logits
from paceline.integrations.vllm.settings import FIXED, MOST, VLLMSettings, leaves
from paceline.integrations.vllm.texts import Following, RequestContext, ServedTexts, Tokens
from paceline.planning.adaptive import Adaptive
from paceline.planning.costs import Costs
from paceline.planning.fixed import Fixed
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from paceline.targets.base import Target

LATE = 0.05
"""The share of steps with too little time for all drafts from which on that is said."""
OFTEN = 10
SAVED = 60.0
"""Seconds between two times that a memory is saved."""
HOPELESS = 20
"""Errors after which nothing is drafted any more."""
FORGIVEN = 0.001
"""The amount that a step without an error subtracts from their number."""
A_ROW = 50e-6
"""Seconds that each request adds to the budget."""
log = logging.getLogger("vllm.paceline")


class Proposer:
    """Drafts of one of our methods, as chains."""

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        self.settings = VLLMSettings.of(vllm_config.additional_config)
        self.k = int(vllm_config.speculative_config.num_speculative_tokens)
        if not 1 <= self.k <= MOST:
            raise InputError(f"num_speculative_tokens is from 1 to {MOST}, not {self.k}")
        self._size, self._longest = int(model.get_vocab_size()), int(model.max_model_len)
        self.drafter = self.settings.drafter()
        self._model = _Model(str(model.model), self._size)
        fit(self.drafter, cast("Target", self._model), _vocabulary(model))
        for part in leaves(self.drafter):
            if isinstance(part, Suffix):
                part.pause = SAVED
        self.drafter.nodes = max(self.k, self.drafter.nodes)
        self._closing = Closing(self.drafter)
        fixed = self.settings.lengths == FIXED
        planner = Fixed(self.drafter.nodes) if fixed else Adaptive(self.drafter, Costs())
        self.served = Served(
            self.drafter,
            planner,
            depth=self.k,
            vocab_size=self._size,
            failed=self._failed,
            close=self._closing.give,
        )
        rows = int(vllm_config.scheduler_config.max_num_seqs)
        self._texts = ServedTexts(rows, self._longest, self.drafter.open, self._closing.give)
        self._logits = Logits(self.drafter.needs.top)
        self._gaps = Gaps()
        self._ended, self._scored, self._errors, self._lates, self._steps = 0.0, False, 0.0, 0, 0
        self._hopeless, self._unread = False, unread(vllm_config.parallel_config)
        self._said: set[str] = set()
        self._begin()
        Finalize(None, self._end, exitpriority=10)  # unlike atexit, also in a forked worker
        log.info("paceline drafts by %s, up to %d tokens", self.settings.method, self.k)

    def _begin(self) -> None:
        """Draft once, since files are opened with the first draft."""
        state = self.drafter.open(RequestContext(np.zeros(2, np.int32), self._longest))
        self.drafter.propose([Ask(state, Budget(self.drafter.nodes, self.k))])

    def load_model(self, model: Any) -> None:
        """Called once; ``model`` is what computes logits."""
        if not self._unread:
            self._logits.listen(model)

    def propose(
        self, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Any, token_ids_cpu: Tokens, **_: Any
    ) -> list[list[int]]:
        """A draft for each request, maybe empty. ``sampled_token_ids`` are the newest tokens of each; one without is
        still reading its prompt."""
        began, count = time.perf_counter(), 0
        try:
            count = len(sampled_token_ids)
            if self._hopeless or self._unread:
                return [[] for _ in range(count)]
            drafts = self._drafts(sampled_token_ids, np.asarray(num_tokens_no_spec[:count]), token_ids_cpu, began)
        except Exception as error:
            self._failed(error)
            self._texts.clear()
            drafts = [[] for _ in range(count)]
        self._ended = time.perf_counter()
        return drafts

    def _drafts(self, sampled: Sequence[Sequence[int]], lengths: Any, tokens: Tokens, began: float) -> list[list[int]]:
        budget = self.settings.budget * 1e-6 + A_ROW * len(sampled)
        rows, followed = self._followed(sampled, lengths, tokens, began + budget)
        learning = time.perf_counter()
        self._learn(sampled, rows, followed, began, began + budget / 2)
        learning = time.perf_counter() - learning
        self._texts.keep(rows, followed, tokens)
        self._steps += 1
        ends = began + budget + max(0.0, learning - budget / 2)  # also where learning took it all
        trees = self.served.drafts(followed, ends)
        if time.perf_counter() > ends:
            self._late()
        drafts: list[list[int]] = [[] for _ in sampled]
        for row, each, tree in zip(rows, followed, trees, strict=True):
            drafts[row] = each.draft = self._draft(each, tree.tokens.tolist())
        self._scored = bool(rows)
        self._errors = max(0.0, self._errors - FORGIVEN)
        return drafts

    # which request is which

    def _followed(
        self, sampled: Sequence[Sequence[int]], lengths: Any, tokens: Tokens, ends: float
    ) -> tuple[list[int], list[Following]]:
        """The rows with new tokens, and their requests, which know these."""
        rows, followed = list[int](), list[Following]()
        newest = tokens[np.arange(len(lengths)), np.maximum(lengths, 1) - 1].tolist()
        texts = zip(sampled, lengths.tolist(), newest, self._texts.step(sampled, lengths, tokens), strict=True)
        for row, (new, length, last, known) in enumerate(texts):
            count, each = len(new), known
            if not count or not count < length < self._longest:
                continue
            if each is None:
                each = self._texts.find(row, count, length, tokens)
            if each is not None:
                if missed := length - count - len(each.context):
                    each.forget()
                each.context.follow([last] if count == 1 and not missed else tokens[row, len(each.context) : length])
            elif followed and time.perf_counter() > ends:
                self._late()
                continue
            elif (each := self._begun(row, length, tokens)) is None:
                continue
            rows.append(row)
            followed.append(each)
        return rows, followed

    def _begun(self, row: int, length: int, tokens: Tokens) -> Following | None:
        """A request that is not known; None where it is not to be drafted for."""
        try:
            return self._texts.begin(row, length, tokens)
        except Exception as error:
            self._failed(error)
            return None

    def _learn(
        self,
        sampled: Sequence[Sequence[int]],
        rows: Sequence[int],
        followed: Sequence[Following],
        began: float,
        ends: float,
    ) -> None:
        """Learn from the drafts of the last step."""
        scores = {}
        if self._logits.wanted:
            scores = self._logits.of(sampled, dict(zip(rows, followed, strict=True)))
        gap = self._gaps.seconds(began - self._ended) if self._scored else 0.0
        news = [
            ServedRound(each, tuple(sampled[row]), scores.get(row)) for row, each in zip(rows, followed, strict=True)
        ]
        self.served.emitted(news, gap, ends)

    def _draft(self, each: Following, tokens: list[int]) -> list[int]:
        """The tokens of a draft, as vLLM takes them."""
        if self.settings.padded:
            room = min(self.k, max(0, each.context.room - 1))
            tokens += [tokens[-1] if tokens else each.context.root] * (room - len(tokens))
        return tokens

    # errors

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        self._warn("error", f"{type(error).__name__}: {error}")
        if self._errors >= HOPELESS and not self._hopeless:
            self._hopeless = True
            log.warning("paceline: nothing is drafted any more, after %d errors", HOPELESS)

    def _warn(self, kind: str, what: str) -> None:
        """Once of each kind: a server's log is no place for the same line in every step."""
        if kind not in self._said:
            self._said.add(kind)
            log.warning("paceline: %s; serving goes on without that draft", what)

    def _late(self) -> None:
        """The budget is used up. In a few steps it is, where long prompts begin."""
        self._lates += 1
        if self._lates >= OFTEN and self._lates > LATE * self._steps:
            self._warn("late", "drafting often takes longer than its budget")

    def _end(self) -> None:
        self._texts.clear()
        self._closing.end()
        self.drafter.dispose()


def unread(parallel: Any) -> bool:
    """Whether vLLM ignores the drafts of this rank: those of the first one of a tensor parallel group count."""
    if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
        raise InputError(
            "with the external launcher every rank uses its own drafts, and those depend on its clock; launch ranks by "
            "vLLM itself"
        )
    return bool(parallel.rank % parallel.tensor_parallel_size)


class _Model:
    """The properties of a model that drafters need before any text."""

    def __init__(self, name: str, vocab_size: int) -> None:
        self.name, self.vocab_size = name, vocab_size

    def beside(self) -> AbstractContextManager[None]:
        """vLLM's forwards are held up by nothing here."""
        return nullcontext()


def _vocabulary(model: Any) -> Vocabulary | None:
    """The served model's; None where it has none that can be read, which only some methods need."""
    try:
        from transformers import AutoTokenizer  # vLLM's, of whatever version

        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
        )
        return Vocabulary(tokenizer)
    except Exception:  # tokenizers raises no other kind, and another transformers may raise any
        return None
