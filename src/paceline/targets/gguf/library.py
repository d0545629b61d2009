"""llama.cpp's library: loaded when a GGUF file is opened, silent, and what it last complained about."""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from paceline.errors import MissingPackage, first_line

EXTRA = "pip install 'paceline[gguf]'"
NEEDED = "kv_unified"
"""The youngest setting of a context that is needed."""
ERROR_LEVEL, CONTINUED = 4, 5
"""Levels of llama.cpp's messages."""
_complaints: deque[str] = deque(maxlen=8)


@cache
def library() -> Any:
    """The functions of llama.cpp; `MissingPackage` where they cannot be loaded."""
    try:
        import llama_cpp
    except ImportError:
        raise MissingPackage(f"GGUF files need llama-cpp-python: {EXTRA}") from None
    except (OSError, RuntimeError, AttributeError) as error:  # its binary does not fit this machine
        raise MissingPackage(f"llama-cpp-python does not work here ({first_line(error)}); {EXTRA} again") from None
    if not hasattr(llama_cpp.llama_context_default_params(), NEEDED):
        raise MissingPackage(f"llama-cpp-python {llama_cpp.__version__} is too old for GGUF files: {EXTRA} -U")
    llama_cpp.llama_log_set(_listener(), None)
    llama_cpp.llama_backend_init()
    return llama_cpp


@cache
def _listener() -> Callable[..., None]:
    """The callback for llama.cpp's messages. It keeps no reference, so one is kept here."""
    import llama_cpp

    heard: Any = llama_cpp.llama_log_callback(_hear)
    return heard  # type: ignore[no-any-return]


def _hear(level: int, text: bytes, data: object) -> None:
    if level == ERROR_LEVEL:
        _complaints.append(text.decode(errors="replace").strip())


def complaint() -> str:
    """What llama.cpp said of its last failure, without the names of its functions; heard once."""
    said = [re.sub(r"^\w+: (error loading model: )?", "", line) for line in _complaints if line]
    _complaints.clear()
    return " ".join(said[0].split()) if said else "llama.cpp does not say why"


def instruction_sets() -> str:
    """Of the processor, those that this build of llama.cpp uses."""
    return " ".join(re.findall(r"(\w+) = 1\b", library().llama_print_system_info().decode()))


def packs_weights() -> bool:
    """Whether llama.cpp may repack weights at load, as it does by default. Packed for AMX its products of quantised
    weights crash (llama.cpp's issue 20824)."""
    return "AMX_INT8" not in instruction_sets()


class Owned:
    """A model or a context of llama.cpp, which is freed with this object; a context before its model."""

    def __init__(self, thing: Any, free: Callable[[Any], None], model: Owned | None = None) -> None:
        self.thing = thing
        ending = weakref.finalize(self, _freed, free, thing, model)
        ending.atexit = False  # the system takes it back, and other threads may be in a forward


def _freed(free: Callable[[Any], None], thing: Any, model: Owned | None) -> None:
    """``model`` lives until here, in whichever order a cycle of objects is collected."""
    free(thing)
