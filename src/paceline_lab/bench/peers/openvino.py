"""OpenVINO GenAI, plain, with prompt lookup and with a draft model, on a graph of the same weights.

Its pipeline reads and returns ids. Float32 is computed and cached as such; with weights in integers the types of
activations and of the cache are left to OpenVINO.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.drafters.lookup import Lookup
from paceline.drafters.networks.assistant.drafter import LEVELS
from paceline.errors import InputError
from paceline_lab.bench.peers.openvino_graph import FILE, KINDS, write_graph
from paceline_lab.bench.peers.weights import PeerWeights, Terms, TextReader
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant, Written, room_for

NGRAM = 3
"""The longest n-gram that is looked up, as in its examples, since it has no default."""
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class OpenVINO(TextContestant):
    """A text of its pipeline, a token per forward or with drafts; ``drafting`` are settings of each text."""

    def __init__(self, terms: Terms, pipeline: Any, kind: str, drafting: dict[str, int], facts: dict[str, Any]) -> None:
        import openvino_genai  # type: ignore[import-not-found,unused-ignore]

        self.name = terms.name
        self._genai: Any = openvino_genai
        self._pipeline, self._drafting = pipeline, drafting
        self._context = terms.weights.target.context_length
        self._facts = {
            "library": "openvino-genai",
            "version": openvino_genai.__version__,
            "model": terms.weights.target.name,
            "dtype": kind,
            "attention": "openvino, over pages",
            "cache": "float32" if kind == "float32" else "as OpenVINO chooses",
            "device": "cpu",
            "threads": torch.get_num_threads(),
            "draft_model": None,
            "draft_tokens": None,
            **facts,
        }

    def facts(self) -> dict[str, Any]:
        return self._facts

    def write(self, job: Job, clock: Clock) -> Written:
        import openvino  # type: ignore[import-not-found,unused-ignore]

        started, room = clock(), room_for(job, self._context)
        if room <= 0:
            return Written.of(job, [], [], room, 0)
        watch = watch_class()(clock, started)
        found = self._pipeline.generate(openvino.Tensor(job.prompt[None]), self._settings(job, room), watch)
        return Written.of(job, list(found.tokens[0]), watch.deliveries, room, len(watch.deliveries))

    def _settings(self, job: Job, room: int) -> Any:
        settings: Any = self._genai.GenerationConfig()
        asked: dict[str, Any] = {"max_new_tokens": room, "ignore_eos": not job.eos, **self._drafting}
        asked |= {"eos_token_id": min(job.eos, default=0), "stop_token_ids": set(job.eos or {0})}
        sampling = job.sampling
        if not sampling.greedy:
            asked |= {"do_sample": True, "temperature": sampling.temperature, "rng_seed": sampling.seed % 2**32}
            asked |= sampling.elsewhere("openvino")
        for setting, value in asked.items():
            setattr(settings, setting, value)
        return settings

    def close(self) -> None:
        self._pipeline = None


@cache
def watch_class() -> Any:
    """A streamer that takes note of each delivery; made here, since its base is in the library."""
    import openvino_genai

    class Watch(openvino_genai.StreamerBase):  # type: ignore[misc,unused-ignore]
        def __init__(self, clock: Clock, started: float) -> None:
            super().__init__()
            self.deliveries: list[tuple[int, float]] = []
            self._clock, self._started, self._count = clock, started, 0

        def write(self, tokens: int | Sequence[int]) -> Any:
            self._count += 1 if isinstance(tokens, int) else len(tokens)
            self.deliveries.append((self._count, self._clock() - self._started))
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """There is nothing left to do."""

    return Watch


class Paged(TextReader):
    """The model that its pipelines make of the graph, with attention over pages, driven by ourselves."""

    widest = 512

    def __init__(self, folder: Path, kind: str, context: int) -> None:
        import openvino
        from openvino._offline_transformations import (  # type: ignore[import-not-found,unused-ignore]
            paged_attention_transformation,
        )

        self._openvino: Any = openvino
        model = openvino.Core().read_model(folder / FILE)
        paged_attention_transformation(model)
        compiled = openvino.compile_model(model, "CPU", properties(kind))
        self._request: Any = compiled.create_infer_request()
        self._page: int = compiled.input("value_cache.0").partial_shape[2].get_length()
        for place in compiled.inputs:
            if "_cache." in place.any_name:
                sizes = [size.get_length() for size in list(place.partial_shape)[1:]]
                shape = [-(-context // self._page), *sizes]
                self._request.set_tensor(place, openvino.Tensor(place.element_type, openvino.Shape(shape)))
        self.text: list[int] = []

    def read(self, tokens: Sequence[int], scored: int = 1) -> None:
        start, end = len(self.text), len(self.text) + len(tokens)
        pages = -(-end // self._page)
        long, short = partial(np.array, dtype=np.int64), partial(np.array, dtype=np.int32)
        inputs = {"input_ids": long(tokens), "position_ids": long(range(start, end)), "past_lens": short([start])}
        inputs |= {"subsequence_begins": short([0, len(tokens)]), "max_context_len": short(end)}
        inputs |= {"block_indices": short(range(pages)), "block_indices_begins": short([0, pages])}
        for name, values in inputs.items():
            self._request.set_tensor(name, self._openvino.Tensor(values))
        self._request.infer()
        self.text.extend(tokens)

    def rewind(self, length: int) -> None:
        del self.text[length:]

    def logits(self, row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        found: np.ndarray[Any, np.dtype[np.float32]] = self._request.get_tensor("logits").data[row, 0]
        return found

    def close(self) -> None:
        self._request = None


def properties(kind: str) -> dict[str, Any]:
    """The configuration of the processor's plugin."""
    return {"INFERENCE_NUM_THREADS": torch.get_num_threads()} | (EXACT if kind == "float32" else {})


def check_installed(name: str, options: Mapping[str, str]) -> None:
    """`Missing` where the library is not there."""
    try:
        import openvino_genai  # noqa: F401
    except ImportError:
        raise Missing("openvino-genai is not installed; 'pip install openvino-genai'") from None


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    check_installed(name, terms.options)
    sampling, kind = terms.sampling, _kind(terms.options, terms.weights.target.dtype)
    if sampling.lacking("openvino"):
        raise Missing("OpenVINO cuts by min-p before top-p, and penalises otherwise: another law")
    opened, drafting, facts = _drafting(name, terms, kind)
    pipeline = _pipeline(_folder("target", terms.weights, kind), kind, **opened)
    return OpenVINO(terms, pipeline, kind, drafting, facts)


def _drafting(name: str, terms: Terms, kind: str) -> tuple[dict[str, Any], dict[str, int], dict[str, Any]]:
    """Where drafts come from: what its pipeline is opened with, what each text asks for, and facts for readers."""
    if name == "openvino-lookup":
        count, ngram = terms.whole("tokens", terms.draft_tokens or Lookup.nodes), terms.whole("ngram", NGRAM)
        asked = {"num_assistant_tokens": count, "max_ngram_size": ngram}
        return {"prompt_lookup": True}, asked, {"draft_tokens": count, "max_ngram": ngram}
    if name == "openvino-assisted":
        if not terms.sampling.greedy:
            raise Missing(
                "at a temperature above 0 OpenVINO 2026.4 compares a draft's probability with that of another token, "
                "so its text follows another distribution; measure it at temperature 0"
            )
        count, draft = terms.whole("tokens", terms.draft_tokens or LEVELS), terms.weights.same_tokens().target.name
        facts = {"draft_model": draft, "draft_tokens": count}
        return _draft_model(terms.weights, kind), {"num_assistant_tokens": count}, facts
    assert name == "openvino", f"no peer {name}"
    return {}, {}, {}


def _draft_model(weights: PeerWeights, kind: str) -> dict[str, Any]:
    """And the tokenizer, for its pipeline compares what those of both models make of a sentence."""
    import openvino
    import openvino_genai
    import openvino_tokenizers  # type: ignore[import-not-found,unused-ignore]

    if weights.vocabulary is None:
        raise Missing(f"{weights.target.name} came without its tokenizer, which OpenVINO asks of both models")
    folder = _folder("draft", weights, kind)
    if not (file := folder / "openvino_tokenizer.xml").exists():
        openvino.save_model(openvino_tokenizers.convert_tokenizer(weights.vocabulary.tokenizer), file)
    return {"tokenizer": folder, "draft_model": openvino_genai.draft_model(folder, "CPU", **properties(kind))}


def _pipeline(folder: Path, kind: str, tokenizer: Path | None = None, **how: Any) -> Any:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = sys.maxsize  # its default for one text; so is keeping prompts for the next one
    how |= {"scheduler_config": scheduler, **properties(kind)}
    return openvino_genai.LLMPipeline(folder, openvino_genai.Tokenizer(tokenizer or folder), "CPU", **how)


def opened(options: dict[str, str], weights: PeerWeights, context: int) -> TextReader:
    """The target in OpenVINO by itself, as the options of a peer say. `Missing` where it cannot be."""
    check_installed("openvino", options)
    kind = _kind(options, weights.target.dtype)
    return Paged(_folder("target", weights, kind), kind, context)


def _folder(which: str, weights: PeerWeights, kind: str) -> Path:
    return weights.converted(f"{which}-{kind}-openvino", partial(write_graph, kind))


def _kind(options: dict[str, str], dtype: str) -> str:
    """The type of the weights: that of the target, if no option says otherwise."""
    kind = options.get("type", dtype)
    if "type" in options and kind not in KINDS:
        raise InputError(f"option 'type' of openvino is one of {', '.join(KINDS)}, not {kind!r}")
    if kind not in KINDS:
        raise Missing(f"OpenVINO's weights are {', '.join(KINDS)} here, not {kind}; write type=int8 or type=float32")
    return kind
