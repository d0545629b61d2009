"""The KV cells of a model in llama.cpp, and the sequences that see them.

One context holds the cells of all texts. A cell belongs to any number of sequences, and a row sees the cells of its own
sequence at positions up to its own. So a text has one sequence, its *home*, and a draft that branches has further ones,
its *branches*: siblings are in different sequences, and what is above both is in both. Taking a cell into a sequence,
or out of it, moves no keys or values.

llama.cpp allocates the cells of a context at once. They begin few, and double when they are full.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DefectError, OutOfMemory, out_of_memory
from paceline.targets.gguf.library import Owned, complaint, library
from paceline.targets.lending import Tray
from paceline.targets.memory import host_memory
from paceline.tree import Ints

if TYPE_CHECKING:
    from paceline.targets.gguf.rows import GgufRows

Marks = list[bool]
"""Of rows, whether something of each is asked for. (A forward of one row passes here once a token, with cold caches: a
list costs a tenth of what numpy's calls do.)"""
Sequences = list[list[int]]
"""Of rows, those that each is in."""


class RowsRead(NamedTuple):
    """What a forward found for the rows that were marked."""

    logits: NDArray[np.float32]
    states: NDArray[np.float32]
    """Those that the output head read."""

    @classmethod
    def joined(cls, parts: Sequence[RowsRead]) -> RowsRead:
        return cls(np.concatenate([part.logits for part in parts]), np.concatenate([part.states for part in parts]))


FORWARD = 512
"""Rows of a forward at most; llama.cpp's own default."""
FIRST_CELLS = 2048
HOMES = 32
"""Sequences that no draft takes, so that another text can begin."""
FULL = 1
"""What `llama_decode` returns where no cells are left."""


class Cells:
    """A context of a loaded model. All calls but `held` and `give` are made by the holder of its lock."""

    def __init__(self, model: Owned, settings: Callable[[], Any], vocab_size: int) -> None:
        """``settings`` makes the parameters of a context, but for how many cells and sequences it has."""
        self._calls = library()
        self._model, self._settings, self._vocab_size = model, settings, vocab_size
        self.width = int(self._calls.llama_model_n_embd(model.thing))
        """Of states."""
        self.sequences = int(self._calls.llama_max_parallel_sequences())
        self.lengths = [0] * self.sequences
        """At how many positions each sequence has cells; from 0 on, without gaps."""
        self._free = list(range(self.sequences))[::-1]
        self._texts: weakref.WeakSet[GgufRows] = weakref.WeakSet()
        self._tray: Tray[list[int]] = Tray(self._put_away)
        self._batch = _Batch(self._calls, self.sequences)
        self.row_bytes: int | None = None
        """Bytes of a row; found by the probe."""
        self._shows: bool | None = False
        """Whether forwards give states; None where that is not known."""
        self._use(self._opened(FIRST_CELLS), FIRST_CELLS)

    # --- sequences ------------------------------------------------------------------------------------------

    def held(self) -> AbstractContextManager[None]:
        """Hold the lock: one forward at a time, and no sequence is given back meanwhile."""
        return self._tray.held()

    def give(self, sequences: list[int]) -> None:
        """Give the sequences of a text back; safe in a finalizer."""
        self._tray.give(sequences)

    def _put_away(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self.trim(sequence, 0)
            self._free.append(sequence)
        sequences.clear()

    def home(self, text: GgufRows) -> int:
        """The sequence of a new text."""
        if not self._free:
            self._reclaim()
        if not self._free:
            raise OutOfMemory(f"llama.cpp keeps {self.sequences} texts at most; write fewer at once")
        self._texts.add(text)
        return self._free.pop()

    def branch(self) -> int | None:
        """An empty sequence for a branch of a draft; None where none is left."""
        if len(self._free) <= HOMES:
            self._reclaim()
        return self._free.pop() if len(self._free) > HOMES else None

    def _reclaim(self) -> None:
        """Take back the branches that no draft needs now."""
        for text in self._texts:
            self._put_away(text.idle_branches())

    def trim(self, sequence: int, length: int) -> None:
        """Take all cells behind the first ``length`` out of a sequence."""
        if self.lengths[sequence] > length:
            self._calls.llama_memory_seq_rm(self._memory, sequence, length, -1)
            self.lengths[sequence] = length

    def share(self, source: int, sequence: int, end: int) -> None:
        """Take the cells of another sequence up to ``end`` into this one, behind those that it has."""
        start = self.lengths[sequence]
        if start < end:
            self.lengths[sequence] = end  # first: an interruption must not leave cells that `trim` does not know
            self._calls.llama_memory_seq_cp(self._memory, source, sequence, start, end)

    def reaches(self, sequence: int) -> tuple[int, int]:
        """The first position of a sequence in llama.cpp, and the one behind its last; of an empty one 0 and 0."""
        first = int(self._calls.llama_memory_seq_pos_min(self._memory, sequence))
        return max(first, 0), int(self._calls.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    # --- forwards -------------------------------------------------------------------------------------------

    def read(self, tokens: Ints, positions: list[int], sequences: Sequences, scored: Marks, shown: Marks) -> RowsRead:
        """Write the cells of rows, each into its sequences; the logits of those that are ``scored``, and the states of
        those that are ``shown``."""
        if len(tokens) <= self._most:
            return self._forward(tokens, positions, sequences, scored, shown)
        found = []
        for start in range(0, len(tokens), self._most):
            part = slice(start, start + self._most)
            found.append(self._forward(tokens[part], positions[part], sequences[part], scored[part], shown[part]))
        return RowsRead.joined(found)

    def _forward(
        self, tokens: Ints, positions: list[int], sequences: Sequences, scored: Marks, shown: Marks
    ) -> RowsRead:
        states = any(shown)
        marked = [True] * len(shown) if states else scored  # with states llama.cpp gives all rows, whatever is marked
        filled = self._batch.filled(tokens, positions, sequences, marked)
        for own, position in zip(sequences, positions, strict=True):
            for sequence in own:  # before the forward, for that may be interrupted
                self.lengths[sequence] = max(self.lengths[sequence], position + 1)
        self._show_states(states)
        while (code := self._calls.llama_decode(self._context.thing, filled)) == FULL:
            self._grow()
            self._show_states(states)
        if code:
            raise DefectError(f"llama.cpp could not compute a forward over {len(tokens)} rows: {complaint()} ({code})")
        return RowsRead(
            self._found(self._calls.llama_get_logits, self._vocab_size, scored, marked),
            self._found(self._calls.llama_get_embeddings, self.width, shown, marked),
        )

    def _show_states(self, shown: bool) -> None:
        """Have forwards give states. Only a change is asked for: llama.cpp reports each to Python."""
        if self._shows is not shown:
            self._shows = None  # first: an interruption must not leave a wrong note
            self._calls.llama_set_embeddings(self._context.thing, shown)
            self._shows = shown

    def _found(self, read: Callable[[Any], Any], width: int, wanted: Marks, marked: Marks) -> NDArray[np.float32]:
        """A copy of the wanted rows among those that a forward has marked. By few calls: weights have driven all code
        out of the processor's caches, and `numpy.ctypeslib` takes 0.1 ms then."""
        places = [asked for asked, mark in zip(wanted, marked, strict=True) if mark]
        if True not in places:
            return np.empty((0, width), np.float32)
        begin = ctypes.addressof(read(self._context.thing).contents)
        memory: Any = (ctypes.c_float * (len(places) * width)).from_address(begin)
        found: NDArray[np.float32] = np.frombuffer(memory, np.float32).reshape(-1, width)
        return found.copy() if all(places) else found[np.array(places)]

    # --- memory ---------------------------------------------------------------------------------------------

    @property
    def keep_rows(self) -> bool:
        """Whether rows are kept at all; models that only embed texts have no cells, and no logits either."""
        return bool(self._memory)

    def measure(self, sequence: int) -> None:
        """Find the bytes of a row from a sequence that has some."""
        size = int(self._calls.llama_state_seq_get_size(self._context.thing, sequence))
        self.row_bytes = -(-size // max(1, self.lengths[sequence]))

    def _opened(self, cells: int) -> Owned:
        """A context. `OutOfMemory` where there is no room for it."""
        free = host_memory()
        if self.row_bytes is not None and free is not None and self.row_bytes * cells > free:
            raise out_of_memory(MemoryError())
        terms = self._settings()
        terms.n_ctx, terms.n_batch, terms.n_ubatch = cells, FORWARD, FORWARD
        terms.n_seq_max, terms.kv_unified = self.sequences, True
        context = self._calls.llama_init_from_model(self._model.thing, terms)
        if context is None:
            raise out_of_memory(MemoryError(complaint()))
        return Owned(context, self._calls.llama_free, self._model)

    def _grow(self) -> None:
        """Move all sequences into a context of twice as many cells. The old one is replaced at the end, so a failure or
        an interruption changes nothing."""
        self._reclaim()
        size = 2 * self.size
        while (fresh := self._moved(size)) is None:
            size *= 2
        self._use(fresh, size)

    def _use(self, context: Owned, size: int) -> None:
        """Go on in this context, of so many cells."""
        memory = self._calls.llama_get_memory(context.thing)
        most = min(FORWARD, int(self._calls.llama_n_batch(context.thing)))
        self._context, self.size = context, size  # no call from here on: what follows is of this context
        self._memory: Any = memory
        self._most = most
        """Rows of a forward."""
        self._shows = False

    def _moved(self, size: int) -> Owned | None:
        """A context with a copy of all sequences; None where they need more cells: those that two sequences share are
        copied for each of them."""
        calls, fresh = self._calls, self._opened(size)
        for sequence, length in enumerate(self.lengths):
            if length:
                count = calls.llama_state_seq_get_size(self._context.thing, sequence)
                state = (ctypes.c_uint8 * count)()
                calls.llama_state_seq_get_data(self._context.thing, state, count, sequence)
                if not calls.llama_state_seq_set_data(fresh.thing, state, count, sequence):
                    return None
        return fresh


class _Batch:
    """The arrays of a `llama_batch`, written by numpy."""

    def __init__(self, calls: Any, sequences: int) -> None:
        self._tokens, self._positions = np.zeros(FORWARD, np.int32), np.zeros(FORWARD, np.int32)
        self._counts, self._scored = np.ones(FORWARD, np.int32), np.zeros(FORWARD, np.int8)
        self._sequences = np.zeros((FORWARD, sequences), np.int32)
        pointer = ctypes.POINTER(ctypes.c_int32)
        self._places = (pointer * FORWARD)(*(row.ctypes.data_as(pointer) for row in self._sequences))
        self._batch = calls.llama_batch()
        numbers: dict[str, NDArray[Any]] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._counts,
            "logits": self._scored,
        }
        addresses = {name: array.ctypes.data for name, array in numbers.items()}
        addresses["seq_id"] = ctypes.addressof(self._places)
        for name, kind in self._batch._fields_:
            if name in addresses:
                setattr(self._batch, name, ctypes.cast(addresses[name], kind))

    def filled(self, tokens: Ints, positions: list[int], sequences: Sequences, scored: Marks) -> Any:
        """The batch of these rows; valid until the next."""
        count = len(tokens)
        self._batch.n_tokens = count
        self._tokens[:count], self._positions[:count], self._scored[:count] = tokens, positions, scored
        for row, own in enumerate(sequences):
            self._counts[row] = len(own)
            self._sequences[row, : len(own)] = own
        return self._batch
