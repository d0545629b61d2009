"""vLLM, in a separate environment, since it needs other versions of our libraries: a process there writes the texts.

The environment is named by its Python, by the option ``python`` or by ``PACELINE_VLLM``.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch

import paceline
from paceline.drafters.base import Drafter
from paceline.drafters.lookup import Lookup
from paceline.integrations.vllm.settings import MOST, VLLMSettings, leaves
from paceline_lab.bench.peers.weights import Terms
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant, Written, room_for

PYTHON = "PACELINE_VLLM"
PACKAGE = Path(paceline.__file__).parent
"""The package that drafts in vLLM, for an environment that does not have it."""
ENGINE = Path(__file__).with_name("vllm_engine.py")
FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
"""The code by whose exit code a Python says whether it has vLLM; importing it would take seconds."""
CONTEXT = 4096
"""The longest context: vLLM allocates the rows of a whole one at the start."""
DTYPES = "float32", "bfloat16", "float16"
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
KEPT = "kept from prompt to prompt"
PATIENCE = 1800.0
"""Seconds for a start, or for a text."""
ENDING = 20.0
"""Seconds that a process has for its end once nothing more is asked of it."""


class Engine:
    """A running vLLM. To be closed."""

    def __init__(self, python: str, engine: Mapping[str, Any], threads: int | None = None) -> None:
        """``engine`` is what vLLM's ``LLM`` is made with. `Missing` where it does not start."""
        leaving = ExitStack()
        place = Path(leaving.enter_context(tempfile.TemporaryDirectory()))
        (place / PACKAGE.name).symlink_to(PACKAGE)  # the folders beside it are for another environment
        room = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        environment = {**os.environ, "PYTHONPATH": str(place), "VLLM_CPU_KVCACHE_SPACE": room}
        if threads is not None:
            environment |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self._errors = leaving.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (closed with the others)
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
            leaving.close()
            raise Missing(f"vLLM's Python {python} does not start: {error.strerror}") from None
        self.close = weakref.finalize(self, _end, self._process, leaving)
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process.stdout, self._answers.put), daemon=True).start()
        try:
            self.facts = self._asked({"engine": engine, "environment": ENVIRONMENT})
        except RuntimeError as error:
            raise Missing(str(error)) from None

    def write(self, prompts: Sequence[Sequence[int] | str], **sampling: Any) -> dict[str, Any]:
        """Texts, and what vLLM says of them; see `paceline_lab.bench.peers.vllm_engine`. ``sampling`` goes to vLLM."""
        return self._asked({"prompts": list(prompts), "sampling": sampling})

    def _asked(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None, "it has pipes"
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=PATIENCE)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            _kill(self._process)
            raise RuntimeError(f"vLLM has said nothing for {PATIENCE:g} s") from None
        except BaseException:  # Ctrl-C: what it answers later would be taken for the next answer
            _kill(self._process)
            raise
        if not line:
            _kill(self._process)
            raise RuntimeError(f"vLLM ended: {_last_words(self._errors)}")
        found: dict[str, Any] = json.loads(line)
        return found


def _read(said: IO[str], put: Callable[[str], None]) -> None:
    """Lines as they come, and an empty one at the end."""
    with said:
        for line in said:
            put(line)
    put("")


def _end(process: subprocess.Popen[str], leaving: ExitStack) -> None:
    """A function, since a method would keep the engine alive."""
    assert process.stdin is not None, "it has pipes"
    with leaving:
        try:
            process.stdin.close()
            process.wait(ENDING)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """The process and what it began."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
        self.remembers = facts.get("learning") == KEPT
        target = terms.weights.target
        self.name, self._context = terms.name, min(target.context_length or CONTEXT, CONTEXT)
        engine = {"model": str(terms.weights.folder), "dtype": target.dtype, "seed": 0, "max_num_seqs": 1}
        engine |= {"max_model_len": self._context, "enforce_eager": True, "disable_log_stats": False}
        engine |= {"enable_prefix_caching": False, **speculative}
        self._engine = Engine(python, engine, torch.get_num_threads())
        self._facts = {
            "library": "vllm",
            "model": target.name,
            "dtype": target.dtype,
            "attention": "vllm",
            **self._engine.facts,
            "compiled": False,
            "preloaded": os.environ.get("LD_PRELOAD", ""),
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
        how: dict[str, Any] = {"temperature": sampling.temperature, **sampling.elsewhere("vllm")}
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


def check_installed(name: str, options: Mapping[str, str]) -> None:
    """`Missing` where no Python with vLLM is named."""
    python = _python(name, options)
    try:
        lacks = subprocess.run([python, "-P", "-c", FIND], capture_output=True, timeout=ENDING, check=False).returncode
    except OSError as error:
        raise Missing(f"vLLM's Python {python} does not start: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        lacks = 0  # missing packages will be reported when it starts
    if lacks:
        raise Missing(f"vLLM is not installed in the environment of {python}; 'pip install vllm' there")


def _python(name: str, options: Mapping[str, str]) -> str:
    python = options.get("python") or os.environ.get(PYTHON)
    if not python:
        raise Missing(f"vLLM has a separate environment; name its Python: {name}:python=FILE, or {PYTHON}=FILE")
    return python


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    speculative, facts = _speculative(name, terms)
    python = _python(name, terms.options)
    sampling, dtype = terms.sampling, terms.weights.target.dtype
    if sampling.lacking("vllm"):
        raise Missing("vLLM cuts by min-p before top-k, and penalises otherwise: another law")
    if dtype not in DTYPES:
        raise Missing(f"vLLM computes in {', '.join(DTYPES)}, not in {dtype}")
    if (device := terms.weights.target.device) != "cpu":
        raise Missing(f"vLLM takes a whole device for itself, and {device} has the target on it; choose --device cpu")
    if speculative and not sampling.greedy:
        raise Missing("vLLM 0.33 reads unset memory where it samples with drafts on a CPU; choose --temperature 0")
    return VLLM(terms, python, speculative, facts)


def _speculative(name: str, terms: Terms) -> tuple[dict[str, Any], dict[str, Any]]:
    """The drafter, as vLLM's engine takes it and in words."""
    count = terms.whole("tokens", terms.draft_tokens or Lookup.nodes, MOST)
    config: dict[str, Any] = {"method": name.removeprefix("vllm-"), "num_speculative_tokens": count}
    if name == "vllm-ngram":
        ngram = terms.whole("ngram", None, MOST)
        config |= {} if ngram is None else {"prompt_lookup_max": ngram, "prompt_lookup_min": 1}
        return {"speculative_config": config}, {"draft_tokens": count, "max_ngram": ngram or "its own default"}
    if name == "vllm-suffix":  # by default it keeps what earlier requests wrote
        config["suffix_decoding_max_cached_requests"] = 0
        return {"speculative_config": config}, {"draft_tokens": count}
    if name == "vllm-paceline":
        settings = VLLMSettings(method=terms.options.get("method", "hybrid"))
        learns = any(type(part).reset is not Drafter.reset for part in leaves(settings.drafter()))
        both = {"speculative_config": settings.speculative(count), "additional_config": settings.additional()}
        return both, {"draft_tokens": count, "method": settings.method, "learning": KEPT if learns else None}
    assert name == "vllm", f"no peer {name}"
    return {}, {}
