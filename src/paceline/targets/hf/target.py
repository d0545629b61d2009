"""Any transformers causal LM with attention layers as a target."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from paceline.errors import UnsupportedModel
from paceline.targets.base import Done, Pending, Reach, Request, Target
from paceline.targets.cache import CacheRows, persistent_tensors
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.forked import note_use
from paceline.targets.hf.compiled import compiling_pays
from paceline.targets.hf.generation import settings_of
from paceline.targets.hf.own import RECURRENT_LAYERS, Mode, OwnForward
from paceline.targets.hf.packed import identities, pack, packed_if_large, parameter_count
from paceline.targets.hf.path import ForwardJob, ForwardPath, Found, by_exit
from paceline.targets.hf.recurrent import families
from paceline.targets.hf.recurrent.rows import StatefulRows
from paceline.targets.hf.rope import RotatedRows, Switch, context_length, rotation_groups
from paceline.targets.hf.speed import packing_pays
from paceline.targets.hf.taps import Anatomy
from paceline.targets.hf.threads import one_thread
from paceline.targets.hf.variants import LlamaModules, join_layers, known_modules
from paceline.targets.identity import fingerprint_of
from paceline.targets.place import free_memory
from paceline.targets.scores import Scores
from paceline.targets.streams import LookAhead, StreamAdapter, Streams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.targets.hf.fixed.replay import FixedPath

KNOWN_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention", "moe", "mlp"}
STATEFUL_LAYERS = RECURRENT_LAYERS | {"hybrid", "hybrid_sliding"}
"""Types of layers that keep a state; the last two attend as well."""
SHARED = {
    *("vocab_size", "layer_types", "sliding_window", "attention_chunk_size", "keep_window_size", "rope_parameters"),
    *("max_position_embeddings", "original_max_position_embeddings", "final_logit_softcapping", "eos_token_id"),
}
"""Fields of a configuration that are read once for all layers."""


class RotatedStatefulRows(RotatedRows, StatefulRows):
    """Rows of a model that rotates by the largest position, and has layers that keep a state."""


class HFTarget(Target):
    """Scores drafts on a transformers model. Use `paceline.load`, which also probes which drafts the model can score.

    The model is put into eval mode; its weights, configuration and attention implementation stay as they were. `pack`
    is for models that have no other user. ``fixed_shapes`` chooses whether forwards of fixed shapes are recorded; by
    default they are for a model on a CUDA device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        name: str | None = None,
        mode: Mode = Mode.PACKED,
        fixed_shapes: bool | None = None,
    ) -> None:
        note_use()
        refuse_unknown(model.config, type(model))
        config: Any = model.config.get_text_config()
        model.train(False)
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.vocab_size = int(config.vocab_size)
        self.context_length = context_length(config)
        self.trusted: int | None = None
        """The length up to which our rows are the model's, where that is shorter than the model's own limit."""
        if (length := trusted_length(config)) is not None:
            self.trust(length)
        self.generation = settings_of(model, self.vocab_size)
        """The settings that the model brings along."""
        self.eos = self.generation.eos
        self.limits = Reach()
        self.note: str | None = None
        """A note for the user about how it was loaded."""
        self.switch = Switch.of(config)
        self._own = OwnForward(model, self.switch, mode)
        self.refused_modes: dict[Mode, str] = {}
        """Why the probe went on to another mode."""
        self.compiles = False
        """Whether forwards should be compiled. The probe has to find them right."""
        self.fixed = None if fixed_shapes is False or self._own.recurrent else self._fixed(fixed_shapes)
        if self._own.recurrent and fixed_shapes is not False and model.device.type == "cuda":
            self.note = "forwards are not recorded, for layers keep a state"
        self.paths: list[ForwardPath] = [self._own] if self.fixed is None else [self.fixed, self._own]
        self._one_at_a_time = threading.RLock() if self.fixed is None else self.fixed.slab.lock

    def _fixed(self, wanted: bool | None) -> FixedPath | None:
        from paceline.targets.hf.fixed.replay import FixedPath

        return FixedPath.of(self._own, wanted=wanted, switching=self.switch is not None)

    @property
    def own(self) -> OwnForward:
        """The model's own path."""
        return self._own

    @property
    def model(self) -> Any:
        """The model of transformers."""
        return self.own.model

    @contextmanager
    def using(self, *paths: ForwardPath) -> Iterator[None]:
        """Compute forwards by these paths only."""
        before, self.paths = self.paths, list(paths)
        try:
            yield
        finally:
            self.paths = before

    @property
    def mode(self) -> Mode:
        """How drafts reach the model's own forward."""
        return self._own.mode

    @property
    def anatomy(self) -> Anatomy:
        return self._own.anatomy

    @property
    def dtype(self) -> str:
        return str(self._own.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        return str(self._own.model.device)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @property
    def parameters(self) -> int:
        """Values in all weights, tied ones once."""
        return parameter_count(self._own.model)

    @property
    def recorded(self) -> bool:
        return self.fixed is not None

    @property
    def layers(self) -> int:
        if self.anatomy.layers is None:
            raise self._has_none("layers")
        return len(self.anatomy.layers)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        module: Any = self._own.model.get_input_embeddings()
        with persistent_tensors():
            return F.embedding(tokens, module.weight.detach())

    @property
    def embedding_rows(self) -> NDArray[Any] | None:
        return self.paths[0].embedding_rows

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        if self.anatomy.head is None:
            raise self._has_none("output head")
        with persistent_tensors():
            found = self.paths[0].unembedded(states)
            return self.anatomy.logits(states) if found is None else found

    @property
    def compiled(self) -> bool:
        return self.paths[0].compiled

    def beside(self) -> AbstractContextManager[None]:
        return one_thread() if self.compiled else nullcontext()

    def pack(self, *, compiled: bool = True) -> HFTarget:
        """Have forwards compiled where that is fastest, or else pack the weights for this machine's kernels where that
        helps. Packed weights cannot be changed afterwards."""
        model = self._own.model
        self.compiles = compiled and compiling_pays(model)
        if self.compiles:
            return self
        pays = packing_pays(model)
        joined = join_layers(model, packed_if_large if pays else lambda layer: layer)
        if (pays and pack(model)) or joined:
            self._own.anatomy = Anatomy(model)
            self._own.forget()
        return self

    def look(self) -> int:
        with self._one_at_a_time:
            return self._own.look()

    def forget(self) -> None:
        with self._one_at_a_time:
            self._own.forget()

    def open(self, capacity: int = 0) -> CacheRows:
        changes = self.look()
        rows = self.fixed.open(capacity) if self.fixed is not None else self._rows(capacity)
        rows.changes = changes
        return rows

    def _rows(self, capacity: int) -> CacheRows:
        if self.switch is None:
            return StatefulRows(capacity) if self._own.recurrent else CacheRows(capacity)
        return (RotatedStatefulRows if self._own.recurrent else RotatedRows)(capacity, self.switch)

    def release(self) -> None:
        if self.fixed is not None:
            self.fixed.slab.release()

    def trust(self, length: int) -> None:
        """End texts at this length, unless the model's own limit is shorter."""
        if self.context_length is None or length < self.context_length:
            self.context_length = self.trusted = length

    def reach(self, position: int) -> Reach:
        if self.switch is None:
            return self.limits
        return replace(self.limits, depth=self.switch.depth(position))

    def prefill_size(self, length: int) -> int:
        whole = self.switch is not None and length >= self.switch.position
        return length + 1 if whole else self.prefill_chunk  # the root goes with them

    def submit(self, requests: Sequence[Request]) -> Pending:
        for request in requests:
            self._reread(request)
        scores: dict[int, Scores] = {}
        for group in self._groups(requests):
            scores.update(zip(group, self.forward([requests[i] for i in group]), strict=True))
        return Done([scores[i] for i in range(len(requests))])

    def _groups(self, requests: Sequence[Request]) -> list[list[int]]:
        """Numbers of the requests that go into one forward together, which has one early exit at most."""
        return [part for group in self._alike(requests) for part in by_exit(requests, group)]

    def _alike(self, requests: Sequence[Request]) -> list[list[int]]:
        """Numbers of the requests that can be computed together."""
        if self.mode is not Mode.PACKED or self.limits.alone:
            return [[i] for i in range(len(requests))]
        if self.fixed is not None:
            return self.fixed.apart(requests)
        return [list(range(len(requests)))] if self.switch is None else rotation_groups(requests, self.switch)

    def _reread(self, request: Request) -> None:
        """Read the cached text again where the model's own generation would."""
        rows = request.rows
        if isinstance(rows, RotatedRows) and rows.must_reread(request):
            text = rows.tokens.copy()
            rows.rewind(0)
            self.forward([Request.of_prompt(rows, text)])
            rows.keep(range(len(text)))

    def forward(self, requests: Sequence[Request]) -> list[Scores]:
        """Score requests in one forward. One forward at a time: the model's attention implementation is switched."""
        note_use()
        with self._one_at_a_time, persistent_tensors():
            job = ForwardJob(requests)
            self.anatomy.check(job.want, self.name)
            found = self._run(job)
            job.check_heard()
            return found.split(job)

    def _run(self, job: ForwardJob) -> Found:
        """By the first path that takes it."""
        return next(path for path in self.paths if path.takes(job)).run(job)

    def unassisted(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, vocabulary]`` of a text from the model alone, for comparisons."""
        return self.own.unassisted(tokens)

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        if self.mode is not Mode.PACKED or self.switch is not None or (self.limits.alone and len(chains) > 1):
            return None
        note_use()
        with self._one_at_a_time, persistent_tensors():
            return self.paths[0].drafted(chains)

    def streamed(self, asked: Sequence[LookAhead], streams: Streams) -> torch.Tensor | None:
        """Logits ``[rows * streams, vocabulary]`` of the streams behind rows that were scored; None where no path
        computes layers apart."""
        with self._one_at_a_time, persistent_tensors():
            found = (path.streamed(asked, streams) for path in self.paths)
            return next((logits for logits in found if logits is not None), None)

    @property
    def streams_beside(self) -> bool:
        """Whether forwards compute streams beside the rows that have them (`Request.streams`)."""
        return any(path.streams_beside for path in self.paths)

    def own_streams(self, adapter: StreamAdapter) -> StreamAdapter:
        """The part of an adapter for this model that this process computes with."""
        return adapter

    @property
    def modules(self) -> LlamaModules | None:
        """The modules of a model of llama's structure, or of one in tracks, whose layers can be computed apart."""
        return known_modules(self._own.model)

    def played(
        self, key: Hashable, function: Callable[..., torch.Tensor], given: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        if self.fixed is None:
            return function(*given)
        with self._one_at_a_time, persistent_tensors():
            return self.fixed.played(key, function, given)

    def row_bytes(self) -> int | None:
        """Bytes of a row, as found by writing one: layers may differ, and models keep what they like."""
        with self._written() as rows:
            return rows.row_bytes

    def sequence_bytes(self) -> int:
        if not self._own.recurrent:
            return 0
        with self._written() as rows:
            assert isinstance(rows, StatefulRows), "layers keep a state"
            return rows.sequence_bytes

    @contextmanager
    def _written(self) -> Iterator[CacheRows]:
        """The row of a text of one token."""
        rows = self.open(1)
        try:
            self.forward([Request.of_prompt(rows, np.zeros(1, np.int64))])
            rows.keep([0])
            yield rows
        finally:
            rows.close()

    def lends(self, common: int, read: int) -> int:
        if not self._own.recurrent or common >= read:
            return common
        return common // self.prefill_chunk * self.prefill_chunk

    def free_memory(self) -> int | None:
        return free_memory(self._own.model.device)

    def fingerprint(self) -> str:
        """A digest of the names and shapes of all weights and of an even sample of the values of each."""
        return fingerprint_of(identities(self._own.model))


def trusted_length(config: Any) -> int | None:
    """The length up to which our attention is the model's: of models that attend in chunks the first chunk, of models
    that choose keys by rank as many as they keep without a choice (rounding decides between equal ranks)."""
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    ends = [config.attention_chunk_size if chunked else None, getattr(config, "keep_window_size", None)]
    return min((end for end in ends if end is not None), default=None)


def refuse_unknown(config: Any, model_class: type | None = None) -> None:
    """Refuse models whose states are kept in a way that is not known here, unknown kinds of attention, and layers that
    differ in what is read once for all."""
    config = config.get_text_config()
    advice = "choose a model with full or sliding-window attention in every layer"
    if differing := sorted(SHARED & (getattr(config, "per_layer_attributes", None) or set())):
        raise UnsupportedModel(
            f"{config.model_type} has layers that differ in {', '.join(differing)}, which is not supported yet; "
            "choose a model whose layers have the same"
        )
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        raise UnsupportedModel(
            f"{config.model_type} is not a stack of layers, for its configuration has no num_hidden_layers; {advice}"
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    kept = sorted(kinds & STATEFUL_LAYERS)
    stateful = kept or (not kinds and getattr(model_class, "_is_stateful", False))
    if stateful and (model_class is None or not families.knows(model_class.__module__)):
        what = f"layers of type {', '.join(kept)}" if kept else "a recurrent state"
        from paceline.targets.hf.versions import STATES_SINCE, installed  # loads transformers

        if installed() < STATES_SINCE:
            needed = ".".join(map(str, STATES_SINCE))
            advice = f"pip install -U 'transformers>={needed}', if transformers has such a model, or {advice}"
        raise UnsupportedModel(
            f"{config.model_type} keeps {what} in a way that is not known here, so a refused draft could not be taken "
            f"back; {advice}"
        )
    family = None if model_class is None else families.family_of(model_class.__module__)
    indexed = {"indexed_attention"} if family is not None and family.indexes else set[str]()
    if strange := sorted(kinds - KNOWN_LAYERS - STATEFUL_LAYERS - indexed):
        raise UnsupportedModel(
            f"{config.model_type} has layers of type {', '.join(strange)}, which are not supported yet; {advice}"
        )
