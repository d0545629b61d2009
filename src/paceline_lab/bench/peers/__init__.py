"""Other libraries on the same weights and prompts, by name, one file each. A peer's file, and with it its library, is
imported when the peer is asked for."""

from __future__ import annotations

import difflib
from importlib import import_module
from types import ModuleType

from paceline.errors import InputError
from paceline.law import Sampling
from paceline_lab.bench.peers.weights import PeerWeights, Terms, TextReader
from paceline_lab.bench.run.contestant import Missing, TextContestant

PEERS = {
    "transformers": "transformers' generate, a token per forward",
    "transformers-lookup": "generate with prompt_lookup_num_tokens; ngram=N is the longest (default: its own, 2)",
    "transformers-assisted": "generate with assistant_model: a draft model with the target's tokenizer",
    "transformers-uag": "generate with an assistant of another tokenizer; draft=NAME (default: pocket-foreign)",
    "mlx-lm": "mlx-lm's generate_step on the target's own folder (mlx:FOLDER), or on an exported one",
    "mlx-lm-assisted": "mlx-lm with draft_model, likewise",
    "llama-cpp": "llama.cpp by llama-cpp-python, on a GGUF file of the same weights; type=Q8_0 or Q4_0 rounds them",
    "llama-cpp-lookup": "llama.cpp with prompt lookup; also ngram=N, tokens=N",
    "llama-cpp-assisted": "llama.cpp with a draft model of the target's tokenizer; also p_min=P, tokens=N",
    "openvino": "OpenVINO GenAI on a graph of the same weights; type=int8 or int4 rounds them",
    "openvino-lookup": "OpenVINO GenAI with its prompt lookup; also ngram=N, tokens=N",
    "openvino-assisted": "OpenVINO GenAI with a draft model of the target's tokenizer; also tokens=N",
    "vllm": "vLLM in a separate environment, whose Python PACELINE_VLLM or python=FILE names",
    "vllm-ngram": "vLLM with its prompt n-grams; also tokens=N, and ngram=N for the longest (default: its own, 5)",
    "vllm-suffix": "vLLM with its suffix decoding, without the texts of earlier requests; also tokens=N",
    "vllm-paceline": "vLLM with our drafts; also method=NAME (hybrid) and tokens=N",
}
"""Name -> one line."""
OPTIONS = {
    "transformers-lookup": ("ngram",),
    "transformers-uag": ("draft",),
    "llama-cpp": ("type",),
    "llama-cpp-lookup": ("type", "tokens", "ngram"),
    "llama-cpp-assisted": ("type", "tokens", "p_min"),
    "openvino": ("type",),
    "openvino-lookup": ("type", "tokens", "ngram"),
    "openvino-assisted": ("type", "tokens"),
    "vllm": ("python",),
    "vllm-ngram": ("python", "tokens", "ngram"),
    "vllm-suffix": ("python", "tokens"),
    "vllm-paceline": ("python", "tokens", "method"),
}
ALONE = "other libraries take part one text at a time; leave out --batch and --qps"
HOMES = {w: w for w in ("transformers", "openvino", "vllm")} | {"mlx": "mlx_lm", "llama": "llama_cpp"}
"""First word of a name -> the file that makes it."""
READERS = ("llama-cpp", "openvino")
"""Those whose forwards are timed by themselves."""


def check_peer(spec: str) -> tuple[str, dict[str, str]]:
    """A spec taken apart, ``name`` or ``name:key=value,key=value``. ValueError where there is none such."""
    name, colon, rest = spec.strip().partition(":")
    if name not in PEERS:
        near = difflib.get_close_matches(name, PEERS, n=1, cutoff=0.65)
        hint = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise InputError(f"unknown peer {name!r}; {hint} {', '.join(PEERS)}")
    options: dict[str, str] = {}
    for pair in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            raise InputError(f"cannot read {pair!r} in peer {spec!r}; write name:key=value")
        if key not in (known := OPTIONS.get(name, ())):
            raise InputError(f"peer {name!r} has no option {key!r}; it takes {', '.join(known) or 'none'}")
        options[key] = value
    return name, options


def why_missing(spec: str) -> str:
    """Why a peer cannot take part on this machine with any model; empty where nothing is known to be lacking."""
    name, options = check_peer(spec)
    try:
        _home(name).check_installed(name, options)
    except Missing as why:
        return str(why)
    return ""


def _home(name: str) -> ModuleType:
    return import_module(f"paceline_lab.bench.peers.{HOMES[name.partition('-')[0]]}")


def make_peer(
    spec: str, weights: PeerWeights, *, draft_tokens: int | None = None, sampling: Sampling | None = None
) -> TextContestant:
    """The peer a spec names, ready to write; peers of one run share ``weights``.

    ``draft_tokens`` is how long its drafts are; None for as long as our method's of the same kind. ValueError where
    there is no such peer, `Missing` where it cannot take part here.
    """
    name, options = check_peer(spec)
    terms = Terms(
        name=spec.strip(),
        options=options,
        weights=weights,
        draft_tokens=draft_tokens,
        sampling=sampling or Sampling(),
    )
    peer: TextContestant = _home(name).make(name, terms)
    return peer


def open_reader(spec: str, weights: PeerWeights, context: int) -> TextReader:
    """The target in the library of a peer, with room for a context. `InputError` for a peer that has none, `Missing`
    where it cannot be opened here."""
    name, options = check_peer(spec)
    if name not in READERS:
        raise InputError(f"forwards are timed beside the peers {' and '.join(READERS)} only, not beside {name!r}")
    reader: TextReader = _home(name).opened(options, weights, context)
    return reader
