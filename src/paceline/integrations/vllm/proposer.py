"""The class that vLLM makes and asks in every step for drafts of all requests.

It must never hurt the engine, which ends at any error of it: whatever goes wrong here costs drafts, and no text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from paceline.drafters import Ask, Budget, Seen
from paceline.drafters.asking import fit
from paceline.drafters.suffix import Suffix
from paceline.errors import InputError
from paceline.integrations.vllm.closing import Closing
from paceline.integrations.vllm.lengths import Lengths
from paceline.integrations.vllm.logits import Logits
from paceline.integrations.vllm.settings import FIXED, MOST, VLLMSettings, leaves
from paceline.integrations.vllm.texts import Following, Served, ServedTexts, Tokens
from paceline.tree import EMPTY, DraftTree, Floats, line
from paceline.verify import Verdict
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
"""What a step without one takes from their number."""
FEW = 4
"""Requests whose logits are read at once; the clock is read between them."""
A_ROW = 50e-6
"""Seconds that each request adds to the budget."""
TOGETHER = 64
"""Requests that are asked for together; the clock is read between them."""

LINE = list(range(-1, MOST))
"""The parents of a chain."""
PATHS = [tuple(range(accepted)) for accepted in range(MOST + 1)]
"""The nodes of a chain of which so many were accepted."""
CHANCES = 4096
"""Different rows of chances that are kept."""

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
        self._nodes = max(self.k, self.drafter.nodes)
        self._whole, self._observes = Budget(self._nodes, self.k), self.drafter.observes
        self._closing = Closing(self.drafter)
        rows = int(vllm_config.scheduler_config.max_num_seqs)
        self._texts = ServedTexts(rows, self._longest, self.drafter.open, self._closing.give)
        self._logits = Logits(self.drafter.needs.top)
        self._lengths = Lengths()
        self._ended, self._rows, self._errors, self._lates = 0.0, 0, 0.0, 0
        self._hopeless, self._unread = False, unread(vllm_config.parallel_config)
        self._said: set[str] = set()
        self._begin()
        Finalize(None, self._end, exitpriority=10)  # unlike atexit, also in a forked worker
        log.info("paceline drafts by %s, up to %d tokens", self.settings.method, self.k)

    def _begin(self) -> None:
        """Draft once, since files are opened with the first draft."""
        text = Served(np.zeros(2, np.int32), self._longest)
        state = self.drafter.open(text)
        self.drafter.propose([Ask(state, Budget(self._nodes, self.k))])

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
        drafts: list[list[int]] = [[] for _ in sampled]
        least = self._lengths.step()
        if self.settings.lengths == FIXED:
            least = 0.0
        ends = began + budget + max(0.0, learning - budget / 2)  # also where learning took it all
        for start in range(0, len(rows), TOGETHER):
            if time.perf_counter() > ends:
                self._late()
                break
            some = followed[start : start + TOGETHER]
            for row, each, tree in zip(rows[start : start + TOGETHER], some, self._trees(some), strict=True):
                drafts[row] = self._draft(each, tree, least)
        self._rows = sum(map(len, drafts)) + len(drafts) if len(rows) == len(sampled) else 0
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
                if (missed := length - count - len(each.text)) > 0:
                    each.draft = []
                each.whole = not missed
                each.text.follow([last] if count == 1 and not missed else tokens[row, len(each.text) : length])
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
        """What came of the drafts, for the drafter and for the lengths."""
        if self._rows and self._ended:
            emitted = sum(map(len, sampled))
            self._lengths.pace.note(self._rows, emitted, began - self._ended)
        wanted = self._logits.wanted
        scores = self._logits.of(sampled, dict(zip(rows, followed, strict=True))) if wanted else {}
        seen = list[tuple[Following, Seen]]()
        for row, each in zip(rows, followed, strict=True):
            new, accepted = sampled[row], 0
            if draft := each.draft:
                most = min(len(draft), len(new) - 1)
                while accepted < most and draft[accepted] == new[accepted]:
                    accepted += 1
                self._lengths.judge(each.record, each.sources, each.chances, accepted)
                each.draft = []
            if self._observes and each.whole and not each.off and (not wanted or row in scores):
                verdict = Verdict(PATHS[accepted], tuple(new), accepted)
                seen.append((each, Seen(each.state, verdict, scores.get(row))))  # type: ignore[arg-type]
        some = FEW if wanted else TOGETHER
        first = self._lengths.steps % (len(seen) or 1)  # where there is not time for all, others are first each time
        seen = seen[first:] + seen[:first]
        for start in range(0, len(seen), some):
            if start and time.perf_counter() > ends:
                break
            self._show(seen[start : start + some])

    def _show(self, seen: Sequence[tuple[Following, Seen]]) -> None:
        """What came, for the drafter. A request for which that fails is left alone from now on."""
        try:
            if self._logits.wanted:
                self.drafter.read([one for _, one in seen])
            self.drafter.observe([one for _, one in seen])
        except Exception as error:
            if len(seen) == 1:
                self._leave(seen[0][0], error)
            for one in seen if len(seen) > 1 else ():
                self._show([one])

    # drafts

    def _trees(self, followed: Sequence[Following]) -> list[DraftTree]:
        whole, full = self._whole, self._longest - self.k
        asked = [each for each in followed if not each.off]
        asks = [Ask(each.state, whole if len(each.text) < full else self._last(each)) for each in asked]
        try:
            trees = self.drafter.propose(asks)
        except Exception:
            trees = [self._alone(*one) for one in zip(asked, asks, strict=True)]
        if len(trees) != len(asks):
            raise ValueError(f"{self.settings.method} answered for {len(trees)} requests of {len(asks)}")
        if len(asked) == len(followed):
            return trees
        answers = iter(trees)
        return [EMPTY if each.off else next(answers) for each in followed]

    def _alone(self, each: Following, ask: Ask) -> DraftTree:
        """Where asking for many failed: the one that it fails for is left alone from now on."""
        try:
            return self.drafter.propose([ask])[0]
        except Exception as error:
            self._leave(each, error)
            return EMPTY

    def _leave(self, each: Following, error: Exception) -> None:
        self._failed(error)
        each.off = True
        self._texts.leave(each)

    def _last(self, each: Following) -> Budget:
        """What fits behind a text at its limit."""
        depth = max(0, self._longest - len(each.text) - 1)
        return Budget(self._nodes if depth else 0, depth)

    def _draft(self, each: Following, tree: DraftTree, least: float) -> list[int]:
        tokens, chances, sources = best_chain(tree, self.k)
        if not tokens and not self.settings.padded:
            return []
        if tokens and not (min(tokens) >= 0 and max(tokens) < self._size):
            wrong = next(place for place, token in enumerate(tokens) if not 0 <= token < self._size)
            self._warn("foreign", f"{self.settings.method} drafts token {tokens[wrong]} of {self._size}")
            tokens, chances = tokens[:wrong], chances[:wrong]
        room = max(0, self._longest - len(each.text) - 1)
        count = min(self._lengths.worth(each.record, sources, chances, least), room)
        each.draft, each.chances, each.sources = tokens[:count], chances[:count], sources[:count]
        if self.settings.padded:
            last = each.draft[-1] if each.draft else each.text.root
            each.draft += [last] * (min(self.k, room) - count)
        return each.draft

    # what goes wrong

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
        if self._lates >= OFTEN and self._lates > LATE * self._lengths.steps:
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
    """What drafters ask of a model before any text."""

    def __init__(self, name: str, vocab_size: int) -> None:
        self.name, self.vocab_size = name, vocab_size


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


_known: dict[int, tuple[Floats, list[float]]] = {}


def _chances(scores: Floats) -> list[float]:
    """Of log-probabilities. Rows that are shared cannot be written, and are known."""
    if (known := _known.get(id(scores))) is not None and known[0] is scores:
        return known[1]
    chances: list[float] = np.exp(np.minimum(scores, 0.0)).tolist()
    if not scores.flags.writeable:
        if len(_known) >= CHANCES:
            _known.clear()
        _known[id(scores)] = scores, chances
    return chances


def best_chain(tree: DraftTree, most: int) -> tuple[list[int], list[float], tuple[str, ...]]:
    """The path that brings the most tokens by its scores: tokens, chances and sources."""
    count = len(tree)
    if not count:
        return [], [], ()
    tokens, chances = tree.tokens.tolist(), _chances(tree.scores)
    if tree.parents is line(count)[0] or (parents := tree.parents.tolist()) == LINE[:count]:
        return tokens[:most], chances[:most], tree.sources[:most]
    worth, best = [0.0] * (count + 1), [-1] * (count + 1)  # the root stands last, at -1
    for node in range(count - 1, -1, -1):
        value = chances[node] * (1 + worth[node])
        if value > worth[parents[node]]:
            worth[parents[node]], best[parents[node]] = value, node
    path, node = list[int](), best[-1]
    while node >= 0 and len(path) < most:
        path.append(node)
        node = best[node]
    return [tokens[node] for node in path], [chances[node] for node in path], tuple(tree.sources[node] for node in path)
