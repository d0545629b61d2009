"""Cores that texts leave to draft models: a thread that writes a text has fewer torch threads while its draft works."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from paceline.drafters.networks.mirror.place import DraftPlace, usable_cores
from paceline.targets.lending import Tray


@dataclass(eq=False)
class Writer:
    """A thread that has texts with drafts from here. Torch counts its threads for each thread by itself."""

    had: int = 0
    texts: int = 0


class Yielded:
    """The cores of draft models while they have texts: the writers of these have fewer torch threads then, since a
    thread on a core that another process uses holds up all others."""

    def __init__(self) -> None:
        self._tray: Tray[tuple[DraftPlace, Writer]] = Tray(self._ended)
        self._busy: Counter[DraftPlace] = Counter()
        self._here = threading.local()

    def begin(self, place: DraftPlace) -> Writer:
        import torch

        with self._tray.held():
            writer = self._writer()
            if not writer.texts and not writer.had:
                writer.had = torch.get_num_threads()
            writer.texts += 1
            self._busy[place] += 1
        self._share_out(writer)
        return writer

    def end(self, place: DraftPlace, writer: Writer) -> None:
        """A text of ``writer`` has ended, maybe in another thread. Safe in a finalizer."""
        self._tray.give((place, writer))
        self._share_out(self._writer())

    def _ended(self, ended: tuple[DraftPlace, Writer]) -> None:
        place, writer = ended
        writer.texts -= 1
        self._busy -= Counter([place])

    def is_here(self, writer: Writer) -> bool:
        """Whether this is the thread's own."""
        return self._writer() is writer

    def _writer(self) -> Writer:
        if not hasattr(self._here, "writer"):
            self._here.writer = Writer()
        found: Writer = self._here.writer
        return found

    def _share_out(self, writer: Writer) -> None:
        """For this thread; ``writer`` is what it has."""
        import torch

        from paceline.targets.hf.threads import begin_others_with

        if not writer.had:
            return
        taken = {core for place in list(self._busy) for core in place.cpus} if writer.texts else set()
        least = min(writer.had, len(usable_cores()) - len(taken)) if taken else writer.had
        if torch.get_num_threads() != (wanted := max(1, least)):
            torch.set_num_threads(wanted)
            if wanted < writer.had:
                begin_others_with(writer.had)
        if not writer.texts:
            writer.had = 0


YIELDED = Yielded()
