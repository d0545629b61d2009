"""`generate` of transformers, written by our engine: what it gives back is held against transformers' own."""

import copy
import gc
import itertools
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    TextIteratorStreamer,
)
from transformers.generation import logits_process as theirs
from transformers.generation.streamers import BaseStreamer

import paceline
from clock import MadeClock
from engine import Watched
from families import VOCAB, build
from paceline.context import Context
from paceline.drafters import Budget, Drafter, Plain
from paceline.drafters.lookup import Lookup
from paceline.errors import CallbackError
from paceline.integrations.transformers import CustomGenerate, custom_generate, targets
from paceline.integrations.transformers.inputs import refuse
from paceline.integrations.transformers.processors import RowProcessor, SplitProcessors, split_processors
from paceline.law import Law, Sampling
from paceline.targets import load as loading
from paceline.targets.cache import CacheRows
from paceline.targets.hf.own import CACHE_NAMES, cache_name
from paceline.targets.pocket.bundle import read_tokenizer
from paceline.tree import DraftTree
from paceline_lab.check.tiny import build as tiny
from paceline_lab.check.tiny import configuration
from thinning import crossed

PADDINGS = (5, 0, 1)
LENGTH = 12


class Foreseeing(Drafter):
    """Knows the texts that are going to be written, but for a token here and there, so that drafts are accepted."""

    name = "foreseeing"

    def __init__(self, texts: torch.Tensor, paddings: Sequence[int]) -> None:
        self._texts = [text[padding:].tolist() for text, padding in zip(texts, paddings, strict=True)]

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        so_far = state.tokens.tolist()
        for text in self._texts:
            if text[: len(so_far)] == so_far:
                coming = np.array(text[len(so_far) :][: min(budget.depth, budget.nodes)], np.int64)
                coming[3::4] = (coming[3::4] + 1) % VOCAB
                return DraftTree.chain(coming, source=self.name)
        return DraftTree.chain([])


@cache
def llama() -> PreTrainedModel:
    return build("llama")


@cache
def pocket() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model = paceline.load("pocket").target
    return model.model, read_tokenizer("pocket")


def batch() -> dict[str, torch.Tensor]:
    """Three prompts of different lengths, padded on the left."""
    ids = torch.from_numpy(np.random.default_rng(4).integers(1, VOCAB, (len(PADDINGS), LENGTH)))
    mask = torch.ones_like(ids)
    for row, padding in enumerate(PADDINGS):
        mask[row, :padding] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def one() -> dict[str, torch.Tensor]:
    return {name: values[1:2] for name, values in batch().items()}


def generate(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*drafts are clipped to chains")
        return model.generate(**inputs, **({"max_new_tokens": 24, "do_sample": False} | settings))


def foreseeing(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **settings: Any) -> tuple[Any, CustomGenerate]:
    """transformers' own text, and a way of generating whose drafts know it."""
    text = generate(model, inputs, **settings)
    sequences = getattr(text, "sequences", text)
    paddings = PADDINGS if len(sequences) == len(PADDINGS) else [0] * len(sequences)
    return text, custom_generate(Foreseeing(sequences, paddings), planner="fixed")


def equal_to_theirs(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **settings: Any) -> torch.Tensor:
    """Their text, after ours has been found to be the same, and not for lack of accepted drafts."""
    text, ours = foreseeing(model, inputs, **settings)
    found = generate(model, inputs, **settings, custom_generate=ours)
    assert found.dtype == text.dtype
    assert found.tolist() == text.tolist()
    assert ours.last is not None
    assert ours.last.accepted > ours.last.rounds / 2, "a draft that is never accepted shows nothing"
    plain = generate(model, inputs, **settings, custom_generate=custom_generate("plain"))
    assert plain.tolist() == text.tolist()
    return text


def written(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **settings: Any) -> list[list[int]]:
    text = generate(model, inputs, **settings)
    return text[:, inputs["input_ids"].shape[1] :].tolist()


def ends_at_different_places(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> list[int]:
    """End-of-text tokens that end the first row early and another one late."""
    rows = written(model, inputs)
    for early, late in itertools.product(range(2, 8), range(10, 20)):
        ends = [rows[0][early], rows[1][late]]
        lengths = [next((i for i, token in enumerate(row) if token in ends), 99) for row in rows]
        if lengths[0] == early and lengths[1] == late:
            return ends
    pytest.fail("no tokens end the rows at different places")


# --- greedy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "opt", "falcon", "bloom", "gpt_oss"])
def test_a_padded_batch_is_written_as_transformers_writes_it(name: str) -> None:
    model = build(name)
    ends = ends_at_different_places(model, batch())
    text = equal_to_theirs(model, batch(), eos_token_id=ends, pad_token_id=0)
    lengths = (text[:, LENGTH:] != 0).sum(dim=1).tolist()
    assert lengths[0] < lengths[1], "a row is padded behind its end"


SETTINGS: dict[str, dict[str, Any]] = {
    "max_length": {"max_new_tokens": None, "max_length": LENGTH + 9},
    "min_new_tokens": {"min_new_tokens": 14},
    "min_length": {"min_length": LENGTH + 8},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[66, 27], [93]]},
    "sequence_bias": {"sequence_bias": [[[7], 3.0], [[12, 13], -2.0]]},
    "suppress_tokens": {"suppress_tokens": list(range(40, 70)), "begin_suppress_tokens": list(range(20, 30))},
    "forced_eos_token_id": {"forced_eos_token_id": 3},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4, 1.2)},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "guidance_scale": {"guidance_scale": 1.5},
    "renormalize_logits": {"renormalize_logits": True, "repetition_penalty": 1.1},
    "remove_invalid_values": {"remove_invalid_values": True},
    "use_cache": {"use_cache": False},
}


@pytest.mark.parametrize(("name", "inputs"), crossed(SETTINGS, [one, batch]))
def test_settings_act_as_in_transformers(name: str, inputs: Callable[[], dict[str, torch.Tensor]]) -> None:
    ends = ends_at_different_places(llama(), batch())
    text = equal_to_theirs(llama(), inputs(), eos_token_id=ends, pad_token_id=0, **SETTINGS[name])
    assert len(text) == len(inputs()["input_ids"])
    assert text.shape[1] > LENGTH


def test_padding_that_no_mask_tells_of_is_found_by_the_pad_token() -> None:
    found = equal_to_theirs(llama(), {"input_ids": batch()["input_ids"]}, pad_token_id=0, eos_token_id=[5])
    told = equal_to_theirs(llama(), batch(), pad_token_id=0, eos_token_id=[5])
    assert found.tolist() == told.tolist()


def test_rows_that_nothing_can_pad_go_on_until_the_last_has_ended() -> None:
    """Without an end-of-text token transformers has no padding, and writes on behind the end of a row."""
    ends = ends_at_different_places(llama(), batch())

    class AtToken(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.isin(input_ids[:, -1], torch.tensor(ends))

    text = equal_to_theirs(llama(), batch(), stopping_criteria=[AtToken()])
    assert text[0, LENGTH:].tolist().index(ends[0]) < text.shape[1] - LENGTH - 1


def test_stop_strings_end_a_text_as_in_transformers() -> None:
    model, tokenizer = pocket()
    inputs = {"input_ids": tokenizer("It was a dark night", return_tensors="pt").input_ids}
    stop = tokenizer.decode(generate(model, inputs)[0])[-12:-7]
    text = generate(model, inputs, stop_strings=stop, tokenizer=tokenizer)
    assert text.shape[1] < generate(model, inputs).shape[1]
    for method in ("plain", "lookup", "assistant:model=pocket-draft"):
        found = generate(
            model, inputs, stop_strings=[stop], tokenizer=tokenizer, custom_generate=custom_generate(method)
        )
        assert found.tolist() == text.tolist()
    with pytest.raises(ValueError, match=r"stop_strings.*give generate the tokenizer"):
        generate(model, inputs, stop_strings=stop, custom_generate=custom_generate())


def test_time_that_has_run_out_ends_every_row() -> None:
    found = generate(llama(), batch(), max_time=0.0, eos_token_id=[3], custom_generate=custom_generate())
    assert found.shape == (3, LENGTH + 1)


def test_a_draft_does_not_run_out_of_the_context_before_the_text_does() -> None:
    model = build("gpt2", n_positions=LENGTH + 6)
    end = written(model, one(), max_new_tokens=5)[0][4]
    text = generate(model, one(), eos_token_id=end, pad_token_id=0)
    greedy = {"eos_token_id": end, "pad_token_id": 0}
    longer = torch.cat([text, torch.full((1, 20), 7)], dim=1)
    ours = custom_generate(Foreseeing(longer, [0]))
    assert generate(model, one(), **greedy, custom_generate=ours).tolist() == text.tolist()


def test_tokens_are_64_bits_wide_whatever_the_prompt_is() -> None:
    for inputs in (one(), batch()):
        text = equal_to_theirs(llama(), {**inputs, "input_ids": inputs["input_ids"].int()})
        assert text.dtype == torch.int64


# --- what processors and criteria see -----------------------------------------------------------------------


class Recording(LogitsProcessor):
    """Keeps what it is shown, and favours a token that depends on how often it was called."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[list[int]], torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append((input_ids.tolist(), scores.clone()))
        scores[:, 10 + len(self.seen) % 5] += 2.0
        return scores


class Counting(StoppingCriteria):
    """Ends a text with its n-th call."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.seen: list[tuple[list[list[int]], int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.seen.append((input_ids.tolist(), -1 if scores is None else len(scores)))
        return torch.full((len(input_ids),), len(self.seen) == self.calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("record", [{}, {"return_dict_in_generate": True, "output_scores": True}])
def test_processors_and_criteria_are_called_exactly_as_in_plain_decoding(
    record: dict[str, Any], dtype: torch.dtype
) -> None:
    padded = {name: values[:1] for name, values in batch().items()}
    model = build("llama", dtype)

    def seen(custom: CustomGenerate | None) -> tuple[Any, Any]:
        processor, criterion = Recording(), Counting(17)
        generate(
            model,
            padded,
            **record,
            logits_processor=[processor],
            stopping_criteria=[criterion],
            custom_generate=custom,
        )
        return processor.seen, criterion.seen

    text = generate(model, padded, logits_processor=[Recording()])
    ours = custom_generate(Foreseeing(text, PADDINGS[:1]))
    (theirs_seen, theirs_asked), (ours_seen, ours_asked) = seen(None), seen(ours)
    assert [ids for ids, _ in ours_seen] == [ids for ids, _ in theirs_seen]
    assert ours_asked == theirs_asked
    assert len(ours_asked) == 17
    for (_, mine), (_, other) in zip(ours_seen, theirs_seen, strict=True):
        assert mine.dtype == other.dtype
        assert torch.allclose(mine, other, atol=1e-4)
    assert ours.last is not None
    assert ours.last.accepted > 5


def test_processors_that_keep_state_do_not_leak_from_row_to_row() -> None:
    alone = []
    for row, padding in enumerate(PADDINGS):
        inputs = {"input_ids": batch()["input_ids"][row : row + 1, padding:]}
        alone.append(written(llama(), inputs, logits_processor=[Recording()], stopping_criteria=[Counting(15)]))
    processor, criterion = Recording(), Counting(15)
    found = written(
        llama(),
        batch(),
        logits_processor=[processor],
        stopping_criteria=[criterion],
        custom_generate=custom_generate("lookup"),
    )
    assert found == [row for rows in alone for row in rows]
    assert (processor.seen, criterion.seen) == ([], []), "the rows have copies"


def test_a_processor_and_a_criterion_share_in_a_row_what_they_share() -> None:
    class Fed(Counting):
        def __init__(self, processor: Recording) -> None:
            super().__init__(99)
            self.processor = processor

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.full((len(input_ids),), len(self.processor.seen) == 6)

    processor = Recording()
    ours = custom_generate()
    settings = {"logits_processor": [processor], "stopping_criteria": [Fed(processor)]}
    assert [len(row) for row in written(llama(), batch(), **settings, custom_generate=ours)] == [6, 6, 6]


def test_rows_know_their_number() -> None:
    allowed = {0: [11, 12, 13], 1: [21, 22, 23], 2: [31, 32, 33]}

    def tokens_of(number: int, text: torch.Tensor) -> list[int]:
        assert text[0] == batch()["input_ids"][number, 0], "the text is shown with its padding"
        return allowed[number]

    text = equal_to_theirs(llama(), batch(), prefix_allowed_tokens_fn=tokens_of)
    assert set(text[2, LENGTH:].tolist()) <= set(allowed[2])


def test_guidance_by_a_negative_prompt_belongs_to_its_row() -> None:
    negative = torch.tensor([[4, 5], [6, 7], [8, 9]])
    text = equal_to_theirs(llama(), batch(), guidance_scale=2.0, negative_prompt_ids=negative)
    moved = equal_to_theirs(llama(), batch(), guidance_scale=2.0, negative_prompt_ids=negative.roll(1, 0))
    assert [one.tolist() != other.tolist() for one, other in zip(text, moved, strict=True)] == [True] * len(negative)


def test_what_cannot_be_copied_is_told() -> None:
    class Locked(Recording):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    ours = custom_generate()
    assert written(llama(), one(), logits_processor=[Locked()], custom_generate=ours)
    with pytest.raises(ValueError, match=r"Locked cannot be copied.*one row at a time"):
        generate(llama(), batch(), logits_processor=[Locked()], custom_generate=ours)


# --- sampling -----------------------------------------------------------------------------------------------

SAMPLING = {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.95}


def sampled(method: Any, inputs: dict[str, torch.Tensor] | None = None, seed: int = 5, **settings: Any) -> Any:
    torch.manual_seed(seed)
    ours = custom_generate(method)
    return written(llama(), inputs or batch(), **(SAMPLING | settings), custom_generate=ours)


def test_every_method_samples_the_same_text() -> None:
    text = sampled("plain", num_return_sequences=2)
    assert text == sampled("lookup", num_return_sequences=2)
    assert text == sampled("lookup:max_ngram=1+lookup", num_return_sequences=2)
    twin = build("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(5)
        ours = custom_generate("assistant", draft_model=twin)
        found = written(llama(), batch(), **SAMPLING, num_return_sequences=2, custom_generate=ours)
    assert text == found
    assert ours.last is not None
    assert ours.last.as_dict()["acceptance_rate"] > 0.9, "a twin that knows the noise and the law is believed"
    assert len({tuple(row) for row in text}) == 6, "every row is a sample of its own"


def test_samples_of_a_prompt_are_rows_like_others() -> None:
    settings = {"encoder_repetition_penalty": 2.0, "encoder_no_repeat_ngram_size": 1, "repetition_penalty": 1.1}
    repeated = {name: values.repeat_interleave(2, dim=0) for name, values in batch().items()}
    text = sampled("lookup", num_return_sequences=2, **settings)
    assert text == sampled("plain", repeated, **settings)
    for row, padded in zip(text, repeated["input_ids"].tolist(), strict=True):
        assert not set(row) & set(padded)


def test_the_seed_comes_from_torch_once_per_call() -> None:
    torch.manual_seed(5)
    ours = custom_generate()
    both = [written(llama(), one(), **SAMPLING, custom_generate=ours) for _ in range(2)]
    assert both[0] == sampled("lookup", one())
    assert both[0] != both[1]
    before = torch.get_rng_state()
    written(llama(), one(), custom_generate=ours)
    assert torch.equal(torch.get_rng_state(), before), "greedy decoding draws nothing"


def test_outputs_and_harmless_processors_leave_the_sample_alone() -> None:
    text = sampled("lookup")
    assert sampled("lookup", renormalize_logits=True) == text
    torch.manual_seed(5)
    record = generate(
        llama(),
        batch(),
        **SAMPLING,
        custom_generate=custom_generate(),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    assert record.sequences[:, LENGTH:].tolist() == text


WARPED: list[tuple[list[Any], dict[str, Any], int]] = [
    ([theirs.TemperatureLogitsWarper(0.7)], {"temperature": 0.7}, 0),
    ([], {"temperature": 1.0}, 0),
    (
        [
            theirs.TemperatureLogitsWarper(1.3),
            theirs.TopKLogitsWarper(9),
            theirs.TopPLogitsWarper(0.8),
            theirs.MinPLogitsWarper(0.1),
            theirs.LogitNormalization(),
        ],
        {"temperature": 1.3, "top_k": 9, "top_p": 0.8, "min_p": 0.1},
        0,
    ),
    ([theirs.TopPLogitsWarper(0.6), theirs.TemperatureLogitsWarper(2.0)], {"temperature": 2.0}, 1),
    ([theirs.TemperatureLogitsWarper(0.5), theirs.TypicalLogitsWarper(0.7)], {"temperature": 1.0}, 2),
    (
        [theirs.TemperatureLogitsWarper(0.5), theirs.TopHLogitsWarper(0.4), theirs.TopKLogitsWarper(5)],
        {"temperature": 1.0, "top_k": 5},
        2,
    ),
    ([theirs.TopKLogitsWarper(3, filter_value=-2.0)], {"temperature": 1.0}, 1),
    ([theirs.TopPLogitsWarper(0.3, min_tokens_to_keep=4)], {"temperature": 1.0}, 1),
    ([theirs.TopPLogitsWarper(0.0)], {"temperature": 1.0}, 1),
    ([theirs.MinPLogitsWarper(1.0)], {"temperature": 1.0}, 1),
    ([Recording(), theirs.TemperatureLogitsWarper(0.8), theirs.MinPLogitsWarper(0.2)], {"min_p": 0.2}, 1),
]


@pytest.mark.parametrize(("processors", "fields", "left"), WARPED)
def test_warpers_become_fields_where_these_say_the_same(
    processors: list[Any], fields: dict[str, Any], left: int
) -> None:
    split = split_processors(processors, sample=True)
    assert fields.items() <= split.fields.items()
    assert len(split.processors) == left
    row = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    text = np.arange(7)
    row_processor = RowProcessor(
        split.processors,
        torch.zeros(1, 0, dtype=torch.int64),
        warpers=split.warpers,
        scores=True,
        logits=False,
    )
    law = Law(Sampling(**split.fields, processors=(row_processor,)), len(text))
    mine = torch.zeros(VOCAB, dtype=torch.float64)
    found = law.distribution(row, text)
    mine[torch.tensor(found.ids)] = torch.tensor(found.probs)
    for processor in processors:
        if isinstance(processor, Recording):
            processor.seen.clear()
    scores = LogitsProcessorList(processors)(torch.from_numpy(text)[None], row[None].clone())
    assert torch.allclose(mine, scores[0].double().softmax(-1), atol=1e-6)
    assert row_processor.scores is not None
    assert torch.allclose(row_processor.scores[0], scores, atol=1e-5)


def test_a_repetition_penalty_on_unpadded_text_is_known_to_drafters() -> None:
    penalty, others = theirs.RepetitionPenaltyLogitsProcessor(1.3), [theirs.NoRepeatNGramLogitsProcessor(2)]
    assert split_processors([penalty, *others], sample=False, penalty=True) == SplitProcessors(
        others, [], {"temperature": 0.0, "repetition_penalty": 1.3}
    )
    for unknown in ([*others, penalty], [theirs.RepetitionPenaltyLogitsProcessor(1.3, 4)]):
        assert split_processors(unknown, sample=False, penalty=True).processors == unknown
    seen: list[float] = []

    class Noting(Plain):
        def open(self, context: Context) -> Any:
            seen.append(context.sampling.repetition_penalty)
            return super().open(context)

    for inputs, more in ((one(), {}), (batch(), {}), (one(), {"output_logits": True, "return_dict_in_generate": True})):
        generate(llama(), inputs, repetition_penalty=1.3, custom_generate=custom_generate(Noting()), **more)
    assert seen == [1.3] + [1.0] * 4, "padding is penalised too, and kept logits are those before the penalty"


def test_greedy_decoding_keeps_warpers_as_processors() -> None:
    given = [theirs.TemperatureLogitsWarper(0.7), theirs.LogitNormalization()]
    assert split_processors(given, sample=False) == SplitProcessors(given, [], {"temperature": 0.0})


# --- return_dict_in_generate --------------------------------------------------------------------------------

RECORD = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def test_scores_and_logits_are_those_of_transformers() -> None:
    ends = ends_at_different_places(llama(), batch())
    settings = {"eos_token_id": ends, "pad_token_id": 0, "repetition_penalty": 1.2, **RECORD}
    text, ours = foreseeing(llama(), batch(), **settings)
    found = generate(llama(), batch(), **settings, custom_generate=ours)
    assert type(found) is type(text)
    assert found.sequences.tolist() == text.sequences.tolist()
    assert len(found.scores) == len(found.logits) == len(text.scores)
    done = torch.isin(text.sequences[:, LENGTH:], torch.tensor(ends)).cumsum(1).cumsum(1) > 1
    for name in ("scores", "logits"):
        for step, (mine, other) in enumerate(zip(found[name], text[name], strict=True)):
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
            going = ~done[:, step]
            assert torch.allclose(mine[going], other[going], atol=1e-4)
            assert (mine[done[:, step]].argmax(-1) == 0).all()
    assert done.any()
    gained = llama().compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    assert (gained[done] == 0).all(), "padding adds nothing to the log-probability of a row"
    assert gained.isfinite().all()


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_scores_of_a_sample_are_what_its_own_text_gives(rule: str) -> None:
    torch.manual_seed(1)
    ours = custom_generate(draft_model=build("llama"), rule=rule)
    found = generate(llama(), one(), **SAMPLING, **RECORD, custom_generate=ours)
    with torch.no_grad():
        logits = llama()(found.sequences).logits[0, LENGTH - 1 : -1]
    warpers = LogitsProcessorList(
        [theirs.TemperatureLogitsWarper(0.9), theirs.TopKLogitsWarper(40), theirs.TopPLogitsWarper(0.95)]
    )
    assert torch.allclose(torch.cat(found.logits), logits, atol=1e-4)
    assert torch.allclose(torch.cat(found.scores), warpers(found.sequences, logits.clone()), atol=1e-4)


def test_what_was_not_asked_for_is_not_there() -> None:
    found = generate(llama(), one(), return_dict_in_generate=True, custom_generate=custom_generate())
    assert list(found) == ["sequences"]


# --- streamers ----------------------------------------------------------------------------------------------


class Listening(BaseStreamer):
    def __init__(self, fails_after: int = 10**9) -> None:
        self.put_in: list[list[int]] = []
        self.ends = 0
        self._left = fails_after

    def put(self, value: torch.Tensor) -> None:
        assert value.device.type == "cpu"
        self._left -= 1
        if self._left < 0:
            raise BrokenPipeError("nobody listens any more")
        self.put_in.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("inputs", [one, batch], ids=["one", "batch"])
def test_a_streamer_hears_what_transformers_would_tell_it(inputs: Callable[[], dict[str, torch.Tensor]]) -> None:
    ends = ends_at_different_places(llama(), batch())
    settings = {"eos_token_id": ends, "pad_token_id": 0}
    text, ours = foreseeing(llama(), inputs(), **settings)
    heard = []
    for custom in (None, ours):
        listening = Listening()
        generate(llama(), inputs(), **settings, streamer=listening, custom_generate=custom)
        assert listening.ends == 1
        heard.append(listening.put_in)
    assert heard[0] == heard[1]
    assert len(heard[1]) == 1 + text.shape[1] - LENGTH


def test_text_can_be_read_from_another_thread_while_it_is_written() -> None:
    model, tokenizer = pocket()
    inputs = tokenizer("It was a dark night", return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    greedy: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20}
    settings = {"custom_generate": custom_generate(), "streamer": streamer, **greedy}
    writer = threading.Thread(target=model.generate, kwargs={"input_ids": inputs.input_ids, **settings})
    writer.start()
    pieces = list(streamer)
    writer.join()
    own = tokenizer.decode(model.generate(inputs.input_ids, **greedy)[0, inputs.input_ids.shape[1] :])
    assert "".join(pieces) == own
    assert len(pieces) > 3


class Failing(Recording):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if len(self.seen) == 7:
            raise self.error
        return super().__call__(input_ids, scores)


@pytest.mark.parametrize(
    ("settings", "error", "tokens"),
    [
        ({"logits_processor": [Failing(ZeroDivisionError)], "streamer": Listening()}, CallbackError, 7),
        ({"logits_processor": [Failing(KeyboardInterrupt)], "streamer": Listening()}, KeyboardInterrupt, 7),
        ({"streamer": Listening(fails_after=6)}, BrokenPipeError, 5),
    ],
    ids=["processor", "interrupt", "listener"],
)
def test_a_generation_that_fails_leaves_nothing_behind(
    settings: dict[str, Any], error: type[BaseException], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[CacheRows] = []
    init = CacheRows.__init__
    monkeypatch.setattr(CacheRows, "__init__", lambda rows, capacity: (opened.append(rows), init(rows, capacity))[-1])
    model = build("llama").train()
    drafter = Watched(Lookup())
    with pytest.raises(error):
        generate(model, one(), **settings, custom_generate=custom_generate(drafter))
    assert drafter.opened == drafter.closed == 1
    assert opened
    assert not opened[-1].layers
    assert model.training
    assert len(settings["streamer"].put_in) == 1 + tokens, "what was settled has been told"
    assert settings["streamer"].ends == 0
    assert generate(model.eval(), one(), custom_generate=custom_generate(drafter)).shape == (1, LENGTH + 24)


def test_an_interrupt_closes_every_row_of_a_batch() -> None:
    drafter = Watched(Lookup())
    with pytest.raises(KeyboardInterrupt):
        generate(
            llama(), batch(), logits_processor=[Failing(KeyboardInterrupt)], custom_generate=custom_generate(drafter)
        )
    assert drafter.opened == drafter.closed == 3


# --- refused in a sentence ----------------------------------------------------------------------------------


CACHE = cache_name(llama()) or ""
"""What the installed transformers calls the cache."""


def cache_that_is_filled() -> DynamicCache:
    cache = DynamicCache()
    llama()(torch.tensor([[1, 2]]), **{CACHE: cache})
    return cache


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "beam search.*num_beams=1"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions=True"),
    "hidden states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states=True"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3.*'lookup'"),
    "early exit": ({"assistant_early_exit": 1}, "assistant_early_exit=1"),
    "dola": ({"dola_layers": "high"}, "dola_layers='high'"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6"),
    "empty cache": ({CACHE: DynamicCache()}, CACHE),
    "synced": ({"synced_gpus": True}, "synced_gpus"),
    "positions": ({"position_ids": torch.arange(3, 3 + LENGTH)[None]}, "position_ids.*0, 1, 2"),
    "mask shape": ({"attention_mask": torch.tensor([[0, 1, 1]])}, r"attention_mask has shape \(1, 3\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused(name: str) -> None:
    settings, sentence = REFUSED[name]
    inputs = {"input_ids": one()["input_ids"]}
    with pytest.raises(ValueError, match=sentence):
        generate(llama(), inputs, **settings, custom_generate=custom_generate())


def test_other_models_embeddings_and_filled_caches_are_refused() -> None:
    embedded = {"inputs_embeds": llama().get_input_embeddings()(one()["input_ids"])}
    longer = {"input_ids": torch.tensor([[1, 2, 3]])}
    for inputs, settings, sentence in (
        (one(), {"assistant_model": build("llama")}, r"draft_model="),
        (embedded, {}, r"inputs_embeds.*input_ids"),
        (longer, {CACHE: cache_that_is_filled()}, CACHE),
    ):
        with pytest.raises(ValueError, match=sentence):
            generate(llama(), inputs, **settings, custom_generate=custom_generate())


def test_a_filled_cache_is_refused_whoever_made_it() -> None:
    for name in CACHE_NAMES:  # an old caller's name reaches us, too
        with pytest.raises(ValueError, match=name):
            refuse(llama(), llama().generation_config, {name: cache_that_is_filled()})


def test_what_the_model_would_be_given_besides_tokens_is_refused() -> None:
    model = build("gpt2")
    with pytest.raises(ValueError, match="token_type_ids cannot be passed on"):
        generate(model, one(), token_type_ids=torch.zeros_like(one()["input_ids"]), custom_generate=custom_generate())


@pytest.mark.parametrize(("hidden", "sentence"), [(-1, "row 1 is padded on the right"), (6, "middle of row 1")])
def test_only_left_padding_is_served(hidden: int, sentence: str) -> None:
    inputs = batch()
    inputs["attention_mask"][1, hidden] = 0
    with pytest.raises(ValueError, match=sentence):
        generate(llama(), inputs, custom_generate=custom_generate())


def test_a_draft_model_with_other_tokens_needs_the_tokenizer_of_the_model() -> None:
    with pytest.raises(
        ValueError, match=r"came without its tokenizer; give it \(tokenizer=\.\.\. of custom_generate\)"
    ):
        generate(llama(), one(), custom_generate=custom_generate(draft_model="pocket-draft"))


@pytest.mark.parametrize("sample", [False, True])
def test_a_draft_model_with_another_tokenizer_changes_no_text(sample: bool) -> None:
    model, vocabulary = pocket()
    ours = custom_generate("assistant", draft_model="pocket-foreign", tokenizer=vocabulary, planner="fixed:4")
    inputs = {"input_ids": torch.tensor([[5, 6, 700, 800]])}
    found = list[torch.Tensor]()
    for how in (custom_generate("plain"), ours):
        torch.manual_seed(5)
        found.append(generate(model, inputs, custom_generate=how, do_sample=sample, max_new_tokens=30))
    assert found[0].tolist() == found[1].tolist()
    assert ours.last is not None
    assert ours.last.counts["draft_forwards"] > 0


def test_a_draft_model_is_used_by_default() -> None:
    model, tokenizer = pocket()
    ours = custom_generate(draft_model="pocket-draft", tokenizer=tokenizer, planner="fixed:3")
    inputs = {"input_ids": tokenizer("Once upon a time", return_tensors="pt").input_ids}
    assert written(model, inputs, custom_generate=ours) == written(model, inputs)
    assert ours.last is not None
    assert 0 < ours.last.drafted <= 3 * ours.last.rounds
    assert ours.last.tokens == 24
    assert ours.last.tokens_in_rounds == 23, "the first comes with the prompt, which is no round"
    assert ours.last.tokens_per_round == 23 / ours.last.rounds
    assert "method=" not in repr(ours)
    assert "draft_model=" in repr(ours)
    assert " object at " not in repr(custom_generate())


def test_what_is_no_method_is_told_at_once() -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"method": llama()}, "method is .*draft_model"),
        ({"method": 7}, "method is .*a spec"),
        ({"method": Lookup}, r"method is .*Lookup\(\)"),
        ({"method": "lokup"}, "unknown method"),
        ({"method": "lookup", "draft_model": "pocket-draft"}, "uses none"),
        ({"method": "assistant"}, r"needs a draft model: write assistant:model=NAME or give draft_model=NAME"),
        ({"planner": "wide"}, "planner"),
        ({"rule": "typical"}, "unknown rule"),
        ({"metod": "lookup"}, "unknown setting .metod. of custom_generate; known are method, draft_model"),
    ]
    for wrong, sentence in mistakes:
        with pytest.raises(ValueError, match=sentence):
            custom_generate(**wrong)
    with pytest.raises(ValueError, match=r"without being called; write .*custom_generate\(\)\)"):
        generate(llama(), one(), custom_generate=custom_generate)


@pytest.mark.parametrize("family", ["mamba", "qwen3_next"])
def test_a_model_whose_layers_keep_a_state(family: str) -> None:
    """Several prompts of different lengths, padded on the left."""
    config = configuration(family, "small")
    assert config is not None
    model, prompts = tiny(config), torch.tensor([[0, 0, 5, 6, 5, 6, 5], [9, 8, 7, 9, 8, 7, 9]])
    given = {"attention_mask": (prompts > 0).long(), "max_new_tokens": 20, "do_sample": False}
    drafted = model.generate(prompts, **given, custom_generate=custom_generate(method="lookup"))
    alone = [model.generate(row[row > 0][None], max_new_tokens=20, do_sample=False)[0, -20:] for row in prompts]
    assert torch.equal(drafted[:, -20:], torch.stack(alone))


def test_the_callable_is_for_generate_alone() -> None:
    with pytest.raises(ValueError, match=r"by generate alone: write model\.generate\("):
        custom_generate()(llama(), one()["input_ids"], [], [], llama().generation_config)


def test_a_generate_that_hides_its_streamer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(self: Any, input_ids: torch.Tensor, custom_generate: Any, listener: Any = None, **_: Any) -> Any:
        synced_gpus, config = False, copy.deepcopy(self.generation_config)
        config._pad_token_tensor, config.max_length = None, LENGTH + 4
        return custom_generate(self, input_ids, [], [], config, synced_gpus=synced_gpus)

    monkeypatch.setattr(GenerationMixin, "generate", another)
    with pytest.raises(ValueError, match=r"streamer and assistant_model cannot be read.*transformers \d"):
        generate(llama(), one(), listener=Listening(), custom_generate=custom_generate())


def test_seconds_are_those_of_the_clock_for_several_rows_too(clock: MadeClock) -> None:
    ours = custom_generate()
    generate(llama(), one(), custom_generate=ours)
    began = clock()
    found = generate(llama(), batch(), custom_generate=ours)
    elapsed = clock() - began
    assert ours.last is not None
    assert ours.last.tokens == found[:, LENGTH:].numel() == 72
    spent = ours.last.seconds + ours.last.seconds_prefill
    assert elapsed / 2 < spent < elapsed
    assert ours.last.as_dict()["tokens_per_second"] == pytest.approx((72 - 3) / ours.last.seconds)


# --- the model stays as it was ------------------------------------------------------------------------------


def test_the_model_is_left_as_it_was() -> None:
    model = build("gemma2", attn_implementation="eager").train()
    model.model.layers[1].eval()
    flags = {name: module.training for name, module in model.named_modules()}
    keys = list(model.state_dict())
    generate(model, batch(), custom_generate=custom_generate())
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert model.config._attn_implementation == "eager"
    assert list(model.state_dict()) == keys
    saved = pickle.dumps(model)
    assert b"paceline." not in saved, "who reads it back need not have us"
    for twin in (copy.deepcopy(model), pickle.loads(saved)):
        assert generate(twin.eval(), one(), custom_generate=custom_generate()).shape == (1, LENGTH + 24)


def test_a_model_is_probed_once_and_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []
    load = targets.load_target
    monkeypatch.setattr(targets, "load_target", lambda model: (probed.append(1), load(model))[-1])
    model = build("llama")
    ours = custom_generate()
    expected = written(model, one())
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(written, model, one(), custom_generate=ours) for _ in range(4)]
        assert [call.result() for call in calls] == [expected] * 4
    generate(model, one(), custom_generate=custom_generate("plain"))
    assert len(probed) == 1
    model.double()
    generate(model, one(), custom_generate=ours)
    assert len(probed) == 2, "a converted model is another one"
    gone = weakref.ref(model)
    del model, calls
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("draft", [False, True])
def test_a_model_with_more_tokens_is_another_one(draft: bool) -> None:
    model, small = build("llama"), build("llama") if draft else None
    ours = custom_generate(draft_model=small)
    generate(model, one(), custom_generate=ours)
    torch.manual_seed(0)  # for the new rows
    for each in filter(None, (model, small)):
        each.resize_token_embeddings(VOCAB + 8, mean_resizing=False)
        with torch.no_grad():
            each.get_output_embeddings().weight[VOCAB + 3] *= 40  # type: ignore[operator]
    new = {"input_ids": torch.tensor([[5, VOCAB + 7, 6, VOCAB + 1]])}
    text = written(model, new)
    assert VOCAB + 3 in text[0]
    assert written(model, new, custom_generate=ours) == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(model, new, do_sample=True, custom_generate=ours)


def test_a_named_draft_model_is_loaded_once_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pocket()
    load, loaded = loading.open_model, list[str]()
    monkeypatch.setattr(loading, "open_model", lambda name, **how: (loaded.append(name), load(name, **how))[-1])
    ours = custom_generate(draft_model="pocket-draft+ballast:3M")  # which no other test keeps
    for each in (model, copy.deepcopy(model)):
        generate(each, {"input_ids": torch.tensor([[5, 6]])}, custom_generate=ours)
    assert loaded == ["pocket-draft+ballast:3M"]


def test_training_flags_come_back_when_the_last_of_several_is_done() -> None:
    model = build("llama").train()
    with targets.borrowed(model), targets.borrowed(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())
    first, second = targets.borrowed(model), targets.borrowed(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not model.training, "the other one is still writing"
    second.__exit__(None, None, None)
    assert model.training


@pytest.mark.parametrize("draft", [False, True])
def test_inference_mode_does_not_last(draft: bool) -> None:
    model = build("llama")
    ours = custom_generate(draft_model=build("llama") if draft else None)
    expected = written(model, one())
    with torch.inference_mode():
        assert written(model, one(), custom_generate=ours) == expected
    assert written(model, one(), custom_generate=ours) == expected


def test_a_setting_that_did_nothing_would_be_seen() -> None:
    """Each of the settings above changes the text of the batch, but for those that must not."""
    ends = ends_at_different_places(llama(), batch())
    without = generate(llama(), batch(), eos_token_id=ends, pad_token_id=0).tolist()
    idle = {
        name
        for name, settings in SETTINGS.items()
        if generate(llama(), batch(), eos_token_id=ends, pad_token_id=0, **settings).tolist() == without
    }
    assert idle <= {"forced_eos_token_id", "remove_invalid_values", "use_cache"}


def test_a_drafter_is_fitted_again_to_a_model_that_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    monkeypatch.setattr(Lookup, "fit", lambda _, target, vocabulary=None: fitted.append(target.vocab_size))
    model, ours = build("llama"), custom_generate("lookup")
    for size in (VOCAB, VOCAB, VOCAB + 8):
        model.resize_token_embeddings(size, mean_resizing=False)
        generate(model, one(), custom_generate=ours)
    assert fitted == [VOCAB, VOCAB + 8]
