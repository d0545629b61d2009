"""Sources for what a text is given beside its prompt, such as a prediction of it. They join every method but plain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from paceline.drafters.base import Drafter, Plain
from paceline.drafters.compose import Beside
from paceline.drafters.forced import Forced
from paceline.drafters.prediction import Prediction

GRAMMAR, PREDICTION = "grammar", Prediction.name
GIVEN: Mapping[str, Callable[[], Drafter]] = {
    PREDICTION: Prediction,
    GRAMMAR: Forced,
}
"""What a text may be given -> the drafter that makes use of it."""


def joining(spec: str, given: Collection[str]) -> tuple[str, ...]:
    """Which of the things that a text is ``given`` change the drafter of a spec by `beside`."""
    from paceline.drafters.auto import Auto
    from paceline.drafters.spec import only_method

    method = only_method(spec) if given else None
    if isinstance(method, type) and issubclass(method, (Plain, Auto)):
        return ()
    return tuple(name for name in given if GIVEN[name] is not method)


def beside(drafter: Drafter, given: Collection[str]) -> Drafter:
    """A drafter in one tree with the sources of what a text was given. `auto` has these among its parts."""
    from paceline.drafters.auto import Auto

    if not given or isinstance(drafter, (Plain, Auto)):
        return drafter
    sources = [source for source in (GIVEN[name]() for name in given) if source.name != drafter.name]
    if not sources:
        return drafter
    joined = Beside((drafter, *sources))
    joined.spec, joined.spec_options = drafter.spec, drafter.spec_options
    return joined
