"""What a model's classes do, apart from any one model: functions can be replaced in the files that define them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import itemgetter
from types import FunctionType
from typing import Any

from torch import nn


class Definitions:
    """The forward functions of classes, and the functions and classes of transformers' files that define them, as they
    were when rows were compared or recorded."""

    def __init__(self, classes: Iterable[type[nn.Module]]) -> None:
        known = list(dict.fromkeys(classes))
        self._forwards = [(of_class, of_class.forward) for of_class in known]
        homes = dict.fromkeys(of_class.__module__ for of_class in known if origin(of_class) == "transformers")
        self._files = [_functions(vars(sys.modules[home])) for home in homes]

    def stand(self) -> bool:
        """Cheap enough to be asked for every forward."""
        try:
            same = all(get(names) == before for names, get, before in self._files)
        except KeyError:
            return False
        return same and all(of_class.forward is forward for of_class, forward in self._forwards)


def origin(defined: Any) -> str:
    """The package that a class or a function is from."""
    return str(defined.__module__).partition(".")[0]


def _functions(names: dict[str, Any]) -> tuple[dict[str, Any], itemgetter[Any], Any]:
    kept = [name for name, value in names.items() if isinstance(value, FunctionType | type)]
    get = itemgetter(*kept)
    return names, get, get(names)
