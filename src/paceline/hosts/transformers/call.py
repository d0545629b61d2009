"""The callable that `generate` hands its prepared inputs to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.stopping_criteria import StopStringCriteria

from paceline.decode.account import Totals
from paceline.decode.planner import Planner
from paceline.drafters import Drafter
from paceline.hosts.settings import Settings
from paceline.hosts.transformers.chain import Chain, Division, divide
from paceline.hosts.transformers.copies import Place, own_copies
from paceline.hosts.transformers.given import given_to_generate
from paceline.hosts.transformers.kept import borrowed
from paceline.hosts.transformers.output import Columns, record, sequences
from paceline.hosts.transformers.padding import paddings
from paceline.hosts.transformers.refusals import refuse, refuse_companions
from paceline.hosts.transformers.rows import Ends, Row, Way, Within
from paceline.hosts.transformers.write import write
from paceline.law import Sampling
from paceline.targets.cache import lasting
from paceline.targets.hf.target import HFTarget
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    from paceline.drafters.assistant import DraftModel
    from paceline.hosts.python import LanguageModel


def custom_generate(
    method: str | Drafter | None = None,
    draft_model: str | Path | PreTrainedModel | LanguageModel | DraftModel | None = None,
    *,
    planner: str | Planner = "fixed",
    rule: str = Rule.COUPLED,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> CustomGenerate:
    """For ``model.generate(..., custom_generate=...)`` of transformers: drafts by ``method``, the same text.

    Everything that is prepared for `generate` is honoured or refused with a sentence. The default method is `lookup`,
    or `assistant` where there is a draft model. The tokenizer is the model's own; it is only needed to hold the
    tokenizer of a draft model against it.
    """
    return CustomGenerate(
        Settings(method=method, draft_model=draft_model, planner=planner, rule=rule),
        None if tokenizer is None else Vocabulary.of(tokenizer),
    )


class CustomGenerate:
    """Serves any number of `generate` calls, of several models and from several threads; what a drafter learns stays
    with it from call to call."""

    def __init__(self, settings: Settings, vocabulary: Vocabulary | None = None) -> None:
        settings.planner_for(settings.drafter)  # a misspelt spec is told here, not in the middle of `generate`
        self._settings = settings
        self._vocabulary = vocabulary
        self._drafters: WeakKeyDictionary[PreTrainedModel, Drafter] = WeakKeyDictionary()
        self._fitting = threading.Lock()
        self.last: Totals | None = None
        """What the newest call that came to its end amounted to, over all of its rows."""

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: GenerationConfig,
        streamer: Any = None,
        synced_gpus: bool = False,
        assistant_model: Any = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """As transformers calls it. ``stop_strings`` is here because `generate` itself would want a tokenizer for them,
        which it loses on its way to a callable; so it leaves them to us."""
        given = given_to_generate()
        refuse(model, generation_config, model_kwargs)
        refuse_companions(assistant_model or given.assistant_model, synced_gpus or given.synced_gpus)
        criteria = [*stopping_criteria, *_stops(stop_strings, tokenizer or given.tokenizer)]
        config: Any = generation_config
        pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
        pads = any(hasattr(each, "eos_token_id") for each in criteria)
        if pads and pad is None and len(input_ids) > 1:
            raise ValueError("rows that end early need a token to be padded with; give pad_token_id")
        division = divide(
            logits_processor,
            sample=bool(generation_config.do_sample),
            penalty=model_kwargs.get("attention_mask") is None and not generation_config.output_logits,
        )
        seed = int(torch.randint(2**63 - 1, ())) if generation_config.do_sample else 0
        rows = _rows(model, input_ids, model_kwargs, division, criteria, generation_config)
        with lasting(), borrowed(model) as target:
            way = Way(
                target,
                drafter := self._drafter(model, target),
                self._planner(target, drafter, rows),
                Rule(self._settings.rule),
                Sampling(seed=seed, **division.fields),
            )
            sessions = write(rows, way, Columns(streamer or given.streamer, rows, pad), padded=pads)
        self.last = Totals.of([r for s in sessions for r in s.rounds], sum(s.seconds_prefill for s in sessions))
        found = sequences(input_ids, rows, pad)
        return record(found, rows, pad) if generation_config.return_dict_in_generate else found

    def _planner(self, target: HFTarget, drafter: Drafter, rows: Sequence[Row]) -> Planner:
        planner, limit = self._settings.planner_for(drafter), target.context_length
        longest = max(row.padded.shape[1] - row.padding + row.ends.max_new_tokens for row in rows)
        return planner if limit is None or longest <= limit else Within(planner, limit)

    def _drafter(self, model: PreTrainedModel, target: HFTarget) -> Drafter:
        """The drafter, fitted to the model; of a spec, one for each model."""
        if isinstance(self._settings.method, Drafter):
            self._settings.method.fit(target, self._vocabulary)
            return self._settings.method
        with self._fitting:
            if (kept := self._drafters.get(model)) is None:
                kept = self._settings.drafter
                kept.fit(target, self._vocabulary)
                self._drafters[model] = kept
            return kept


def _stops(strings: str | Sequence[str] | None, tokenizer: Any) -> list[StopStringCriteria]:
    if not strings:
        return []
    if tokenizer is None:
        raise ValueError(
            "stop_strings are searched in the tokens' text; give generate the tokenizer, too: tokenizer=..."
        )
    return [StopStringCriteria(tokenizer, [strings] if isinstance(strings, str) else list(strings))]


def _rows(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    model_kwargs: dict[str, Any],
    division: Division,
    criteria: Sequence[Any],
    config: GenerationConfig,
) -> list[Row]:
    """The rows of the batch, each with processors and criteria of its own; a single one has the given ones."""
    counts = paddings(input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids"))
    ends = Ends.of(criteria, input_ids.shape[1], config.max_length)
    rows = []
    for number, padding in enumerate(counts):
        padded = input_ids[number : number + 1]
        processors, asked = division.processors, ends.asked
        if len(counts) > 1:
            place = Place(number, number // (config.num_return_sequences or 1))
            processors, asked = own_copies(processors, asked, model, place)
        chain = Chain(
            processors,
            padded[:, :padding],
            warpers=division.warpers,
            scores=bool(config.return_dict_in_generate and config.output_scores),
            logits=bool(config.return_dict_in_generate and config.output_logits),
        )
        rows.append(Row(number, padded, padding, replace(ends, asked=asked), chain))
    return rows
