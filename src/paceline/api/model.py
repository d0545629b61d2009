"""The Python API: text in, text out, around the engine that speaks token ids.

>>> lm = paceline.load("path/to/model")                                      # doctest: +SKIP
>>> for piece in lm.stream("Once upon a time", max_new_tokens=50):           # doctest: +SKIP
...     print(piece.text, end="")
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Unpack
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from paceline.api.asynchronous import SharedBatch
from paceline.api.batch import TextBatch
from paceline.api.chat import Conversation
from paceline.api.drafters import Drafters, Lease
from paceline.api.piece import Piece
from paceline.api.prompts import ONE_MESSAGE, Message, Prompt, is_chat, prompts_of, read
from paceline.api.schedule import RowSchedule
from paceline.api.serving import Serving
from paceline.api.settings import ELSEWHERE, Options, Settings, new_seed, split_settings
from paceline.api.writing import Generation, Writing
from paceline.drafters import Drafter
from paceline.engine.batch import AT_ONCE
from paceline.errors import InputError, called
from paceline.law import Sampling
from paceline.law.values import require_whole
from paceline.planning.base import Planner
from paceline.targets.base import Target
from paceline.targets.lending import KeptRows
from paceline.vocabulary import Vocabulary
from paceline.vocabulary.transcript import Transcripts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


SAME = "samples at temperature 0 are all the same text; a temperature above 0 makes them differ"


class LanguageModel:
    """A target with its vocabulary. Keeps the cached rows of the last text, so that one which begins alike (the next
    turn of a chat, another sample of a prompt) reads only what is new.

    Texts may be written from several threads; their forwards take turns. Modules, weights and hooks that the model's
    owner replaces are noticed when a text begins. After weights were changed in place, or adapters switched, call
    `forget`, since kept rows are the old weights'. Fork a process before the first model is loaded: a process that is
    forked later lacks the threads that compute, and refuses to write."""

    def __init__(
        self, target: Target, vocabulary: Vocabulary | None = None, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.target = target
        self.vocabulary = vocabulary
        self.defaults = dict(defaults or {})
        """Settings of every text for which others are not given; `load` fills it from the model's
        ``generation_config.json``."""
        self.kept = KeptRows(target.open, target.look)
        self.transcripts = None if vocabulary is None else Transcripts(vocabulary)
        """The last chats, in the tokens that they were written in."""
        self._drafters = Drafters()
        self._shared = SharedBatch(RowSchedule(self.kept, AT_ONCE))
        self._servings = WeakSet[KeptRows]()
        """What servings keep."""

    def __repr__(self) -> str:
        facts = [self.target.name, self.target.dtype, self.target.device, f"{self.target.vocab_size} tokens"]
        return f"<language model {', '.join([*facts, *([] if self.vocabulary else ['no tokenizer'])])}>"

    def generate(self, prompt: Prompt, **settings: Unpack[Options]) -> Generation:
        """One text. Settings are the fields of `Settings` and of `paceline.Sampling`; those that are not given are the
        model's own, `defaults`.

        A prompt is a text, token ids in any usual form, the messages of a chat, or what a tokenizer returns.
        """
        return self._finish(self.write(prompt, **settings))

    def sample(self, prompt: Prompt, *, n: int, **settings: Unpack[Options]) -> list[Generation]:
        """``n`` texts from one prompt, different under any temperature above 0; the first is what `generate` gives.

        Processors and criteria that keep state see all of them, one after the other.
        """
        _check_samples(n)
        how = self.settings_for(prompt, settings)
        if n > 1 and how[1].greedy:
            warnings.warn(SAME, UserWarning, stacklevel=2)
        return [self._finish(Writing(self, prompt, number, *how)) for number in range(n)]

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        n: int = 1,
        each: Iterable[Options] | None = None,
        at_once: int = AT_ONCE,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[Options],
    ) -> list[list[Generation]]:
        """``n`` texts of each prompt, written together: the same ones that `sample` writes one after the other.

        ``each`` holds settings of single prompts, which go before those of all; equal prompts with equal seeds have
        equal texts. ``progress`` is called with how many texts are finished and how many there are. Processors and
        criteria that keep state see the calls of all texts mixed: where that matters, give every text its own. The
        first text that fails ends all; to have the others, use `batch`.
        """
        _check_samples(n)
        prompts = prompts_of(prompts)
        own = [Options()] * len(prompts) if each is None else list(each)
        if not all(isinstance(mine, Mapping) for mine in own):
            raise InputError("'each' is a list of dicts, the settings of every prompt")
        if len(own) != len(prompts):
            raise InputError(f"'each' holds settings for {len(own)} prompts and there are {len(prompts)}")
        if any("sample" in mine for mine in (settings, *own)):
            raise InputError("the texts of a prompt are numbered by n; leave 'sample' out, or add them to a batch")
        if progress is not None and not callable(progress):
            raise InputError(f"progress is a function of two numbers, not {progress!r}")
        finished = 0
        with self.batch(at_once=at_once) as batch:
            asked = zip(prompts, (_joined(settings, mine) for mine in own), strict=True)
            writings = [[batch.add(prompt, sample=number, **how) for number in range(n)] for prompt, how in asked]
            if n > 1 and writings and all(samples[0].context.sampling.greedy for samples in writings):
                warnings.warn(SAME, UserWarning, stacklevel=2)
            for writing, _, ended in batch:
                if writing.error is not None:
                    raise writing.error
                finished += ended
                if ended and progress is not None:
                    called("progress callback", progress, finished, len(prompts) * n)
        return [[writing.result() for writing in samples] for samples in writings]

    def batch(self, *, at_once: int = AT_ONCE) -> TextBatch:
        """Texts to be written together, which may be added and cancelled while others are being written."""
        return TextBatch(self, at_once=at_once)

    def stream(self, prompt: Prompt, **settings: Unpack[Options]) -> Generator[Piece, None, None]:
        """The text as it becomes certain. Closing the iterator ends the generation."""
        return self.write(prompt, **settings).pieces()

    def chat(self, messages: str | Sequence[Message], **settings: Unpack[Options]) -> Generation:
        """The model's reply to the messages of a chat, or to a text that the user says.

        ``[{"role": "user", "content": "Hello"}]`` goes through the model's chat template; a model without one is given
        a transcript. If earlier replies among the messages were written here, only what is new is read.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not is_chat(messages):
            raise InputError(f"a chat is a text or a list of messages; {ONE_MESSAGE}; for other prompts use `generate`")
        return self.generate(messages, **settings)

    def conversation(self, *, system: str | None = None, **settings: Unpack[Options]) -> Conversation:
        """A chat that keeps its own messages: `Conversation.say` what the user says."""
        return Conversation(self, system=system, **settings)

    def astream(self, prompt: Prompt, **settings: Unpack[Options]) -> AsyncGenerator[Piece, None]:
        """Like `stream`, for ``async for``: the event loop goes on while the model computes. Texts that are read at the
        same time are written together, each as it would be written alone. One that is read slowly waits for its
        reader, and the others go on. Closing the generator, or cancelling the task that reads it, ends the text."""
        how = self.settings_for(prompt, settings)
        return self._shared.pieces(self, lambda: Writing(self, prompt, 0, *how))

    def serving(self, *, at_once: int = AT_ONCE, kept: int = 8, max_rows: int | None = None) -> Serving:
        """Texts for the requests of a server. At most ``at_once`` are written at a time, first come, first served. The
        KV rows of the last ``kept`` texts stay, so that a request which begins like one of them reads only what is new.

        All of them hold at most ``max_rows`` rows, one a token; by default as many as fit into half of the memory that
        is free now. If they are short, the youngest texts are paused, and go on later as the same texts.
        """
        serving = Serving(self, at_once=at_once, kept=kept, max_rows=max_rows)
        self._servings.add(serving.kept)
        return serving

    def write(self, prompt: Prompt, **settings: Unpack[Options]) -> Writing:
        """Like `stream`, with the `Generation` afterwards: read its `pieces`, then its `result`. Any thread may
        `Writing.cancel` it."""
        return Writing(self, prompt, 0, *self.settings_for(prompt, settings))

    def settings_for(self, prompt: Prompt, given: Mapping[str, Any]) -> tuple[Settings, Sampling]:
        """All settings of a text: those given, then the model's own, then ours. A reply in a chat may be as long as the
        context allows, and what samples without a seed gets a new one."""
        unlimited = {"max_new_tokens": None} if is_chat(prompt) else {}
        return split_settings(given, {**self.defaults, **unlimited})

    def lease(self, settings: Settings, given: Collection[str] = ()) -> Lease:
        """The drafter that settings ask for, to be held while a text is written, with the sources of what the text is
        ``given`` beside its prompt."""
        return self._drafters.lease(settings, self.target, self.vocabulary, given)

    def planner(self, settings: Settings, drafter: Drafter) -> Planner:
        """The planner that settings ask for."""
        return self._drafters.planner(settings, drafter, self.target)

    def forget(self) -> None:
        """Take the model as it is now, and give back the memory of the last text and of the last chats, that of the
        drafters with their models, and, while nothing is being written, what the target holds for texts to come."""
        for kept in (self.kept, *self._servings):
            kept.clear()
        if self.transcripts is not None:
            self.transcripts.clear()
        self._drafters.clear()
        self.target.forget()
        self.target.release()

    def encode(self, prompt: Prompt) -> NDArray[np.int64]:
        """A prompt as token ids, with the special tokens that the tokenizer puts before a text."""
        return read(prompt, self.target, self.transcripts).tokens

    @staticmethod
    def _finish(writing: Writing) -> Generation:
        for _ in writing.pieces():
            pass
        return writing.result()


def _joined(settings: Options, mine: Options) -> Options:
    """The settings of one prompt, which go before those of all. Its samples share a seed."""
    joined: Options = {**settings, **mine}
    return joined if joined.get("seed") is not None else {**joined, "seed": new_seed()}


def _check_samples(n: int) -> None:
    require_whole("n", n)
    if n < 1:
        raise InputError(f"cannot draw {n} samples; ask for 1 or more")


BY_TRANSFORMERS = "load the model with transformers and give it to load, with its tokenizer"
LOADING = {
    "torch_dtype": "write dtype",
    "device_index": "write device",
    "revision": "download that revision, and give its folder",
    "load_in_8bit": "write quantize='int8'",
    "load_in_4bit": "write quantize='int4'",
    "quantization_config": BY_TRANSFORMERS,
    "attn_implementation": BY_TRANSFORMERS,
    "config": BY_TRANSFORMERS,
    "assistant_model": "give draft_model to generate",
}
"""Arguments that other libraries load a model with, and what to do here."""
ARGUMENTS = (
    *("tokenizer", "dtype", "quantize", "device", "device_map", "fixed_shapes", "probe", "generation_config"),
    *("trust_remote_code", "tensor_parallel"),
)


def _where(name: str) -> str:
    """Advice about an argument that `load` does not have."""
    if name in LOADING:
        return LOADING[name]
    if name in Options.__annotations__:
        return f"{name} is a setting of generate"
    if name in ELSEWHERE:
        return f"give {ELSEWHERE[name]} to generate"
    if close := difflib.get_close_matches(name, ARGUMENTS, n=1):
        return f"did you mean {close[0]!r}?"
    return f"it takes a model, {', '.join(ARGUMENTS)}; for others {BY_TRANSFORMERS}"


def load(
    model: str | Path | PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    device: str | int | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    fixed_shapes: bool | None = None,
    probe: bool = True,
    generation_config: bool = True,
    trust_remote_code: bool = False,
    tensor_parallel: int | None = None,
    **misplaced: Never,
) -> LanguageModel:
    """A bundled model, a transformers causal LM by path or name, or a loaded one (then with its tokenizer).

    Bundled are ``pocket``, ``pocket-draft`` and ``pocket-foreign``; ``pocket+ballast:500M`` is the same function at
    the cost of a model of that size, ``pocket+ballast:500M/150k`` with as many token ids. A folder that happens to be
    called like one of them is reached as ``./pocket``.

    ``dtype`` is the model's own unless named. ``device`` is ``cpu``, ``cuda``, ``mps`` or ``auto``: a GPU that works
    and has room for the model, or else the CPU, where integers always are. Without it the environment variable
    ``PACELINE_DEVICE`` says which, or else it is ``auto``.

    ``quantize="int8"`` computes in 8-bit integers on a CPU: in a quarter of the memory, and faster, with a text that is
    the same under every method by arithmetic, not only up to near ties. ``quantize="int4"`` takes half of that memory
    again, and changes the model more (docs/devices.md).

    ``fixed_shapes`` asks for forwards that are recorded once for all drafts of a shape, or forbids them; by default a
    model on a CUDA device has them (docs/devices.md).

    Before the first text of a model on a CPU a few forwards are timed, in at most 2 seconds and once for a machine, so
    that planners know what rows cost. ``probe=False`` leaves that out.

    The settings in the model's ``generation_config.json`` (temperature, penalties, ...) are the defaults of its texts,
    as in transformers: `LanguageModel.defaults`. ``generation_config=False`` leaves all but the end-of-text tokens out.

    ``trust_remote_code`` runs the Python code that this model or its tokenizer brings along, which can do anything on
    this machine. Load a draft model that brings its own code separately, and pass it as ``draft_model``.

    ``tensor_parallel=N`` cuts the model over the N processes that torchrun started. The first of them gets the model,
    and writes. The others compute their parts inside this call and end the process in it, with the first one.
    """
    from paceline.targets.load import open_model, open_over_ranks

    for name in misplaced:
        raise InputError(f"unknown argument {name!r} of load; {_where(name)}")
    opened = open_model if tensor_parallel in (None, 1) else partial(open_over_ranks, tensor_parallel)
    target, own = opened(
        model,
        dtype=dtype,
        quantize=quantize,
        device=device,
        device_map=device_map,
        fixed_shapes=fixed_shapes,
        probe=probe,
        trust_remote_code=trust_remote_code,
        with_tokenizer=tokenizer is None,
    )
    tokenizer = own if tokenizer is None else tokenizer
    vocabulary = Vocabulary(tokenizer) if tokenizer is not None else None
    if not generation_config:
        return LanguageModel(target, vocabulary)
    if left_out := target.generation.left_out:
        said = f"{target.name}: these settings of its generation_config.json are left out: {', '.join(left_out)}"
        warnings.warn(said, UserWarning, stacklevel=2)
    return LanguageModel(target, vocabulary, target.generation.defaults)
