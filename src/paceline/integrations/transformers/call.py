"""The callable that `generate` hands its prepared inputs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.stopping_criteria import StopStringCriteria

from paceline.api.drafters import Drafters
from paceline.api.settings import Settings
from paceline.drafters import Drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.engine.counters import Totals
from paceline.errors import InputError
from paceline.integrations.transformers.inputs import paddings, refuse, refuse_companions, withheld_by_generate
from paceline.integrations.transformers.output import Columns, record, sequences
from paceline.integrations.transformers.processors import split_processors
from paceline.integrations.transformers.rows import Decoding, GenerateRow, rows_of, write
from paceline.integrations.transformers.targets import borrowed
from paceline.law import Sampling
from paceline.planning.base import Planner
from paceline.targets.cache import persistent_tensors
from paceline.targets.forked import note_use
from paceline.targets.hf.target import HFTarget
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    from paceline.api.model import LanguageModel


def custom_generate(
    method: str | Drafter | None = None,
    draft_model: str | Path | PreTrainedModel | LanguageModel | DraftModel | None = None,
    *,
    planner: str | Planner | None = None,
    rule: str = Rule.COUPLED,
    tokenizer: PreTrainedTokenizerBase | None = None,
    strict: bool = False,
    **misplaced: Any,
) -> CustomGenerate:
    """For ``model.generate(..., custom_generate=...)`` of transformers: drafts by ``method``, the same text.

    Everything that is prepared for `generate` is honoured or refused with a sentence. The default method is `auto`,
    which uses a draft model if there is one. The tokenizer is the model's own; it is only needed to hold the
    tokenizer of a draft model against it. With ``strict`` a drafter that fails ends the call with a `DrafterError`; by
    default the texts go on without drafts.
    """
    if "generation_config" in misplaced:
        raise InputError(
            "custom_generate was given to generate without being called; "
            "write generate(..., custom_generate=paceline.custom_generate())"
        )
    if misplaced:
        known = "method, draft_model, planner, rule, tokenizer and strict"
        raise InputError(f"unknown setting {next(iter(misplaced))!r} of custom_generate; known are {known}")
    return CustomGenerate(
        Settings(method=method, draft_model=draft_model, planner=planner, rule=rule, strict=strict),
        None if tokenizer is None else Vocabulary(tokenizer),
    )


class CustomGenerate:
    """The callable. It serves any number of `generate` calls, of several models and from several threads, and keeps
    what its drafters learn."""

    def __init__(self, settings: Settings, vocabulary: Vocabulary | None = None) -> None:
        settings.planner_for(settings.drafter)  # a misspelt spec is refused here, not in the middle of `generate`
        self._settings = settings
        self._vocabulary = vocabulary
        self._drafters: WeakKeyDictionary[HFTarget, Drafters] = WeakKeyDictionary()
        self.last: Totals | None = None
        """The totals of the newest call that was finished. Counts are sums over its rows; seconds are those of the
        clock, of all rows together, from the first forward to the last. Probing and loading are not among them."""

    def __repr__(self) -> str:
        return f"<custom_generate with {self._settings!r}>"

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
        note_use()
        withheld = withheld_by_generate()
        refuse(model, generation_config, model_kwargs)
        refuse_companions(assistant_model or withheld.assistant_model, synced_gpus or withheld.synced_gpus)
        criteria = [*stopping_criteria, *_stops(stop_strings, tokenizer or withheld.tokenizer)]
        config: Any = generation_config
        pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
        pads = any(hasattr(each, "eos_token_id") for each in criteria)
        if pads and pad is None and len(input_ids) > 1:
            raise InputError("rows that end early need a token to be padded with; give pad_token_id")
        split = split_processors(
            logits_processor,
            sample=bool(generation_config.do_sample),
            penalty=model_kwargs.get("attention_mask") is None and not generation_config.output_logits,
        )
        seed = int(torch.randint(2**63 - 1, ())) if generation_config.do_sample else 0
        counts = paddings(input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids"))
        rows = rows_of(model, input_ids, counts, split, criteria, generation_config)
        columns = Columns(streamer or withheld.streamer, rows, pad)
        with persistent_tensors(), borrowed(model) as target:
            _check_reach(target, rows)
            drafters = self._drafters.setdefault(target, Drafters())
            lease = drafters.lease(self._settings, target, self._vocabulary)
            planner = drafters.planner(self._settings, lease.drafter, target)
            sampling = Sampling(seed=seed, **split.fields)
            rule, strict = Rule(self._settings.rule), self._settings.strict
            decoding = Decoding(target, lease.drafter, planner, rule, sampling, strict)
            totals = write(rows, decoding, columns.show, padded=pads)
        columns.end()
        self.last = totals
        found = sequences(input_ids, rows, pad)
        return record(found, rows, pad) if generation_config.return_dict_in_generate else found


def _check_reach(target: HFTarget, rows: Sequence[GenerateRow]) -> None:
    """Refuse texts that may grow past the last position up to which the target is scored faithfully."""
    longest = max(row.padded.shape[1] - row.padding + row.ends.max_new_tokens for row in rows)
    if target.trusted is not None and longest > target.trusted:
        raise InputError(
            f"{target.name} is scored faithfully up to position {target.trusted} and may have to write up to "
            f"{longest}; lower max_new_tokens, or generate without custom_generate"
        )


def _stops(strings: str | Sequence[str] | None, tokenizer: Any) -> list[StopStringCriteria]:
    if not strings:
        return []
    if tokenizer is None:
        raise InputError(
            "stop_strings are searched in the tokens' text; give generate the tokenizer, too: tokenizer=..."
        )
    return [StopStringCriteria(tokenizer, [strings] if isinstance(strings, str) else list(strings))]
