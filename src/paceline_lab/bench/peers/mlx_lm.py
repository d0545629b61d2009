"""mlx-lm, plain and with a draft model: on the folders of targets that it computes here, too, or on exported ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.drafters.networks.assistant.drafter import LEVELS
from paceline.errors import InputError
from paceline.targets import trust
from paceline.targets.base import Target
from paceline.targets.hf.target import HFTarget
from paceline.targets.mlx.load import model_folder, read_model
from paceline.targets.mlx.names import is_mlx
from paceline_lab.bench.peers.weights import Terms
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant, Written, room_for


class MlxLm(TextContestant):
    """mlx-lm's step functions, which take token ids and give token ids."""

    def __init__(self, terms: Terms, tokens: int | None) -> None:
        import mlx.core as mx

        self.name = terms.name
        self._weights = terms.weights
        self._mx = mx
        self._tokens = tokens
        self._model: Any = self._load(terms.weights.target, "mlx")
        self._draft: Any = None if tokens is None else self._load(terms.weights.same_tokens().target, "draft-mlx")

    def _load(self, target: Target, name: str) -> Any:
        """A model from the folder that the target was opened from, or to which it is exported, in the target's type."""
        try:
            folder = model_folder(target.name) if is_mlx(target.name) else self._exported(target, name)
            model, _ = read_model(target.name, folder, trust.trusts_all())
        except InputError as why:
            raise Missing(str(why)) from None
        model.set_dtype(getattr(self._mx, target.dtype))
        return model

    def _exported(self, target: Target, name: str) -> Path:
        from paceline.targets.mlx.export import export_mlx

        if not isinstance(target, HFTarget):
            raise Missing(f"{target.name} is computed by another library, and is not converted for mlx-lm")
        if (folder := self._weights.disk / name).exists():
            return folder
        draft = self._weights.draft if name.startswith("draft") else None
        vocabulary = self._weights.vocabulary if draft is None else draft.vocabulary
        export_mlx(target, folder, bits=None, tokenizer=None if vocabulary is None else vocabulary.tokenizer)
        return folder

    def facts(self) -> dict[str, Any]:
        from mlx.utils import tree_flatten

        drafts = None if self._tokens is None else self._weights.same_tokens().target.name
        dtypes = {str(weight.dtype).removeprefix("mlx.core.") for _, weight in tree_flatten(self._model.parameters())}
        return {
            "library": "mlx-lm",
            "version": f"{version('mlx-lm')} on mlx {version('mlx')}",
            "model": self._weights.target.name,
            "dtype": ", ".join(sorted(dtypes)),
            "attention": "mlx",
            "device": str(self._mx.default_device()),
            "threads": "as mlx chooses",
            "draft_model": drafts,
            "draft_tokens": self._tokens,
        }

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        room = room_for(job, self._weights.target.context_length)
        tokens, deliveries, within = list[int](), list[tuple[int, float]](), False
        steps = self._steps(job, room)
        for token, drafted in islice(steps, max(room, 0)):
            tokens.append(token)
            time = deliveries.pop()[1] if within else clock() - started
            deliveries.append((len(tokens), time))
            within = drafted  # the token behind a drafted one is of the same forward
            if token in job.eos:
                break
        steps.close()
        self._mx.synchronize()  # a step ahead is under way, which must not run on in the time of the next
        return Written.of(job, tokens, deliveries, room, len(deliveries))

    def _steps(self, job: Job, room: int) -> Any:
        """Tokens, and whether the draft model proposed them."""
        from mlx_lm.generate import generate_step, speculative_generate_step
        from mlx_lm.sample_utils import make_sampler

        self._mx.random.seed(job.sampling.seed)
        sampler = make_sampler(temp=job.sampling.temperature, **job.sampling.elsewhere("mlx-lm"))
        prompt, how = self._mx.array(job.prompt), {"max_tokens": room, "sampler": sampler}

        def steps() -> Iterator[tuple[int, bool]]:
            if self._draft is None:
                yield from ((int(token), False) for token, _ in generate_step(prompt, self._model, **how))
                return
            drafts = {**how, "num_draft_tokens": self._tokens}
            for token, _, drafted in speculative_generate_step(prompt, self._model, self._draft, **drafts):
                yield int(token), bool(drafted)

        return steps()

    def close(self) -> None:
        self._model = self._draft = None
        self._mx.clear_cache()


def check_installed(name: str, options: Mapping[str, str]) -> None:
    """`Missing` where the library is not there."""
    try:
        import mlx_lm  # noqa: F401
    except ImportError:
        raise Missing(
            "mlx-lm is not installed; 'pip install mlx-lm' where mlx runs ('mlx[cpu]' without a Mac)"
        ) from None


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    check_installed(name, terms.options)
    sampling = terms.sampling
    if sampling.lacking("mlx-lm"):
        raise Missing("mlx-lm cuts by top-p and min-p before temperature, and penalises otherwise: another law")
    if terms.weights.target.dtype == "float64":
        raise Missing("mlx-lm does not compute in float64; choose float32 or less")
    if name == "mlx-lm":
        return MlxLm(terms, None)
    assert name == "mlx-lm-assisted", f"no peer {name}"
    terms.weights.same_tokens()
    return MlxLm(terms, terms.draft_tokens or LEVELS)
