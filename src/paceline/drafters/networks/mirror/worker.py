"""The process that drafts: it has the draft model and dedicated cores or a device.

It is started with the number of an open pipe. The first message names the model and its device or cores. It lives as
long as the other end: when that closes, also because the program there was killed, the thread that waits for messages
ends this process at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from paceline.context import Context, Ending
from paceline.drafters.networks.assistant.drafter import Assistant
from paceline.drafters.networks.assistant.model import DraftModel
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.mirror.messages import Ahead, Forward, Go, Mangled, Message, MessageKind, Said
from paceline.drafters.networks.mirror.rollout import Rollout
from paceline.drafters.networks.network import RowNetwork
from paceline.drafters.networks.reading import DRAFT_FORWARDS
from paceline.drafters.networks.streaming import Streaming
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.targets.lending import KeptRows
from paceline.translate import Bridge
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary

DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG"""


KEPT_TEXTS = 4
"""Texts whose rows are kept, for their next turns."""


class WorkerAssistant(Assistant):
    """It takes rows from those that are kept for texts of all settings: the draft model reads a text in the same way
    whatever is drafted behind it."""

    def __init__(self, rows: KeptRows, **options: Any) -> None:
        super().__init__(**options)
        self._rows = rows


class WorkerStreaming(Streaming):
    """The same with streams."""

    def __init__(self, rows: KeptRows, **options: Any) -> None:
        super().__init__(**options)
        self._rows = rows


class Worker:
    """The draft model and its texts."""

    def __init__(
        self,
        link: Connection | None,
        messages: queue.SimpleQueue[Message],
        model: DraftModel,
        head: str | None = None,
    ) -> None:
        """With a ``head``, an adapter of streams, windows have streams where that is measured to be faster."""
        self._link, self._messages, self._model, self._head = link, messages, model, head
        self._network: RowNetwork = (
            RowNetwork(model.target) if head is None else Streaming(model=model, head=head).network
        )
        self._rows = KeptRows(model.target.open, model.target.look, KEPT_TEXTS, copies_lent=True)
        self._texts: dict[int, tuple[Rollout, int]] = {}
        """With the number of its target's tokens."""
        self._vocabularies: dict[str, Vocabulary] = {}
        self._assistants: dict[Hashable, Assistant] = {}
        """By all that their drafts depend on."""

    @property
    def introduction(self) -> dict[str, Any]:
        """What is said of the model at first."""
        return {"vocab_size": self._model.target.vocab_size, "fingerprint": _fingerprint(self._model)}

    def run(self) -> None:
        self._say(Message(MessageKind.READY, said=self.introduction))
        while True:
            self._listen()
            self.work()

    def work(self) -> None:
        """One forward, and the windows that are finished with it."""
        self._forward()
        for number, (text, _) in self._texts.items():
            if (found := text.window()) is not None:
                place, window = found
                self._say(Message(MessageKind.WINDOW, number, place, window.said()))

    def busy(self, text: int) -> bool:
        """Whether there is a row to read for this text, or a window to send."""
        return self._texts[text][0].busy

    def _say(self, message: Message) -> None:
        assert self._link is not None, "a process has a connection"
        self._link.send_bytes(message.packed())

    def _listen(self) -> None:
        """Hear all that was said; wait for something where there is nothing to do."""
        while True:
            idle = not any(text.busy for text, _ in self._texts.values())
            try:
                message = self._messages.get(block=idle)
            except queue.Empty:
                return
            self._hear(message)

    def _hear(self, message: Message) -> None:
        match message.kind:
            case MessageKind.OPEN:
                self._texts[message.text] = self._opened(message.said)
            case MessageKind.CLOSE:
                if (known := self._texts.pop(message.text, None)) is not None:
                    known[0].end()
            case MessageKind.AHEAD:
                text, size = self._texts[message.text]
                text.ahead(Ahead.of(message.said, size))
            case MessageKind.GO:
                text, size = self._texts[message.text]
                go = Go.of(message.said, size)
                text.go(go.tokens.tolist(), go.levels)
            case MessageKind.TOKENIZER:
                self._say(Message(MessageKind.TOKENIZER, message.text, said={"said": self._learnt(message.said)}))
            case _:
                raise AssertionError(f"{message.kind} is not for a draft model")

    def _learnt(self, facts: Mapping[str, Any]) -> str:
        """Get to know a target's tokenizer. Why its tokens cannot be translated, or ""."""
        from transformers import AutoTokenizer

        try:
            self._learn(Vocabulary(AutoTokenizer.from_pretrained(facts["folder"], trust_remote_code=False)))
        except InputError as error:
            return str(error)
        return ""

    def _learn(self, vocabulary: Vocabulary) -> None:
        Bridge(vocabulary, _known(self._model))
        self._vocabularies[vocabulary.fingerprint] = vocabulary

    def _opened(self, facts: Said) -> tuple[Rollout, int]:
        context = context_of(facts, np.array(facts["prompt"], np.int64))
        return Rollout(self._assistant(facts), context, facts["source"]), facts["vocab_size"]

    def _assistant(self, facts: Mapping[str, Any]) -> Assistant:
        names = ("foreign", "translate", "top", "confidence", "shared", "gamma", "vocab_size")
        key = tuple(facts[name] for name in names)
        if key not in self._assistants:
            how = {"model": self._model, "length": facts["gamma"], "confidence": facts["confidence"]}
            how["noise"] = "shared" if facts["shared"] else "none"
            made: Assistant = (
                WorkerAssistant(self._rows, top=facts["top"], translate=facts["translate"], **how)
                if self._head is None
                else WorkerStreaming(self._rows, head=self._head, **how)
            )
            made.fit_size(facts["vocab_size"], self._vocabularies[facts["foreign"]] if facts["foreign"] else None)
            self._assistants[key] = made
        return self._assistants[key]

    def _forward(self) -> None:
        """One level of all texts at once, or a piece of those that are long and unread, or a whole window."""
        growing = [(text, live) for text, _ in self._texts.values() if (live := text.live)]
        if not growing:
            return
        began, rows = time.perf_counter(), self._network.rows_read
        pieces = self._network.read_pieces(list({growth.state: None for _, live in growing for growth in live}))
        ready = [(text, live) for text, live in growing if live[0].state not in pieces]
        whole = self._whole([text for text, _ in ready])
        further = [(text, live) for text, live in ready if text not in whole]
        self._network.add_level([growth for _, live in further for growth in live])
        for text, _ in further:
            text.forwards += 1
        if not whole:  # that would be no forward's seconds
            spent = Forward(time.perf_counter() - began, self._network.rows_read - rows)
            self._say(Message(MessageKind.FORWARD, said=spent.said()))

    def _whole(self, texts: Sequence[Rollout]) -> list[Rollout]:
        """Draft windows in one call that are waited for, and of which nothing is there: no message changes what these
        are. The texts whose windows are complete then; none where the model drafts level by level."""
        begun = [(text, growth) for text in texts if (growth := text.fresh) is not None]
        if begun:
            for _, growth in begun:
                growth.state.tally.take()
            self._network.begin([growth for _, growth in begun])
        whole = [(text, growth) for text, growth in begun if growth.done]
        for text, growth in whole:
            text.forwards += int(growth.state.tally.take()[DRAFT_FORWARDS.name])
        return [text for text, _ in whole]


def facts_of(
    context: Context, vocab_size: int, shape: DraftShape, source: str, *, foreign: str = "", translate: str = ""
) -> dict[str, Any]:
    """The data that another process needs to draft for a text. ``foreign`` is the fingerprint of the target's tokenizer
    where the draft model has another one. Under the rejection rule it drafts by probability alone (see `messages`)."""
    return {
        "sampling": context.sampling.packed(),
        "sample": context.noise.sample,
        "prompt_length": context.prompt_length,
        "room": context.room,
        "eos": sorted(context.ending.eos),
        "vocab_size": vocab_size,
        "foreign": foreign,
        "translate": translate or None,
        "draft_prompt": context.draft_prompt if foreign else None,
        "gamma": shape.length,
        "top": shape.top,
        "confidence": shape.confidence,
        "shared": shape.shared and context.foreseeable,
        "source": source,
    }


def context_of(facts: Mapping[str, Any], prompt: Ints) -> Context:
    sampling = Sampling.unpacked(facts["sampling"])
    emitted = len(prompt) - facts["prompt_length"]
    ending = Ending(max_new_tokens=max(1, emitted + facts["room"]), eos=frozenset(facts["eos"]))
    context = Context(prompt, sampling, ending, sample=facts["sample"])
    context.prompt_length, context.draft_prompt = facts["prompt_length"], facts["draft_prompt"]
    return context


def main(arguments: list[str]) -> int:
    _die_with_parent()
    link = Connection(int(arguments[0]))
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(link, messages), daemon=True).start()
    try:
        place = messages.get().said
        if place["cpus"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, place["cpus"])
        model = _loaded(place)
        Worker(link, messages, model, place["head"]).run()
    except BrokenPipeError:
        return 0
    except Exception as error:
        known = isinstance(error, InputError)
        said = str(error) if known else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            link.send_bytes(Message(MessageKind.FAILED, said={"known": known, "said": said}).packed())
        return 1
    return 0


def _loaded(place: Mapping[str, Any]) -> DraftModel:
    import torch

    from paceline.targets.load import open_model

    torch.set_num_threads(place["threads"])
    target, tokenizer = open_model(
        place["model"],
        dtype=place["dtype"],
        quantize=place["quantize"],
        device=place["device"],
        strict=False,
    )
    return DraftModel(target, None if tokenizer is None else Vocabulary(tokenizer))


def _known(model: DraftModel) -> Vocabulary:
    assert model.vocabulary is not None, "a text of another tokenizer is sent to a draft model that has one"
    return model.vocabulary


def _fingerprint(model: DraftModel) -> str | None:
    return None if model.vocabulary is None else model.vocabulary.fingerprint


def _die_with_parent() -> None:
    """Also when this process is stopped, and cannot see that the pipe has closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def _receive(link: Connection, messages: queue.SimpleQueue[Message]) -> None:
    """Messages as they come. The end of them is the end of this process, whatever it is doing."""
    try:
        with contextlib.suppress(EOFError, OSError, Mangled):
            while True:
                messages.put(Message.of(link.recv_bytes()))
    finally:
        os._exit(0)
