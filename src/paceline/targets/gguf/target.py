"""A model that llama.cpp computes, as a target: logits of the rows of drafts, in the host's memory as numpy's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paceline.errors import DefectError, InputError
from paceline.targets.base import Done, Pending, Reach, Request, Target
from paceline.targets.forked import note_use
from paceline.targets.gguf.cells import FORWARD, Cells, Marks, RowsRead, Sequences
from paceline.targets.gguf.embedding import TokenEmbeddings
from paceline.targets.gguf.file import GgufFile
from paceline.targets.gguf.kinds import BUNDLED
from paceline.targets.gguf.library import Owned, library
from paceline.targets.gguf.rows import GgufRows
from paceline.targets.hf.generation import ModelSettings
from paceline.targets.memory import host_memory
from paceline.targets.pocket.names import bundled_name
from paceline.targets.scores import Scores, like

FLOATS = {"ALL_F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""llama.cpp's names of files in floats -> ours."""
WITHOUT_FLASH = 0
GUESSED = 1024
"""A bit of a file's type, where the file does not say it."""
TEXT = 128
"""Bytes of a value of metadata that is read, at most."""


class GgufTarget(Target):
    """Scores drafts on a model that llama.cpp has loaded. `open_gguf` loads it and probes which drafts it can score.

    Of its states it shows those that the output head reads. The others and early exits stay inside llama.cpp, so
    drafters that read them are refused.
    """

    prefill_chunk = FORWARD
    unordered = rounded = True

    def __init__(self, model: Any, file: GgufFile, name: str, *, threads: int, device: str = "cpu") -> None:
        """``model`` is llama.cpp's, and freed with this object and its rows."""
        note_use(pool=threads > 1)
        self.calls: Any = library()
        self.model, self.name = model, name
        self._threads, self._device = threads, device
        owned = Owned(model, self.calls.llama_model_free)
        self.vocab: Any = self.calls.llama_model_get_vocab(model)
        self.vocab_size = int(self.calls.llama_vocab_n_tokens(self.vocab))
        self.context_length = int(self.calls.llama_model_n_ctx_train(model)) or None
        self.bundled = bundled_name(self.metadata(BUNDLED))
        self._dtype = self._type_of_weights()
        self.eos = self._ends()
        self.generation = ModelSettings(self.eos)
        self._fingerprint, self._file = file.fingerprint(), file
        self._window = int(self.calls.llama_model_n_swa(model))
        self.limits = Reach()
        self.cells = Cells(owned, self._settings, self.vocab_size)

    def _settings(self) -> Any:
        """Parameters of a context. Rows are in floats of the weights' width: a narrower type would round them."""
        calls = self.calls
        terms: Any = calls.llama_context_default_params()
        wide = calls.GGML_TYPE_F32 if self._dtype == "float32" else calls.GGML_TYPE_F16
        terms.type_k = terms.type_v = wide
        if self._dtype == "float32" and hasattr(terms, "flash_attn_type"):
            terms.flash_attn_type = WITHOUT_FLASH  # which is off by 3e-3 of a row's deviation, the other by 5e-6
        terms.n_threads = terms.n_threads_batch = self._threads
        terms.swa_full = True  # a rewind needs the rows before the window
        terms.offload_kqv = terms.op_offload = self._device != "cpu"
        if hasattr(terms, "n_outputs_max_per_seq"):
            terms.n_outputs_max_per_seq = 0  # as many as there are rows
        return terms

    def _type_of_weights(self) -> str:
        """The type of most weights, under llama.cpp's name where they are integers."""
        calls = self.calls
        if hasattr(calls, "llama_model_ftype"):
            number = int(calls.llama_model_ftype(self.model)) & ~GUESSED
        else:
            number = int(self.metadata("general.file_type") or 0)
        prefix = "LLAMA_FTYPE_"
        names = (name.removeprefix(prefix) for name in dir(calls) if name.startswith(prefix))
        found = (name.removeprefix("MOSTLY_") for name in names if getattr(calls, prefix + name) == number)
        name = next(found, f"type {number}")
        return FLOATS.get(name, name)

    def metadata(self, key: str) -> str | None:
        """A short value of the file's metadata; None where there is none."""
        buffer = ctypes.create_string_buffer(TEXT)
        length = self.calls.llama_model_meta_val_str(self.model, key.encode(), buffer, TEXT)
        return buffer.value.decode(errors="replace") if length >= 0 else None

    def _ends(self) -> frozenset[int]:
        """The tokens that end a text. A file without a tokenizer may still name one."""
        ends = self.calls.llama_vocab_is_eog
        if int(self.calls.llama_vocab_type(self.vocab)):
            return frozenset(token for token in range(self.vocab_size) if ends(self.vocab, token))
        named = self.metadata("tokenizer.ggml.eos_token_id")
        return frozenset([int(named)] if named and named.isdecimal() and int(named) < self.vocab_size else [])

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def device(self) -> str:
        return self._device

    @property
    def threads(self) -> int:
        return self._threads

    @property
    def parameters(self) -> int:
        """Values in all weights."""
        return int(self.calls.llama_model_n_params(self.model))

    @property
    def stored(self) -> int:
        """Bytes of its files."""
        return self._file.bytes

    def open(self, capacity: int = 0) -> GgufRows:
        note_use()
        return GgufRows(self.cells, self._window)

    def reach(self, position: int) -> Reach:
        return self.limits

    def submit(self, requests: Sequence[Request]) -> Pending:
        note_use()
        for request in requests:
            self._check(request)
        with self.cells.held():
            plans = [self._planned(request) for request in requests]
            together = [(request, plan) for request, plan in zip(requests, plans, strict=True) if plan is not None]
            try:
                found = iter(self._read_together(together))
                read = [
                    _walked(own) if plan is None else next(found) for own, plan in zip(requests, plans, strict=True)
                ]
            except DefectError:
                self._check_tokens(requests)
                raise
        return Done([self._scores(request, rows) for request, rows in zip(requests, read, strict=True)])

    def _scores(self, request: Request, read: RowsRead) -> Scores:
        hidden = {self.layers: read.states} if request.want.hidden else None
        return Scores.of(request, read.logits if len(read.logits) else None, hidden)

    def _check(self, request: Request) -> None:
        want = request.want
        if want.hidden and want.hidden != {self.layers}:
            raise self._has_none("states but those behind its last layer")
        if want.early_exit is not None:
            raise self._has_none("early exit")

    def _check_tokens(self, requests: Sequence[Request]) -> None:
        """Say which token llama.cpp does not know. Asked once it has refused a forward: asked before each, it would
        cost more than filling the batch."""
        for request in requests:
            strange = request.tokens[(request.tokens < 0) | (request.tokens >= self.vocab_size)]
            if len(strange):
                raise InputError(f"{self.name} has token ids below {self.vocab_size}, and the text has {strange[0]}")

    @staticmethod
    def _planned(request: Request) -> Sequences | None:
        rows = request.rows
        assert isinstance(rows, GgufRows), "llama.cpp scores the rows it opened"
        plan = rows.plan(request)
        rows.note(request.tokens, request.held)
        return plan

    def _read_together(self, planned: Sequence[tuple[Request, Sequences]]) -> list[RowsRead]:
        """Score the rows of requests in one forward."""
        if not planned:
            return []
        tokens, positions, sequences, scored, shown = [], list[int](), Sequences(), Marks(), Marks()
        for request, plan in planned:
            tokens.append(request.tokens)
            positions += request.positions.tolist()
            sequences += plan
            scored += _scored(request)
            shown += _shown(request)
        one = len(planned) == 1
        read = self.cells.read(tokens[0] if one else np.concatenate(tokens), positions, sequences, scored, shown)
        return [read] if one else _split(read, [request for request, _ in planned])

    @property
    def layers(self) -> int:
        return int(self.calls.llama_model_n_layer(self.model))

    def embed(self, tokens: Any) -> Any:
        if self._embeddings is None:
            raise self._has_none("input embeddings")
        return like(tokens, self._embeddings[np.asarray(tokens)])

    @cached_property
    def _embeddings(self) -> TokenEmbeddings | None:
        return TokenEmbeddings.of(self._file.parts)

    def row_bytes(self) -> int | None:
        return self.cells.row_bytes

    def free_memory(self) -> int | None:
        return host_memory() if self._device == "cpu" else None

    def fingerprint(self) -> str:
        return self._fingerprint


def _walked(request: Request) -> RowsRead:
    """The rows of a request with more branches than there are sequences."""
    rows = request.rows
    assert isinstance(rows, GgufRows), "llama.cpp scores the rows it opened"
    return rows.walk(request, _scored(request), _shown(request))


def _split(read: RowsRead, requests: Sequence[Request]) -> list[RowsRead]:
    """What was found, request by request."""
    logits, states = (
        np.split(found, np.cumsum([sum(marks(request)) for request in requests])[:-1])
        for found, marks in ((read.logits, _scored), (read.states, _shown))
    )
    return [RowsRead(*own) for own in zip(logits, states, strict=True)]


def _shown(request: Request) -> Marks:
    """Which fresh rows show their states."""
    return [bool(request.want.hidden)] * len(request.tokens)


def _scored(request: Request) -> Marks:
    """Which fresh rows have logits."""
    rows, count = request.scored, len(request.tokens)
    return [False] * rows.start + [True] * (count - rows.start)
