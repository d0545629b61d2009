"""vLLM, in an environment of its own, since it wants other versions of what we want: a process there writes the texts.

The environment is named by its Python, by the option ``python`` or by ``PACELINE_VLLM``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

import torch

from paceline.bench.peers.weights import Terms
from paceline.bench.race import Clock
from paceline.bench.run.contestant import Job, Missing, TextContestant, Written, room_for
from paceline.drafters.lookup import Lookup
from paceline.errors import InputError
from paceline.integrations.vllm.settings import MOST, Settings

PYTHON = "PACELINE_VLLM"
SOURCE = Path(__file__).parents[3]
"""Where this package lies, for an environment that does not have it."""
ENGINE = Path(__file__).with_name("vllm_engine.py")
CONTEXT = 4096
"""The longest context: vLLM allocates the rows of a whole one at the start."""
DTYPES = "float32", "bfloat16", "float16"
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
T = TypeVar("T")
ENDING = 20.0
"""Seconds that a process has for its end once nothing more is asked of it."""


class Engine:
    """A running vLLM. To be closed."""

    def __init__(self, python: str, engine: Mapping[str, Any], threads: int | None = None) -> None:
        """``engine`` is what vLLM's ``LLM`` is made with. `Missing` where it does not start."""
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
        room = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        environment = {**os.environ, "PYTHONPATH": path, "VLLM_CPU_KVCACHE_SPACE": room}
        if threads is not None:
            environment |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed together with the process)
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(ENGINE)],  # its folder has modules with names of other libraries
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                text=True,
                encoding="utf8",
                process_group=0,
            )
        except OSError as error:
            self._errors.close()
            raise Missing(f"vLLM's Python {python} does not start: {error.strerror}") from None
        self.close = weakref.finalize(self, _ended, self._process, self._errors)
        try:
            self.facts = self._asked({"engine": engine, "environment": ENVIRONMENT})
        except RuntimeError as error:
            raise Missing(str(error)) from None

    def write(self, prompts: Sequence[Sequence[int] | str], **sampling: Any) -> dict[str, Any]:
        """Texts, and what vLLM says of them; see `paceline.bench.peers.vllm_engine`. ``sampling`` goes to vLLM."""
        return self._asked({"prompts": list(prompts), "sampling": sampling})

    def _asked(self, what: Mapping[str, Any]) -> dict[str, Any]:
        given, said = self._process.stdin, self._process.stdout
        assert given is not None and said is not None, "it has pipes"
        try:
            given.write(json.dumps(what) + "\n")
            given.flush()
            line = said.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:  # Ctrl-C: what it answers later would be taken for the next answer
            self.close()
            raise
        if not line:
            self._process.wait()
            raise RuntimeError(f"vLLM ended: {_last_words(self._errors)}")
        found: dict[str, Any] = json.loads(line)
        return found


def _ended(process: subprocess.Popen[str], errors: IO[bytes]) -> None:
    """A function, since a method would keep the engine alive."""
    assert process.stdin is not None and process.stdout is not None, "it has pipes"
    try:
        process.stdin.close()
        process.wait(ENDING)
    except (OSError, subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
    process.stdout.close()
    errors.close()


def _last_words(errors: IO[bytes]) -> str:
    """The error that a process ended with."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*: ", line)]
    return (raised or lines)[-1].strip()


class VLLM(TextContestant):
    """Texts of vLLM, one at a time."""

    def __init__(self, terms: Terms, python: str, speculative: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """``speculative`` is what its engine gets beside the model."""
        target = terms.weights.target
        self.name, self._context = terms.name, min(target.context_length or CONTEXT, CONTEXT)
        engine = {"model": str(terms.weights.folder), "dtype": target.dtype_name, "seed": 0, "max_num_seqs": 1}
        engine |= {"max_model_len": self._context, "enforce_eager": True, "disable_log_stats": False}
        engine |= {"enable_prefix_caching": False, **speculative}
        self._engine = Engine(python, engine, torch.get_num_threads())
        self._facts = {
            "library": "vllm",
            "model": target.name,
            "dtype": target.dtype_name,
            "attention": "vllm",
            **self._engine.facts,
            "context": self._context,
            "draft_model": None,
            "draft_tokens": None,
            **facts,
        }

    def facts(self) -> dict[str, Any]:
        return self._facts

    def write(self, job: Job, clock: Clock) -> Written:
        room, started = room_for(job, self._context), clock()
        if room <= 0:
            return Written.of(job, [], [], room, 0)
        sampling = job.sampling
        how: dict[str, Any] = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        how |= {"seed": sampling.seed % 2**32, "max_tokens": room, "stop_token_ids": sorted(job.eos)}
        found = self._engine.write([job.prompt.tolist()], **how)
        beside = max(0.0, clock() - started - found["seconds"])  # the way there and back
        (tokens,), ((*deliveries,),), (metrics,) = found["texts"], found["deliveries"], found["requests"]
        when = [(int(count), seconds + beside) for count, seconds in deliveries]
        _, drafted, accepted = found["counts"].values()
        drafts = {} if self._facts["draft_tokens"] is None else {"drafted": drafted, "accepted": accepted}
        written = Written.of(job, tokens, when, room, found["steps"])
        return replace(written, metrics={**metrics, **found["counts"]}, **drafts)

    def close(self) -> None:
        self._engine.close()


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    speculative, facts = _speculative(name, terms)
    python = terms.options.get("python") or os.environ.get(PYTHON)
    if not python:
        raise Missing(f"vLLM has an environment of its own; name its Python: {name}:python=FILE, or {PYTHON}=FILE")
    sampling, dtype = terms.sampling, terms.weights.target.dtype_name
    if sampling.adjusts or sampling.min_p > 0:
        raise Missing("vLLM cuts by min-p before top-k, and penalises otherwise: another law")
    if dtype not in DTYPES:
        raise Missing(f"vLLM computes in {', '.join(DTYPES)}, not in {dtype}")
    if (device := terms.weights.target.device.type) != "cpu":
        raise Missing(f"vLLM takes a whole device for itself, and {device} has the target on it")
    if speculative and not sampling.greedy:
        raise Missing("vLLM 0.33 reads unset memory where it samples with drafts on a CPU; choose --temperature 0")
    return VLLM(terms, python, speculative, facts)


def _speculative(name: str, terms: Terms) -> tuple[dict[str, Any], dict[str, Any]]:
    """What drafts, as vLLM's engine takes it and as readers do."""
    count = _whole(terms, "tokens", terms.draft_tokens or Lookup.nodes)
    config: dict[str, Any] = {"method": name.removeprefix("vllm-"), "num_speculative_tokens": count}
    if name == "vllm-ngram":
        ngram = _whole(terms, "ngram", None)
        config |= {} if ngram is None else {"prompt_lookup_max": ngram, "prompt_lookup_min": 1}
        return {"speculative_config": config}, {"draft_tokens": count, "max_ngram": ngram or "its own default"}
    if name == "vllm-suffix":  # by default it keeps what earlier requests wrote
        config["suffix_decoding_max_cached_requests"] = 0
        return {"speculative_config": config}, {"draft_tokens": count}
    if name == "vllm-paceline":
        settings = Settings(method=terms.options.get("method", "hybrid"))
        settings.drafter()
        both = {"speculative_config": settings.speculative(count), "additional_config": settings.additional()}
        return both, {"draft_tokens": count, "method": settings.method}
    assert name == "vllm", f"no peer {name}"
    return {}, {}


def _whole(terms: Terms, option: str, default: T) -> int | T:
    given = terms.options.get(option)
    if given is None:
        return default
    if not (given.isdecimal() and 0 < int(given) <= MOST):
        raise InputError(f"option {option!r} of vllm is a whole number from 1 to {MOST}, not {given!r}")
    return int(given)
