"""The process that drafts, with the draft model and cores or a device of its own.

It is started with the number of an open socket. The first frame says which model and where. It lives as long as the
other end: when that closes, also because the process there was killed, the thread that waits for frames ends this
process at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.context import Context, Ending
from paceline.drafters.assistant.growth import DraftShape
from paceline.drafters.assistant.model import DraftModel
from paceline.drafters.assistant.state import AssistantState
from paceline.drafters.mirror.frames import Ahead, Facts, Forward, Frame, Go, Kind, Unpacker
from paceline.drafters.mirror.rollout import Rollout
from paceline.errors import InputError
from paceline.law import Outlook, Sampling
from paceline.targets.base import SPARE_ROWS, Request, Target
from paceline.targets.lending import KeptRows
from paceline.tree import Ints

KEPT_TEXTS = 4
READ = 1 << 16
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG"""


class Worker:
    """The draft model and its texts."""

    def __init__(self, link: socket.socket, frames: queue.SimpleQueue[Frame], model: Target) -> None:
        self._link, self._frames, self._model = link, frames, model
        self._texts: dict[int, Rollout] = {}
        self._rows = KeptRows(model, KEPT_TEXTS)

    def run(self) -> None:
        while True:
            self._listen()
            self._forward()
            for number, text in self._texts.items():
                if (found := text.window()) is not None:
                    place, window = found
                    self._link.sendall(Frame(Kind.WINDOW, number, place, window.body()).packed())

    def _listen(self) -> None:
        """Hear all that was said; wait for something where there is nothing to do."""
        while True:
            idle = not any(text.busy for text in self._texts.values())
            try:
                frame = self._frames.get(block=idle)
            except queue.Empty:
                return
            self._hear(frame)

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.OPEN:
                self._texts[frame.text] = self._opened(Facts.of(frame.body))
            case Kind.CLOSE:
                if (text := self._texts.pop(frame.text, None)) is not None:
                    self._rows.give(text.reading.rows)
            case Kind.AHEAD:
                text = self._texts[frame.text]
                text.ahead(Ahead.of(frame.body, self._size(text)))
            case Kind.GO:
                text = self._texts[frame.text]
                go = Go.of(frame.body, self._size(text))
                text.go(go.tokens.tolist(), go.levels)
            case _:
                raise AssertionError(f"{frame.kind} is not for a draft model")

    @staticmethod
    def _size(text: Rollout) -> int:
        return text.reading.vocab_size or 0

    def _opened(self, given: Facts) -> Rollout:
        facts, prompt = given.values, np.asarray(given.tokens)
        context = context_of(facts, prompt)
        rows = self._rows.take(prompt[:-1], len(prompt) + context.room + SPARE_ROWS)
        rows.rewind(rows.common_prefix(prompt[:-1]))
        reading = AssistantState(context, rows, Outlook(context.sampling, context.prompt_length), facts["vocab_size"])
        shape = DraftShape(top=facts["top"], confidence=facts["confidence"], shared=facts["shared"])
        return Rollout(reading, self._model, shape, facts["source"])

    def _forward(self) -> None:
        """One level of all texts at once."""
        asked = [(text, request) for text in self._texts.values() if (request := text.request()) is not None]
        if not asked:
            return
        began = time.perf_counter()
        requests: list[Request] = [request for _, request in asked]
        for (text, request), scores in zip(asked, self._model.submit(requests).result(), strict=True):
            text.take(request, scores)
        spent = Forward(time.perf_counter() - began, sum(len(request.tokens) for request in requests))
        self._link.sendall(Frame(Kind.FORWARD, 0, 0, spent.body()).packed())


def facts_of(context: Context, vocab_size: int, shape: DraftShape, source: str) -> dict[str, Any]:
    """What another process needs to draft for a text as this one would."""
    ours, ending = context.sampling, context.ending
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    return {
        "sampling": {name: getattr(ours, name) for name in names},
        "seed": ours.seed,
        "sample": context.noise.sample,
        "logit_bias": [[int(token), float(bias)] for token, bias in ours.logit_bias.items()],
        "banned": [[int(token) for token in entry] for entry in ours.banned],
        "prompt_length": context.prompt_length,
        "room": context.room,
        "eos": sorted(ending.eos),
        "foreseeable": context.foreseeable,
        "vocab_size": vocab_size,
        "top": shape.top,
        "confidence": shape.confidence,
        "shared": shape.shared,
        "source": source,
    }


def context_of(facts: Mapping[str, Any], prompt: Ints) -> Context:
    sampling = Sampling(
        **facts["sampling"],
        seed=facts["seed"],
        logit_bias=dict(facts["logit_bias"]),
        banned=facts["banned"],
    )
    emitted = len(prompt) - facts["prompt_length"]
    ending = Ending(max_new_tokens=max(1, emitted + facts["room"]), eos=frozenset(facts["eos"]))
    context = Context(prompt, sampling, ending, sample=facts["sample"])
    context.prompt_length, context.foreseeable = facts["prompt_length"], facts["foreseeable"]
    return context


def main(arguments: list[str]) -> int:
    _die_with_parent()
    link = socket.socket(fileno=int(arguments[0]))
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(link, frames), daemon=True).start()
    try:
        place = Facts.of(frames.get().body).values
        if place["cpus"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, place["cpus"])
        model = _loaded(place)
        ready = Facts({"vocab_size": model.target.vocab_size, "fingerprint": _fingerprint(model)})
        link.sendall(Frame(Kind.READY, 0, 0, ready.body()).packed())
        Worker(link, frames, model.target).run()
    except BrokenPipeError:
        return 0
    except Exception as error:
        known = isinstance(error, InputError)
        said = str(error) if known else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            link.sendall(Frame(Kind.FAILED, 0, 0, Facts({"known": known, "said": said}).body()).packed())
        return 1
    return 0


def _loaded(place: Mapping[str, Any]) -> DraftModel:
    import torch

    from paceline.targets.load import open_model
    from paceline.vocabulary import Vocabulary

    if place["threads"]:
        torch.set_num_threads(place["threads"])
    target, tokenizer = open_model(
        place["model"],
        dtype=place["dtype"],
        quantize=place["quantize"],
        device=place["device"],
        strict=False,
    )
    return DraftModel(target, None if tokenizer is None else Vocabulary(tokenizer))


def _fingerprint(model: DraftModel) -> str | None:
    return None if model.vocabulary is None else model.vocabulary.fingerprint


def _die_with_parent() -> None:
    """Also when this process is stopped, and cannot see that the socket has closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def _receive(link: socket.socket, frames: queue.SimpleQueue[Frame]) -> None:
    """Frames as they come. The end of them is the end of this process, whatever it is doing."""
    unpacker = Unpacker()
    try:
        while data := link.recv(READ):
            for frame in unpacker.feed(data):
                frames.put(frame)
    finally:
        os._exit(0)
