"""What mirror drafts in turns with its target, where that is faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.drafters.networks.assistant.drafter import Assistant
from paceline.drafters.networks.heads import SHIPPED, STREAMING
from paceline.drafters.networks.streaming.drafter import Streaming, base_model


class InTurns(Assistant):
    """The same draft model in turns with the target."""

    name = "mirror"


class StreamsInTurns(Streaming):
    """The same with streams."""

    name = "mirror"


def in_turns(model: Any, head: str | None, *, top: int, translate: str | None, **options: Any) -> Assistant:
    """A drafter by the draft model, with the streams of a ``head`` if there is one."""
    if head is None:
        return InTurns(model=model, top=top, translate=translate, **options)
    return StreamsInTurns(model=model, head=head, **options)


def own_model(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The draft model of the adapter that these options of the method name, where they name no other."""
    streams = options.get("draft") == STREAMING
    return {"model": base_model(options.get("head") or SHIPPED)} if streams else {}
