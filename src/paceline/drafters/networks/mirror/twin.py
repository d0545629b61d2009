"""The slow twin of the draft model's process: the same worker in this process, in turns with its caller.

It makes the windows that the process makes, one piece of work after the other, so a test can say how much of them was
made before the target had decided. Nothing is faster by it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from itertools import count
from typing import Any

from paceline.drafters.networks.assistant.model import DraftModel
from paceline.drafters.networks.mirror.drafter import Mirror
from paceline.drafters.networks.mirror.flight import WindowSource
from paceline.drafters.networks.mirror.messages import Message, MessageKind, Said, Window
from paceline.drafters.networks.mirror.place import DraftPlace
from paceline.drafters.networks.mirror.worker import Worker
from paceline.targets.base import Target
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary


class TwinSource(Worker):
    """Windows of a draft model in this process. Of what is drafted ahead it makes ``forwards`` forwards, as if the
    target took so long for its later layers; the rest when the window is needed."""

    lost = ""

    def __init__(self, model: DraftModel, forwards: int, head: str | None = None) -> None:
        super().__init__(None, queue.SimpleQueue(), model, head)
        self.forwards, self.facts = forwards, self.introduction
        self._numbers, self._answers = count(1), list[Message]()

    def _say(self, message: Message) -> None:
        self._answers.append(message)

    def teach(self, vocabulary: Vocabulary) -> None:
        self._learn(vocabulary)

    def open(self, facts: dict[str, Any], prompt: Ints) -> int:
        number = next(self._numbers)
        self.tell(MessageKind.OPEN, number, len(prompt), {**facts, "prompt": prompt.tolist()})
        return number

    def tell(self, kind: MessageKind, text: int, place: int, said: Said) -> int:
        packed = Message(kind, text, place, said).packed()
        self._hear(Message.of(packed))
        made = 0
        while kind is MessageKind.AHEAD and made < self.forwards and self.busy(text):
            self.work()
            made += 1
        return len(packed)

    def window(
        self, text: int, place: int, read: Callable[[Said], Window], *, asked: float, until: float = 0.0
    ) -> tuple[Window, int] | None:
        while until and self.busy(text):
            self.work()
        own = [each for each in self._answers if each.kind is MessageKind.WINDOW and each.text == text]
        self._answers = [each for each in self._answers if each.kind is MessageKind.WINDOW and each.text != text]
        if not own:
            return None
        assert own[-1].place == place, "one window at a time is asked for"
        packed = own[-1].packed()
        return read(Message.of(packed).said), len(packed)

    def windows(self, text: int) -> dict[tuple[int, ...], tuple[int, ...]]:
        """What was drafted ahead so far: the windows, by the tokens that they follow."""
        return self._texts[text][0].windows

    def seconds(self, rows: int) -> float:
        return 0.0

    def wake(self, text: int) -> None: ...

    def rest(self, text: int) -> None: ...

    def forget(self, text: int) -> None:
        self.tell(MessageKind.CLOSE, text, 0, {})


class TwinMirror(Mirror):
    """`mirror` with all drafts by its slow twin."""

    def __init__(self, *, forwards: int = 0, **options: Any) -> None:
        super().__init__(**{**options, "overlap": "always"})
        self._forwards = forwards

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        self._beside = target
        super().fit(target, vocabulary)

    def _started(self, place: DraftPlace) -> WindowSource:
        return TwinSource(DraftModel.load(self._named, self._beside), self._forwards, place.head)
